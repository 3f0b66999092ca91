"""Checks plain Kafka log directories: each partition, and the files beside the partitions' folders.

Parallel threads read the partitions. Python's interpreter lock is released during reads, during the check of CRCs,
and in kernels. Nothing is changed. During the check, a broker must not run on the directory, because its writes would
look like damage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import MappingProxyType

from storage_engine.errors import CorruptionError, LogError, NotFoundError
from storage_engine.kafka_dir.log_directory import LogDirectory, TopicPartition, partition_of, set_aside_as
from storage_engine.log.checkpoint import (
    CLEAN_SHUTDOWN,
    FIRST_DIRTY_OFFSETS,
    HIGH_WATERMARKS,
    LOCK,
    LOG_STARTS,
    META_PROPERTIES,
    RECOVERY_POINTS,
    MetaProperties,
    decode_meta_properties,
    decode_offsets,
)
from storage_engine.log.filenames import LOG
from storage_engine.verify.directory.folder_check import CheckedPartition, check_partition
from storage_engine.verify.epoch_check import line_position
from storage_engine.verify.findings import Finding, Kind, of_error
from storage_engine.verify.segment_check import Options

CHECKPOINTS = (RECOVERY_POINTS, HIGH_WATERMARKS, LOG_STARTS, FIRST_DIRTY_OFFSETS)
_OTHER_FILES = (META_PROPERTIES, LOCK, CLEAN_SHUTDOWN, "bootstrap.checkpoint")
_STOPS = "a broker refuses to start with this file; --repair keeps the correct lines"


@dataclass
class CheckedDirectory:
    """The result of checking a log directory. meta: the contents of meta.properties, if this file can be read."""

    directory: LogDirectory
    partitions: dict[TopicPartition, CheckedPartition] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    meta: MetaProperties | None = None

    def all_findings(self) -> list[Finding]:
        """The findings of the partitions, then those of the files beside the partitions."""
        return [each for part in self.partitions.values() for each in part.findings] + self.findings


def check_directory(
    directory: LogDirectory,
    names: Sequence[TopicPartition],
    options: Options,
    threads: int,
    known: Mapping[TopicPartition, CheckedPartition] = MappingProxyType({}),
) -> CheckedDirectory:
    """Check some partitions, and the files beside the partitions' folders.

    Args:
        known: results of partitions that were checked earlier and have not changed after that check.
    """
    found = CheckedDirectory(directory)
    offsets = {file: _checked_offsets(found, file) for file in CHECKPOINTS}
    closed = directory.cleanly_closed
    options.progress.expect(size=sum(_size(directory, name) for name in names if name not in known))

    def check(name: TopicPartition) -> CheckedPartition:
        if name in known:
            return known[name]
        start = (offsets[LOG_STARTS] or {}).get(name, 0)
        return check_partition(directory.storage, name, start, options, closed=closed)

    with ThreadPoolExecutor(threads) as pool:
        found.partitions = dict(zip(names, pool.map(check, names), strict=True))
    for file, lines in offsets.items():
        found.findings += _wrong_offsets(found, file, lines or {})
    found.findings += _differing_topic_ids(found)
    _check_names(found)
    _check_meta_properties(found)
    return found


def check_together(checked: Sequence[CheckedDirectory]) -> list[Finding]:
    """Find contradictions between the log.dirs of one broker."""
    findings = []
    seen: dict[TopicPartition, CheckedDirectory] = {}
    for each in checked:
        for name in each.partitions:
            first = seen.setdefault(name, each)
            if first is not each:
                findings.append(
                    Finding(
                        Kind.METADATA, _path(each, name.folder), 0, "each partition in one directory only",
                        f"the partition also in {_path(first, name.folder)}", "a broker refuses to start: move one folder away",
                    )
                )  # fmt: skip
    known = [each for each in checked if each.meta is not None]
    for number, each in enumerate(known):
        for before in known[:number]:
            assert each.meta is not None
            assert before.meta is not None
            place = _path(each, META_PROPERTIES)
            one, other = each.meta, before.meta
            if one.contradicts(other):
                found = f"cluster {one.cluster_id}, node {one.node_id}"
                expected = f"cluster {other.cluster_id} and node {other.node_id}, as in {before.directory.storage.uri}"
                meaning = "the directories belong to different brokers, and no broker starts on both"
            elif one.directory_id is not None and one.directory_id == other.directory_id:
                expected, found = f"another directory.id than {before.directory.storage.uri}", one.directory_id
                meaning = "one directory is a copy of the other: a broker refuses to start with both"
            else:
                continue
            findings.append(Finding(Kind.METADATA, place, 0, expected, found, meaning))
    return findings


def _path(checked: CheckedDirectory, name: str) -> str:
    return f"{checked.directory.storage.uri}/{name}"


def _size(directory: LogDirectory, name: TopicPartition) -> int:
    return sum(entry.size for entry in directory.storage.entries(name.folder) if entry.name.endswith(LOG))


def _checked_offsets(found: CheckedDirectory, file: str) -> Mapping[tuple[str, int], int] | None:
    """The contents of a checkpoint; if it is malformed, its correct lines."""
    try:
        data = found.directory.storage.read(file)
    except NotFoundError:
        return None
    except LogError as error:
        found.findings.append(of_error(error, Kind.CHECKPOINT))
        return None
    try:
        return decode_offsets(data, _path(found, file))
    except CorruptionError as error:
        found.findings.append(of_error(error, Kind.CHECKPOINT, _STOPS))
        return correct_offsets(data)


def correct_offsets(data: bytes) -> dict[tuple[str, int], int]:
    """The lines of a damaged checkpoint that are valid entries."""
    offsets: dict[tuple[str, int], int] = {}
    for line in data.split(b"\n"):
        if len(line.split()) == 3:
            try:
                offsets |= decode_offsets(b"0\n1\n" + line + b"\n", "")
            except CorruptionError:
                continue
    return offsets


def in_range(file: str, part: CheckedPartition) -> tuple[int, int]:
    """The lowest and the highest valid offset of a partition in a checkpoint."""
    if file == FIRST_DIRTY_OFFSETS:
        # If this offset is below the log start, Kafka starts from the log start. Kafka never cleans the active segment.
        return 0, part.segments[-1].files.base_offset if part.segments else part.end_offset
    return 0, part.end_offset


def _wrong_offsets(found: CheckedDirectory, file: str, lines: Mapping[tuple[str, int], int]) -> Iterator[Finding]:
    place = _path(found, file)
    there = set(found.directory.partitions)
    data = found.directory.storage.read(file) if lines else b""
    rows = [line.split() for line in data.split(b"\n")]
    absent: list[tuple[int, TopicPartition]] = []
    for (topic, number), offset in lines.items():
        name = TopicPartition(topic, number)
        entry = [topic.encode(), str(number).encode(), str(offset).encode()]
        position = line_position(data, rows.index(entry)) if entry in rows else 0
        if name not in there:
            absent.append((position, name))
            continue
        part = found.partitions.get(name)
        if part is None or part.unread or part.damaged:
            continue  # the damaged part may have had higher offsets
        lowest, highest = in_range(file, part)
        if not lowest <= offset <= highest:
            yield Finding(
                Kind.CHECKPOINT, place, position, f"an offset up to {highest} for {name.folder}", str(offset),
                _OUT_OF_RANGE[file],
            )  # fmt: skip
    if absent:
        position, name = absent[0]
        more = f" and {len(absent) - 1} other missing partitions" if len(absent) > 1 else ""
        yield Finding(
            Kind.CHECKPOINT, place, position, "partitions that exist", f"{name.folder}{more}",
            "a broker ignores these lines", is_note=True,
        )  # fmt: skip


_OUT_OF_RANGE = {
    RECOVERY_POINTS: "the log has lost its end, or the line is wrong; after a crash, a broker would not recover"
    " the log; --repair corrects the line",
    HIGH_WATERMARKS: "the log has lost its end, or the line is wrong; --repair corrects the line",
    LOG_STARTS: "a broker would treat the log as empty and delete its segments; --repair removes the line",
    FIRST_DIRTY_OFFSETS: "cleaning would start from the beginning; --repair removes the line",
}


def _differing_topic_ids(found: CheckedDirectory) -> Iterator[Finding]:
    """Find partitions whose topic id differs from most other partitions of the topic."""
    ids: dict[str, list[str]] = {}
    for name, part in found.partitions.items():
        if part.topic_id is not None:
            ids.setdefault(name.topic, []).append(part.topic_id)
    for name, part in found.partitions.items():
        theirs = ids.get(name.topic, [])
        usual = max(theirs, key=theirs.count, default=None)
        if part.topic_id is not None and part.topic_id != usual:
            yield Finding(
                Kind.METADATA, _path(found, f"{name.folder}/partition.metadata"), 0,
                f"topic id {usual}, the id in most partitions of the topic", part.topic_id,
                "a broker sets one of the folders aside as a stray",
            )  # fmt: skip


def _check_names(found: CheckedDirectory) -> None:
    for entry in sorted(found.directory.storage.entries(""), key=lambda entry: entry.name):
        place = _path(found, entry.name)
        if entry.is_folder:
            if partition_of(entry.name) is not None:
                continue
            put_aside = set_aside_as(entry.name) is not None
            found.findings.append(
                Finding(
                    Kind.LEFT_OVER, place, 0, "folders named topic-partition", repr(entry.name),
                    "a broker has set this folder aside" if put_aside
                    else "a broker refuses to start with this folder: move the folder away",
                    is_note=put_aside,
                )
            )  # fmt: skip
        elif entry.name not in (*CHECKPOINTS, *_OTHER_FILES):
            found.findings.append(
                Finding(
                    Kind.LEFT_OVER,
                    place,
                    0,
                    "only Kafka's files",
                    "another file",
                    "a broker ignores this file",
                    is_note=True,
                )
            )


def _check_meta_properties(found: CheckedDirectory) -> None:
    place = _path(found, META_PROPERTIES)
    meaning = "a broker does not start without this file; kafka-storage format creates it"
    try:
        found.meta = decode_meta_properties(found.directory.storage.read(META_PROPERTIES), place)
    except NotFoundError:
        found.findings.append(Finding(Kind.METADATA, place, 0, "a file", "none", meaning, is_note=True))
    except LogError as error:
        found.findings.append(of_error(error, Kind.METADATA, meaning))
