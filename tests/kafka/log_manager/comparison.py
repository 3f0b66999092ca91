"""Compares the log directories that Kafka's log manager and Lakelog's have left."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from storage_engine.errors import CorruptionError
from storage_engine.log.checkpoint import (
    FIRST_DIRTY_OFFSETS,
    LEADER_EPOCHS,
    LOG_STARTS,
    RECOVERY_POINTS,
    decode_leader_epochs,
    decode_offsets,
)
from storage_engine.log.filenames import DELETED, INDEX, LOG, SNAPSHOT, TIME_INDEX, TRANSACTION_INDEX
from storage_engine.log.indexes.time_index import TIME_ENTRY
from storage_engine.log.indexes.transaction_index import AbortedTransaction, decode_transaction_index
from storage_engine.log.leader_epochs import cut_start
from storage_engine.log.partition_state import LeaderEpoch
from storage_engine.log.producers.producer_snapshot import EMPTY_SNAPSHOT, ProducerEntry, decode_snapshot
from storage_engine.log.producers.producer_state import active_producers
from storage_engine.record.batch import scan_batches
from tests.kafka.judge import differing_batches, index_by_rule
from tests.kafka.log_manager.derivations import Derivations
from tests.kafka.log_manager.sides import Offsets

CHECKPOINTS = (RECOVERY_POINTS, LOG_STARTS, FIRST_DIRTY_OFFSETS)


def compare(
    theirs: Path, ours: Path, folders: Mapping[str, Folder], left_out: Container[str], moving: Container[str] = ()
) -> Iterator[tuple[str, str]]:
    """The differences between two log directories: where, and what.

    Args:
        folders: of the open logs, by name.
        left_out: folders that are not compared.
        moving: folders that also exist with the suffix -future in these directories. Kafka writes offsets of these.
    """
    both = [{path.name for path in parent.iterdir() if path.is_dir()} for parent in (theirs, ours)]
    for name in sorted(both[0] ^ both[1]):
        yield name, "only Kafka has this folder" if name in both[0] else "Kafka has not this folder"
    for file in CHECKPOINTS:
        offsets = _compare_offsets(theirs / file, ours / file, folders)
        yield from ((file, what) for folder, what in offsets if folder not in left_out and folder not in moving)
    for folder in sorted(both[0] & both[1]):
        if folder not in left_out and folder in folders:
            found = _compare_logs(theirs / folder, ours / folder, folders[folder])
            yield from ((f"{folder}/{name}", what) for name, what in found)


def _compare_offsets(theirs: Path, ours: Path, folders: Mapping[str, Folder]) -> Iterator[tuple[str, str]]:
    one, other = (_meant_offsets(file, folders) for file in (theirs, ours))
    for folder in sorted(one.keys() | other.keys()):
        if one.get(folder) != other.get(folder):
            yield folder, f"{folder} {other.get(folder)}, Kafka {one.get(folder)}"


def _meant_offsets(file: Path, folders: Mapping[str, Folder]) -> dict[str, int]:
    """The offsets in a checkpoint, by folder. Of the cleaner's checkpoint, the offsets between the log's start and its end:
    any other, or none, means the log start. Kafka then writes the log start, at a time of its own."""
    if not file.exists() or not file.stat().st_size:
        return {}
    offsets = decode_offsets(file.read_bytes(), file.name)
    found = {f"{topic}-{number}": at for (topic, number), at in offsets.items()}
    if file.name == FIRST_DIRTY_OFFSETS:
        return {
            name: at
            for name, at in found.items()
            if name not in folders or folders[name].start < at <= folders[name].end
        }
    return {name: max(at, folders[name].start) if name in folders else at for name, at in found.items()}


def same_offsets(theirs: Offsets | None, ours: Offsets | None) -> bool:
    """Whether the offsets of two logs are the same. Kafka's recovery point is never below the log start, although records
    below the log start can be not durable yet. Ours is never below the first segment."""
    if theirs is None or ours is None:
        return False
    return theirs == ours._replace(recovery_point=max(ours.recovery_point, ours.start))


@dataclass(frozen=True)
class Folder:
    """What is known about a partition's folder. The comparison needs it to recognise the intended differences.

    interval: index.interval.bytes. start, end: of the log. now_ms: the end of this life. expiration_ms: of producers.
    ends_clean: whether this life ended with an orderly stop.
    recovered: the base offsets of the segments that Lakelog has recovered in this life.
    lost_epochs: whether Kafka has dropped the only leader epoch, because it began at the log's end.
    theirs, ours: what Kafka and Lakelog can know about the producers.
    """

    interval: int
    start: int
    end: int
    now_ms: int
    expiration_ms: int
    ends_clean: bool
    recovered: Sequence[int]
    lost_epochs: bool
    theirs: Derivations
    ours: Derivations

    def _active(self, entries: Iterable[ProducerEntry]) -> frozenset[ProducerEntry]:
        """The producers that a broker that starts now would load."""
        return frozenset(active_producers(entries, self.now_ms, self.expiration_ms))

    def same_producers(self, offset: int, theirs: bytes, ours: bytes) -> bool:
        """Whether two snapshots at an offset have the same producers, apart from expired ones. If Kafka has started with
        another snapshot than Lakelog, both must be right, and Lakelog must know as much as Kafka.
        """
        entries = [decode_snapshot(data, SNAPSHOT) for data in (theirs, ours)]
        one, other = map(self._active, entries)
        if one == other:
            return True
        known = {each.producer_id: each for each in entries[1]}  # also expired ones: their transactions have ended
        return (
            all(_is_newer(known.get(each.producer_id), each) for each in one)
            and any(one == self._active(each) for each in self.theirs.producers(offset))
            and any(other == self._active(each) for each in self.ours.producers(offset))
        )

    def without_one_sided(
        self, theirs: bytes, ours: bytes, kafka_knows: Iterable[ProducerEntry]
    ) -> tuple[bytes, bytes]:
        """Both logs without the empty batches that only one cleaner keeps, as only one log manager knows their producers.
        To recover a segment, Kafka deletes the later snapshots. It then knows expired producers again, up to its first
        check for them. It may also begin to recover without any producer, and then it does not know the earlier ones.

        Args:
            kafka_knows: the producers in Kafka's newest .snapshot.
        """
        both = [
            {each for some in known.producers(self.end) for each in some} for known in (self.theirs, self.ours)
        ]  # fmt: skip
        expired = {each for each in both[0] if self.now_ms - each.timestamp >= self.expiration_ms}
        forgotten = _last_batches(both[1]) - _last_batches(kafka_knows)
        return _without(theirs, ours, _last_batches(expired)), _without(ours, theirs, forgotten)

    def same_epochs(self, theirs: bytes, ours: bytes) -> bool:
        """Whether two checkpoints have the same leader epochs. Kafka drops an epoch that begins at the log's end. A
        broker that leads the partition begins another epoch before it appends, but here nobody leads. After Kafka has
        dropped the only epoch, it knows the epochs from the first batch that it has recovered.
        """
        one, other = (
            tuple(LeaderEpoch(*each) for each in decode_leader_epochs(data, LEADER_EPOCHS) if each[1] < self.end)
            for data in (theirs, ours)
        )
        return one == other or (self.lost_epochs and one == (cut_start(other, one[0].start_offset) if one else ()))

    def same_aborted(self, theirs: bytes, ours: bytes) -> bool:
        """Whether two transaction indexes have the same transactions. If Kafka has started with another snapshot than
        Lakelog, it can miss a transaction, or the beginning of one. Both must be right then.
        """
        one, other = (frozenset(decode_transaction_index(data, TRANSACTION_INDEX)) for data in (theirs, ours))
        if one == other:
            return True
        known = {each.last_offset: each for each in other}
        return (
            all(_is_wider(known.get(each.last_offset), each) for each in one)
            and one - other <= self.theirs.aborted(self.end)
            and other - one <= self.ours.aborted(self.end)
        )


LastBatch = tuple[int, int]
"""A producer, and the last offset of its newest batch."""


def _last_batches(producers: Iterable[ProducerEntry]) -> frozenset[LastBatch]:
    return frozenset((each.producer_id, each.last_offset) for each in producers)


def _without(log: bytes, other: bytes, dropped: Container[LastBatch]) -> bytes:
    """A log without those of the dropped batches that are empty, and that the other log has not."""
    table = scan_batches(np.frombuffer(log, np.uint8), LOG)
    one_sided = ~np.isin(table.base_offsets, scan_batches(np.frombuffer(other, np.uint8), LOG).base_offsets)
    empty = one_sided & (table.records_counts == 0) & ~table.is_control
    places = zip(
        table.positions.tolist(), table.sizes.tolist(), empty.tolist(), table.producer_ids.tolist(),
        table.last_offsets.tolist(), strict=True,
    )  # fmt: skip
    return b"".join(
        log[at : at + size] for at, size, drops, *batch in places if not (drops and tuple(batch) in dropped)
    )


def _is_newer(ours: ProducerEntry | None, theirs: ProducerEntry) -> bool:
    """Whether our state of a producer is as new as Kafka's."""
    return ours is not None and (ours.producer_epoch, ours.last_offset) >= (theirs.producer_epoch, theirs.last_offset)


