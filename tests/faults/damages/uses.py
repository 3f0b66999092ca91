"""The operations on a root through the engine. Each operation returns a value that can be compared.

An operation gets the path of a root that no other operation uses. If an operation writes to a topic, it reads the topic
afterwards. If an operation refuses a topic, the error is the result.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from lakelog.spark.splits import read_split, splits_of
from storage_engine.errors import LogError
from storage_engine.log.isolation import Isolation
from storage_engine.storage.storage_opening import new_directory
from storage_engine.topic.append.staged_list import check_list, pending_lists, waiting_topics
from storage_engine.topic.chain.transaction_files import newest_decided
from storage_engine.topic.clean.cleaning_plan import encode_plan, plan_topics
from storage_engine.topic.clean.topic_retention import retain_topic
from storage_engine.topic.kafka.kafka_export import export_topics
from storage_engine.topic.kafka.view import settle
from storage_engine.topic.readers.reader import PartitionReader
from storage_engine.topic.topics import Topics
from tests.faults.damages.whole_root import BIG, NAMES, SMALL, append, compact, rows, topics_of

HELD = "the damaged file"
"""A consumer's file that is damaged holds back what cleaning would take, and is named so."""

# What is committed, as Python values: by topic, partition and isolation.
Contents = dict[str, list[object]]
Outcome = object


def read(path: Path, now_ms: int, names: Sequence[str] = NAMES) -> Contents:
    """Every record, where each log begins and ends, and what times find."""
    topics = topics_of(path, now_ms)
    return {name: contents(topics, name) for name in names}


def contents(topics: Topics, name: str, *, with_times: bool = True) -> list[object]:
    found: list[object] = []
    topics.state(name)
    state = newest_decided(topics.storage, topics.chain(name))
    for number in range(len(state.partitions)):
        reader = PartitionReader(topics.storage, topics.chain(name), number, state)
        start = reader.partition.log_start_offset
        for isolation in Isolation if with_times else (Isolation.READ_UNCOMMITTED,):
            records = [row for each in reader.read(start, isolation=isolation) for row in each.to_pylist()]
            found.append((number, str(isolation), start, reader.end_offset(isolation), records))
        found.append(reader.end_offset(Isolation.READ_COMMITTED))
        if not with_times:
            continue
        middle = (reader.partition.log_start_offset + reader.partition.high_watermark) // 2
        found.append([row for each in reader.read(middle, middle + 9) for row in each.to_pylist()])
        first = min((segment.largest_timestamp for segment in reader.partition.segments), default=0)
        last = max((segment.largest_timestamp for segment in reader.partition.segments), default=0)
        wanted = sorted({-3, -2, -1, *(first + (last - first) * step // 12 + step for step in range(-1, 14))})
        found.append([(time_ms, reader.offset_at(time_ms)) for time_ms in wanted])
    return found


def spark_reads(path: Path, now_ms: int, names: Sequence[str] = NAMES) -> Outcome:
    """The ranges that the tasks of an export get, and the records that they read. Neither needs Spark."""
    outcomes: dict[str, object] = {}
    for name in names:
        try:
            topics = topics_of(path, now_ms)
            topics.state(name)
            state = newest_decided(topics.storage, topics.chain(name))
            outcomes[name] = [
                (number, part.log_start_offset, part.last_stable_offset, part.tombstones_end, part.first_dirty_offset)
                for number, part in enumerate(state.partitions)
            ] + [
                row
                for number, part in enumerate(state.partitions)
                for split in splits_of(
                    state, number, part.log_start_offset, part.last_stable_offset, Isolation.READ_COMMITTED
                )
                for records in read_split(topics.storage, split)
                for row in records.to_pylist()
            ]
        except LogError as error:
            outcomes[name] = error
    return outcomes


def plan(path: Path, now_ms: int, names: Sequence[str] = NAMES) -> Outcome:
    topics = topics_of(path, now_ms)
    states = [topics.state(name) for name in NAMES]
    made = plan_topics(topics, states, now_ms)
    return encode_plan(made.model_copy(update={"root": ""}))


def _each_topic(
    path: Path, now_ms: int, act: Callable[[Topics, str], object], names: Sequence[str]
) -> dict[str, object]:
    """Do something to each topic, and then read the topic. If a topic is refused, the refusal is its outcome."""
    outcomes: dict[str, object] = {}
    for name in names:
        try:
            topics = topics_of(path, now_ms)
            topics.state(name)
            act(topics, name)
            outcomes[name] = contents(topics_of(path, now_ms), name, with_times=False)
        except LogError as error:
            outcomes[name] = error
    return outcomes


def append_then_read(path: Path, now_ms: int, names: Sequence[str] = NAMES) -> Outcome:
    def act(topics: Topics, name: str) -> None:
        append(topics, name, rows(900, 4, now_ms), 0)

    return _each_topic(path, now_ms, act, names)


def compact_then_read(path: Path, now_ms: int, names: Sequence[str] = NAMES) -> Outcome:
    return _each_topic(path, now_ms, compact, names)


def retain_then_read(path: Path, now_ms: int, names: Sequence[str] = NAMES) -> Outcome:
    def act(topics: Topics, name: str) -> None:
        if any(HELD in each for each in retain_topic(topics.chain(name), topics.broker).warnings):
            held.append(name)

    held: list[str] = []
    outcomes = _each_topic(path, now_ms, act, names)
    return outcomes | {f"{HELD} {name}": True for name in held}


def settle_then_compare(path: Path, now_ms: int, names: Sequence[str] = NAMES) -> Outcome:
    settle(topics_of(path, now_ms))
    return files_of(path / "log")


def export_then_compare(path: Path, now_ms: int, names: Sequence[str] = NAMES) -> Outcome:
    """What `topics export` writes, of one topic after another."""
    outcomes: dict[str, object] = {}
    for name in names:
        out = path.parent / f"{path.name}.{name}.exported"
        try:
            with new_directory(out) as folder:
                export_topics(topics_of(path, now_ms), [name], folder, keep_epochs=True)
            outcomes[name] = files_of(out)
        except LogError as error:
            outcomes[name] = error
        finally:
            shutil.rmtree(out, ignore_errors=True)
    return outcomes


def staged(path: Path, now_ms: int, names: Sequence[str] = NAMES) -> Outcome:
    """For each micro-batch that an ingest would continue after a start: the topics that wait for it, and the runs that
    they get."""
    topics = topics_of(path, now_ms)
    found = []
    for each in pending_lists(topics.storage):
        check_list(each, topics, [BIG, SMALL])
        waiting = waiting_topics(each, topics)
        found += [(each.batch, topic.topic, [run.to_json() for run in topic.runs]) for topic in waiting]
    return found


def files_of(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name not in ("meta.properties", ".lock"))
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


READING: dict[str, Callable[..., Outcome]] = {
    "read": read, "plan": plan, "staged": staged, "export": spark_reads,
}  # fmt: skip
WRITING: dict[str, Callable[..., Outcome]] = {
    "append": append_then_read, "compaction": compact_then_read, "retention": retain_then_read,
    "settle": settle_then_compare, "topics export": export_then_compare,
}  # fmt: skip
