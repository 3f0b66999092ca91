"""Compares the log directories that Kafka's log manager and Lakelog's have left."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from storage_engine.log.checkpoint import (
    CLEAN_SHUTDOWN,
    FIRST_DIRTY_OFFSETS,
    LEADER_EPOCHS,
    LOG_STARTS,
    RECOVERY_POINTS,
    decode_leader_epochs,
    decode_offsets,
)
from storage_engine.log.filenames import DELETED, INDEX, LOG, SNAPSHOT, TIME_INDEX
from storage_engine.log.producers.producer_snapshot import ProducerEntry, decode_snapshot
from storage_engine.log.producers.producer_state import active_producers
from tests.kafka.log_manager.sides import Offsets
from tests.kafka.judge import differing_batches, index_by_rule

CHECKPOINTS = (RECOVERY_POINTS, LOG_STARTS, FIRST_DIRTY_OFFSETS)


def compare(
    theirs: Path, ours: Path, folders: Mapping[str, Folder], left_out: Container[str]
) -> Iterator[tuple[str, str]]:
    """The differences between two log directories: where, and what.

    Args:
        folders: of the open logs, by name.
        left_out: folders that are not compared.
    """
    both = [{path.name for path in parent.iterdir() if path.is_dir()} for parent in (theirs, ours)]
    for name in sorted(both[0] ^ both[1]):
        yield name, "only Kafka has this folder" if name in both[0] else "Kafka has not this folder"
    clean = [(parent / CLEAN_SHUTDOWN).exists() for parent in (theirs, ours)]
    if clean[0] != clean[1]:
        yield CLEAN_SHUTDOWN, f"{clean[1]}, Kafka {clean[0]}"
    for file in CHECKPOINTS:
        offsets = _compare_offsets(theirs / file, ours / file, {folder: each.start for folder, each in folders.items()})
        yield from ((file, what) for folder, what in offsets if folder not in left_out)
    for folder in sorted(both[0] & both[1]):
        if folder not in left_out and folder in folders:
            found = _compare_logs(theirs / folder, ours / folder, folders[folder])
            yield from ((f"{folder}/{name}", what) for name, what in found)


def _compare_offsets(theirs: Path, ours: Path, starts: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Offsets below the log start mean the log start: Kafka writes the log start instead, at a time of its own."""
    one, other = (
        {
            f"{topic}-{number}": max(at, starts.get(f"{topic}-{number}", at))
            for (topic, number), at in decode_offsets(file.read_bytes(), file.name).items()
        }
        if file.exists() and file.stat().st_size
        else {}
        for file in (theirs, ours)
    )
    for folder in sorted(one.keys() | other.keys()):
        if one.get(folder) != other.get(folder):
            yield folder, f"{folder} {other.get(folder)}, Kafka {one.get(folder)}"


def same_offsets(theirs: Offsets | None, ours: Offsets | None) -> bool:
    """Whether the offsets of two logs are the same. Kafka's recovery point is never below the log start, although records
    below the log start can be not durable yet. Ours is never below the first segment."""
    if theirs is None or ours is None:
        return False
    return theirs == ours._replace(recovery_point=max(ours.recovery_point, ours.start))


@dataclass(frozen=True)
class Folder:
    """What is known about a partition's folder: what the comparison needs to recognise intended differences.

    interval: index.interval.bytes. start, end: of our log. began_ms: when this life began. expiration_ms: of producers.
    """

    interval: int
    start: int
    end: int
    began_ms: int
    expiration_ms: int

    def snapshot(self, data: bytes, name: str) -> tuple[ProducerEntry, ...]:
        """The producers in a snapshot, without those that a broker that started in this life would drop."""
        return tuple(sorted(active_producers(decode_snapshot(data, name), self.began_ms, self.expiration_ms)))

    def epochs(self, data: bytes) -> list[tuple[int, int]]:
        """The leader epochs that have records: Kafka drops an epoch that begins at the log's end."""
        return [each for each in decode_leader_epochs(data, LEADER_EPOCHS) if each[1] < self.end]


def _compare_logs(theirs: Path, ours: Path, known: Folder) -> Iterator[tuple[str, str]]:
    one, other = (
        {
            path.name: path.read_bytes()
            for path in folder.iterdir()
            if path.suffix not in (".corrupt", DELETED)  # what waits for its deletion is no part of the log
        }
        for folder in (theirs, ours)
    )
    bases = {name.removesuffix(LOG) for name in other if name.endswith(LOG)}
    for name in sorted(one.keys() ^ other.keys()):
        stem, _, suffix = name.partition(".")
        if name in other and f".{suffix}" in (INDEX, TIME_INDEX) and other.get(stem + LOG) == b"":
            continue  # Kafka makes the indexes of an empty segment when it uses them
        if f".{suffix}" == SNAPSHOT and (stem in bases if name in other else int(stem) == known.end):
            continue  # Kafka has none at or below the log start, and after a gap; ours at the log's end is written last
        yield name, "only Kafka has this file" if name in one else "Kafka has not this file"
    for name in sorted(one.keys() & other.keys()):
        if one[name] != other[name]:
            yield from ((name, what) for what in _compare_file(name, one, other, known))


def _compare_file(
    name: str, one: Mapping[str, bytes], other: Mapping[str, bytes], known: Folder
) -> Iterator[str]:
    stem, _, suffix = name.partition(".")
    logs = one.get(stem + LOG, b""), other.get(stem + LOG, b"")
    if name.endswith(LOG):
        yield from differing_batches(one[name], other[name], None)
        return
    if f".{suffix}" in (INDEX, TIME_INDEX):
        rules = [index_by_rule(int(stem), log, known.interval, f".{suffix}") for log in logs]
        if other[name] == rules[1] and (one[name] == rules[0] or len(one[name]) % len_of_entry(suffix)):
            return  # Kafka believes an index with a part of an entry
    elif f".{suffix}" == SNAPSHOT:
        if known.snapshot(one[name], name) == known.snapshot(other[name], name):
            return
    elif name == LEADER_EPOCHS and known.epochs(one[name]) == known.epochs(other[name]):
        return
    yield f"{_short(other[name])}, Kafka's {_short(one[name])}"


def len_of_entry(suffix: str) -> int:
    """The bytes of an entry of an index."""
    return 8 if f".{suffix}" == INDEX else 12


def _short(data: bytes) -> str:
    """Some bytes of a file, for a person."""
    return data.decode() if data.isascii() and len(data) < 200 else f"{len(data)} bytes {data[:120].hex()}"