def _is_wider(ours: AbortedTransaction | None, theirs: AbortedTransaction) -> bool:
    """Whether our aborted transaction hides as much as Kafka's."""
    return ours is not None and ours.producer_id == theirs.producer_id and ours.first_offset <= theirs.first_offset


def _compare_logs(theirs: Path, ours: Path, known: Folder) -> Iterator[tuple[str, str]]:
    one, other = (
        {
            path.name: path.read_bytes()
            for path in folder.iterdir()
            if path.suffix not in (".corrupt", DELETED)  # what waits for its deletion is no part of the log
        }
        for folder in (theirs, ours)
    )
    for name in sorted(one.keys() ^ other.keys()):
        stem, _, suffix = name.partition(".")
        if name in other and f".{suffix}" in (INDEX, TIME_INDEX) and other.get(stem + LOG) == b"":
            continue  # Kafka makes the indexes of an empty segment when it uses them
        if f".{suffix}" == SNAPSHOT and (
            _may_have_more(int(stem), one[name], known) if name in one else _may_lack(int(stem), known)
        ):
            continue
        if f".{suffix}" == TRANSACTION_INDEX and known.same_aborted(one.get(name, b""), other.get(name, b"")):
            continue
        yield name, "only Kafka has this file" if name in one else "Kafka has not this file"
    for name in sorted(one.keys() & other.keys()):
        if one[name] != other[name]:
            yield from ((name, what) for what in _compare_file(name, one, other, known))


