"""Compares the log directories that Kafka's log manager and Lakelog's have left."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from pathlib import Path

from storage_engine.log.checkpoint import (
    CLEAN_SHUTDOWN,
    FIRST_DIRTY_OFFSETS,
    LOCK,
    LOG_STARTS,
    RECOVERY_POINTS,
    decode_offsets,
)
from storage_engine.log.filenames import INDEX, LOG, TIME_INDEX
from tests.kafka.log_manager.sides import Offsets
from tests.kafka.judge import batch_sizes, differing_batches, index_by_rule

CHECKPOINTS = (RECOVERY_POINTS, LOG_STARTS, FIRST_DIRTY_OFFSETS)


def compare(
    theirs: Path, ours: Path, intervals: Mapping[str, int], offsets: Mapping[str, Offsets], left_out: Container[str]
) -> Iterator[tuple[str, str]]:
    """The differences between two log directories: where, and what.

    Args:
        intervals: index.interval.bytes, by topic.
        offsets: of our logs, by folder.
        left_out: folders that are not compared.
    """
    both = [{path.name for path in parent.iterdir() if path.is_dir()} for parent in (theirs, ours)]
    for name in sorted(both[0] ^ both[1]):
        yield name, "only Kafka has this folder" if name in both[0] else "Kafka has not this folder"
    clean = [(parent / CLEAN_SHUTDOWN).exists() for parent in (theirs, ours)]
    if clean[0] != clean[1]:
        yield CLEAN_SHUTDOWN, f"{clean[1]}, Kafka {clean[0]}"
    for file in CHECKPOINTS:
        found = _compare_offsets(theirs / file, ours / file, {folder: each.start for folder, each in offsets.items()})
        yield from ((file, what) for folder, what in found if folder not in left_out)
    for folder in sorted(both[0] & both[1]):
        if folder not in left_out:
            interval = intervals.get(folder.rpartition("-")[0], 4096)
            yield from ((f"{folder}/{name}", what) for name, what in _compare_logs(theirs / folder, ours / folder, interval))


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


def _compare_logs(theirs: Path, ours: Path, interval: int) -> Iterator[tuple[str, str]]:
    one, other = (
        {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix not in (".corrupt", LOCK)}
        for folder in (theirs, ours)
    )
    for name in sorted(one.keys() ^ other.keys()):
        stem, _, suffix = name.partition(".")
        if name in other and f".{suffix}" in (INDEX, TIME_INDEX) and other.get(stem + LOG) == b"":
            continue  # Kafka makes the indexes of an empty segment when it uses them
        yield name, "only Kafka has this file" if name in one else "Kafka has not this file"
    for name in sorted(one.keys() & other.keys()):
        if one[name] == other[name]:
            continue
        stem, _, suffix = name.partition(".")
        if name.endswith(LOG):
            yield from ((name, what) for what in differing_batches(one[name], other[name], None))
        elif f".{suffix}" in (INDEX, TIME_INDEX) and stem + LOG in one and stem + LOG in other:
            logs = one[stem + LOG], other[stem + LOG]
            rules = [index_by_rule(int(stem), log, interval, f".{suffix}") for log in logs]
            if [one[name], other[name]] != rules or batch_sizes(logs[0]) == batch_sizes(logs[1]):
                yield name, f"{_short(other[name])}, Kafka's {_short(one[name])}"
        else:
            yield name, f"{_short(other[name])}, Kafka's {_short(one[name])}"


def _short(data: bytes) -> str:
    """Some bytes of a file, for a person."""
    return data.decode() if data.isascii() and len(data) < 200 else f"{len(data)} bytes {data[:120].hex()}"