def _may_lack(offset: int, known: Folder) -> bool:
    """Whether Kafka may lack a snapshot. It deletes those at and below the log start, those above a segment that it
    recovers, and those of the segments that it replaces by the results of an unfinished compaction. It never writes them
    again. It does not recover a segment that has an empty .index, or an .index without a .timeindex.
    """
    is_above_recovered = offset > min(known.recovered, default=offset)
    was_lacking = offset in known.ours.found.snapshots and offset not in known.theirs.found.snapshots
    is_not_recovered = offset in known.recovered and offset in known.theirs.found.trusted
    was_swapped = offset in known.theirs.found.swapped
    return offset <= known.start or is_above_recovered or was_lacking or was_swapped or is_not_recovered


def _may_have_more(offset: int, data: bytes, known: Folder) -> bool:
    """Whether only Kafka may have a snapshot. After it has loaded a log, Kafka writes one at its end, also if the log is
    empty; Lakelog writes it when it closes a log with batches. If the last one is missing after an orderly stop, Kafka also
    writes those of the two newest segments. After it has recovered the newest segment, Kafka writes one at the end of the
    last batch that is not a legacy message. Kafka keeps a damaged one that it has not read.
    """
    if not _is_snapshot(data):
        return True
    if offset == known.end:
        return not known.ends_clean or (known.start == known.end and data == EMPTY_SNAPSHOT)
    is_after_recovery = bool(known.recovered) and offset > max(known.theirs.newest_bases, default=-1)
    is_written_again = offset in known.theirs.newest_bases and offset not in known.ours.found.snapshots
    entries = frozenset(decode_snapshot(data, SNAPSHOT))
    return (is_after_recovery or is_written_again) and entries in known.theirs.producers(offset)


def _compare_file(name: str, one: Mapping[str, bytes], other: Mapping[str, bytes], known: Folder) -> Iterator[str]:
    stem, _, suffix = name.partition(".")
    logs = one.get(stem + LOG, b""), other.get(stem + LOG, b"")
    if name.endswith(LOG):
        both = known.without_one_sided(one[name], other[name], _newest_producers(one))
        yield from differing_batches(*both, None)
        return
    if f".{suffix}" in (INDEX, TIME_INDEX):
        rules = [index_by_rule(int(stem), log, known.interval, f".{suffix}") for log in logs]
        if other[name] == rules[1] and (one[name] == rules[0] or len(one[name]) % len_of_entry(suffix)):
            return  # Kafka believes an index with a part of an entry
        theirs, ours = (_entries(side[name], suffix) for side in (one, other))
        is_empty = not _entries(one.get(stem + INDEX, b""), INDEX.removeprefix("."))
        if is_empty and ours == rules[1] and (name.endswith(INDEX) or _times_are_right(theirs, int(stem), logs[0])):
            return  # Kafka believes an empty .index
    elif f".{suffix}" == SNAPSHOT:
        if not _is_snapshot(one[name]) or known.same_producers(int(stem), one[name], other[name]):
            return
    elif f".{suffix}" == TRANSACTION_INDEX:
        if known.same_aborted(one[name], other[name]):
            return
    elif name == LEADER_EPOCHS and known.same_epochs(one[name], other[name]):
        return
    yield f"{_short(other[name])}, Kafka's {_short(one[name])}"


def _entries(data: bytes, suffix: str) -> bytes:
    """An index without the zeros at the end of a preallocated file."""
    used = len(data.rstrip(b"\0"))
    return data[: -(-used // len_of_entry(suffix)) * len_of_entry(suffix)]


def _times_are_right(data: bytes, base_offset: int, log: bytes) -> bool:
    """Whether each entry of a time index names a batch with this timestamp. The index may lack entries."""
    table = scan_batches(np.frombuffer(log, np.uint8), LOG)
    batches = set(zip(table.max_timestamps.tolist(), (table.last_offsets - base_offset).tolist(), strict=True))
    return batches.issuperset(np.frombuffer(data, TIME_ENTRY).tolist())


def len_of_entry(suffix: str) -> int:
    """The bytes of an entry of an index."""
    return 8 if f".{suffix}" == INDEX else 12


def _newest_producers(files: Mapping[str, bytes]) -> tuple[ProducerEntry, ...]:
    """The producers in the newest .snapshot of a log."""
    newest = max((name for name, data in files.items() if name.endswith(SNAPSHOT) and _is_snapshot(data)), default=None)
    return decode_snapshot(files[newest], newest) if newest else ()


def _is_snapshot(data: bytes) -> bool:
    try:
        decode_snapshot(data, SNAPSHOT)
    except CorruptionError:
        return False
    return True


def _short(data: bytes) -> str:
    """Some bytes of a file, for a person."""
    return data.decode() if data.isascii() and len(data) < 200 else f"{len(data)} bytes {data[:120].hex()}"
