"""Random damages to the small files of a root: whatever is done afterwards gives what the whole root gives, or an error.

    .venv/bin/python -m tests.faults.damages --damages 2000 --seed 7

One rich root is made: many versions and segments, history, lists, transactions in all states, a consumer, an imported
topic, a list of staged runs, a settled view, and bytes under data/ that were never committed. For each damage a copy of
links gets one small file changed: a bit, a byte, a digit, a field, its length, or its content, from an older version, a
file of its kind, or another topic. Then everything that reads or writes is done, each on a copy of its own, and compared
with the same on the whole root. `verify` has to find every damage to meta/ and staging/. What `verify --repair` leaves has to
give the same records, or fewer and say so, and never one that was not committed.

A damage is a pure function of its seed. It prints a table by kind of file and of damage, and each wrong outcome.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import random
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from storage_engine.clock import ManualClock
from storage_engine.config import BrokerConfig
from storage_engine.errors import LogError
from storage_engine.log.isolation import Isolation
from storage_engine.log.log_directory import LogDirectory
from storage_engine.record.partitioner import partition_keys
from storage_engine.storage.posix import PosixStorage, new_directory
from storage_engine.topic import documents
from storage_engine.topic.appending import Encoding, append_records, stage_records
from storage_engine.topic.compaction import compact_topic
from storage_engine.topic.decisions import decide, newest_decided
from storage_engine.topic.groups import put_positions
from storage_engine.topic.kafka_export import export_topics
from storage_engine.topic.kafka_import import import_topic
from storage_engine.topic.plans import encode_plan, plan_topics
from storage_engine.topic.pruning import prune
from storage_engine.topic.publishing import BatchIdentity, TopicWriter, take_over
from storage_engine.topic.reader import PartitionReader
from storage_engine.topic.retention import retain_topic
from storage_engine.topic.staged_list import (
    StagedList,
    StagedTopic,
    check_list,
    pending_lists,
    put_list,
    waiting_topics,
)
from storage_engine.topic.staging import StagingWriter, by_partition
from storage_engine.topic.topics import Topics
from storage_engine.topic.transactions import Transaction
from storage_engine.topic.view import settle
from storage_engine.verify.findings import problems
from storage_engine.verify.repair_state import repair_documents
from storage_engine.verify.root import check_root, repair_root
from storage_engine.verify.segment import Options
from tests.storage_engine.record_tables import Row, to_table

GOLDEN = Path(__file__).parents[1] / "golden"
BEGIN_MS = 1_750_000_000_000
HOUR_MS = 3_600_000
BIG, SMALL = "orders", "clicks"
IMPORTED = next((GOLDEN / "txn" / "data").glob("*-0")).name.removesuffix("-0")
NAMES = (BIG, SMALL, IMPORTED)
NEVER = b"never committed"
HELD = "the damaged file"
"""A consumer's file that is damaged holds back what cleaning would take, and is named so."""

# What is committed, as Python values: by topic, partition and isolation.
Contents = dict[str, list[object]]
Outcome = object


def topics_of(path: Path, now_ms: int) -> Topics:
    """The root as a process sees it that has just started."""
    return Topics(PosixStorage(path), BrokerConfig(), ManualClock(now_ms))


def rows(first: int, count: int, time_ms: int) -> list[Row]:
    """Records whose keys come again, with headers, and times that go back now and then."""
    return [
        Row(
            b"k%d" % (number % 23), b"v%d" % number * 3, (("h", b"%d" % number),) if number % 3 else (),
            time_ms + (number * 37) % 1000,
        )
        for number in range(first, first + count)
    ]  # fmt: skip


def append(topics: Topics, topic: str, values: list[Row], partition: int | None = None) -> None:
    state = topics.state(topic)
    append_records(topics.storage, topics.chain(topic), topics.config(state), topics.clock, to_table(values), partition)


# The root.


def build(path: Path) -> int:
    """Make the root; returns the time by which everything is done to it."""
    clock = ManualClock(BEGIN_MS)
    storage = PosixStorage(path)
    topics = Topics(storage, BrokerConfig(), clock)
    configs = {
        "segment.bytes": "1200", "index.interval.bytes": "120", "cleanup.policy": "compact,delete",
        "retention.ms": str(30 * HOUR_MS), "retention.respect.consumers": "true", "min.cleanable.dirty.ratio": "0.1",
    }  # fmt: skip
    topics.create(BIG, 2, configs)
    topics.create(SMALL, 2, {"segment.bytes": "1200", "index.interval.bytes": "120", "retention.ms": "-1"})
    import_topic(topics, LogDirectory(GOLDEN / "txn" / "data"), IMPORTED)
    number = 0
    for count in range(95):
        clock.advance(HOUR_MS // 2)
        for topic in (BIG, SMALL) if count % 9 == 0 else (BIG,):
            append(topics, topic, rows(number, 2 + number % 3, clock.now_ms()), 0 if count % 8 else 1)
        number += 11
        if count in (8, 16):
            _compact(topics, BIG)
    for values in (range(3), range(4)):
        with Transaction(topics) as done:
            done.append(BIG, to_table(rows(len(values), 4, clock.now_ms())), 1)
            done.append(SMALL, to_table(rows(len(values), 2, clock.now_ms())), 0)
            if len(values) == 3:
                done.commit()
    _leave_open(topics, clock)
    _stage(topics, clock)
    put_positions(storage, topics.state(BIG), "audit", "reader", {0: 100, 1: 5}, clock.now_ms())
    put_positions(storage, topics.state(SMALL), "audit", "reader", {0: 20, 1: 0}, clock.now_ms())
    for topic in (BIG, SMALL):
        prune(storage, topics.chain(topic))
    settle(topics)
    for _ in range(3):  # the view is of a moment before the newest versions
        clock.advance(HOUR_MS // 2)
        append(topics, BIG, rows(number, 5, clock.now_ms()), 0)
        number += 11
    settle(topics)
    _leave_uncommitted(topics)
    return clock.now_ms() + HOUR_MS


def _compact(topics: Topics, topic: str) -> None:
    state = topics.state(topic)
    compact_topic(topics.storage, topics.chain(topic), topics.config(state), topics.broker, topics.clock, force=True)


def _leave_open(topics: Topics, clock: ManualClock) -> None:
    """Transactions without their markers: one is decided to be committed, one to be aborted, one is open."""
    for decision in (True, False, None):
        left = Transaction(topics, timeout_ms=10**9)
        left.append(BIG, to_table(rows(7, 3, clock.now_ms())), 1)
        left.append(SMALL, to_table(rows(9, 3, clock.now_ms())), 1)
        if decision is not None:
            assert left.producer_id is not None
            decide(topics.storage, clock, left.producer_id, committed=decision)


def _stage(topics: Topics, clock: ManualClock) -> None:
    """A micro-batch that one topic has and another waits for, after one that both have."""
    query = "6f2c0a34-0000-4000-8000-000000000001"
    for batch_id in (0, 1, 2):
        identity = BatchIdentity(query, batch_id, f"{batch_id}" * 64)
        staged = []
        for topic in (BIG, SMALL):
            state = topics.state(topic)
            table = to_table(rows(500 + batch_id, 5, clock.now_ms()))
            with StagingWriter(topics.storage, f"staging/{state.topic_id}/{state.version}/") as writer:
                stage_records(
                    writer, table, partition_keys(table["key"], 2, 0),
                    Encoding.of(topics.config(state), clock.now_ms()),
                )  # fmt: skip
            staged.append(StagedTopic(topic, state.topic_id, dict(state.configs), tuple(writer.runs)))
        put_list(topics.storage, StagedList(identity, tuple(staged)))
        for each in staged[: 2 if batch_id == 0 else 1 if batch_id == 1 else 0]:
            chain = topics.chain(each.topic)
            epoch = take_over(chain, query).writer.epoch
            writer_of = TopicWriter(topics.storage, chain, topics.config(chain.newest()), clock, epoch)
            writer_of.append(by_partition(each.runs), identity)
            writer_of.close()


def _leave_uncommitted(topics: Topics) -> None:
    """Whole batches after the committed end of files, and in a file that no version names."""
    storage = topics.storage
    for topic in (BIG, SMALL):
        state = topics.state(topic)
        with StagingWriter(storage, f"staging/{state.topic_id}/{state.version}/") as writer:
            part = state.partitions[0]
            table = to_table([Row(b"x", NEVER, (), BEGIN_MS)] * 2)
            stage_records(
                writer, table, partition_keys(table["key"], 1, 0),
                Encoding.of(topics.config(state), BEGIN_MS),
            )  # fmt: skip
        data = bytearray(storage.read(writer.runs[0].key))
        data[:8] = part.high_watermark.to_bytes(8, "big")
        assert part.active_segment is not None
        assert isinstance(storage, PosixStorage)
        folder = storage.path(f"data/{state.topic_id}/0")
        name = part.active_segment.name
        grown = (folder / f"{name}.log").read_bytes() + data
        modified = (folder / f"{name}.log").stat().st_mtime_ns
        (folder / f"{name}.log").unlink()  # the view keeps its own name of the file as it was
        (folder / f"{name}.log").write_bytes(grown)
        os.utime(folder / f"{name}.log", ns=(modified, modified))
        (folder / f"{part.high_watermark:020d}.999.00000000.log").write_bytes(data)
    settle(Topics(storage, BrokerConfig(), topics.clock))


# What is done with a root.


def read(path: Path, now_ms: int) -> Contents:
    """Every record, where each log begins and ends, and what times find."""
    topics = topics_of(path, now_ms)
    return {name: _contents(topics, name) for name in NAMES}


def _contents(topics: Topics, name: str, *, with_times: bool = True) -> list[object]:
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


def plan(path: Path, now_ms: int) -> Outcome:
    topics = topics_of(path, now_ms)
    states = [topics.state(name) for name in NAMES]
    made = plan_topics(topics, states, now_ms)
    return encode_plan(made.model_copy(update={"root": ""}))


def _each_topic(
    path: Path, now_ms: int, act: Callable[[Topics, str], object], names: Sequence[str]
) -> dict[str, object]:
    """Do something to each topic, and then read it; a topic that is refused is an outcome like the others."""
    outcomes: dict[str, object] = {}
    for name in names:
        try:
            topics = topics_of(path, now_ms)
            topics.state(name)
            act(topics, name)
            outcomes[name] = _contents(topics_of(path, now_ms), name, with_times=False)
        except LogError as error:
            outcomes[name] = error
    return outcomes


def append_then_read(path: Path, now_ms: int, names: Sequence[str] = NAMES) -> Outcome:
    def act(topics: Topics, name: str) -> None:
        append(topics, name, rows(900, 4, now_ms), 0)

    return _each_topic(path, now_ms, act, names)


def compact_then_read(path: Path, now_ms: int, names: Sequence[str] = NAMES) -> Outcome:
    return _each_topic(path, now_ms, _compact, names)


def retain_then_read(path: Path, now_ms: int, names: Sequence[str] = NAMES) -> Outcome:
    def act(topics: Topics, name: str) -> None:
        if any(HELD in each for each in retain_topic(topics.chain(name), topics.broker).warnings):
            held.append(name)

    held: list[str] = []
    outcomes = _each_topic(path, now_ms, act, names)
    return outcomes | {f"{HELD} {name}": True for name in held}


def settle_then_compare(path: Path, now_ms: int, names: Sequence[str] = NAMES) -> Outcome:
    settle(topics_of(path, now_ms))
    return _files_of(path / "log")


def export_then_compare(path: Path, now_ms: int, names: Sequence[str] = NAMES) -> Outcome:
    """What `topics export` writes, of one topic after another."""
    outcomes: dict[str, object] = {}
    for name in names:
        out = path.parent / f"{path.name}.{name}.exported"
        try:
            with new_directory(out) as folder:
                export_topics(topics_of(path, now_ms), [name], folder, keep_epochs=True)
            outcomes[name] = _files_of(out)
        except LogError as error:
            outcomes[name] = error
        finally:
            shutil.rmtree(out, ignore_errors=True)
    return outcomes


def staged(path: Path, now_ms: int) -> Outcome:
    """Which topics wait for which micro-batch, as an ingest that starts again takes them, and what they get."""
    topics = topics_of(path, now_ms)
    found = []
    for each in pending_lists(topics.storage):
        check_list(each, topics, [BIG, SMALL])
        waiting = waiting_topics(each, topics)
        found += [(each.batch, topic.topic, [run.to_json() for run in topic.runs]) for topic in waiting]
    return found


def _files_of(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name not in ("meta.properties", ".lock"))
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


READING: dict[str, Callable[[Path, int], Outcome]] = {"read": read, "plan": plan, "staged": staged}
WRITING: dict[str, Callable[..., Outcome]] = {
    "append": append_then_read, "compaction": compact_then_read, "retention": retain_then_read,
    "settle": settle_then_compare, "topics export": export_then_compare,
}  # fmt: skip


# Damages.


def small_files(root: Path) -> dict[str, list[str]]:
    """Keys by kind."""
    kinds: dict[str, list[str]] = {}
    for path in sorted(root.rglob("*")):
        if path.is_file() and path.suffix not in (".log", ".batches", ".lock") and path.name != ".lock":
            key = str(path.relative_to(root))
            kinds.setdefault(_kind_of(root, key), []).append(key)
    return kinds


def _kind_of(root: Path, key: str) -> str:
    parts = key.split("/")
    if parts[0] == "meta":
        if parts[1].startswith("@"):
            return parts[1] + (f" {parts[2].split('.')[1]}" if parts[1] == "@transactions" else "")
        if len(parts) > 3:
            return parts[2]
        versions = sorted((root / "meta" / parts[1]).glob("*.json"))
        if versions[-1].name == parts[2]:
            return "version newest"
        return "version first" if versions[0].name == parts[2] else "version older"
    if parts[0] == "staging":
        return "staged list"
    if parts[0] == "data":
        return f"data {Path(key).suffix}"
    return f"log {Path(key).suffix or parts[-1]}" if re.match(r"[0-9]", parts[-1]) else f"log {parts[-1]}"


@dataclass(frozen=True)
class Damage:
    """What was done to a file. data: its bytes now, None: it was deleted."""

    kind: str
    key: str
    what: str
    data: bytes | None


def make_damage(root: Path, kinds: dict[str, list[str]], seed: int) -> Damage:
    """One random damage that changes something."""
    chance = random.Random(seed)
    while True:
        kind = chance.choice(sorted(kinds))
        key = chance.choice(kinds[kind])
        what, change = chance.choice(_CHANGES)
        data = (root / key).read_bytes()
        changed = change(chance, root, key, data, kinds)
        if changed is _GONE:
            return Damage(kind, key, what, None)
        if changed is not None and changed != data:
            return Damage(kind, key, what, changed)


_GONE = b"<deleted>"
_Change = Callable[[random.Random, Path, str, bytes, dict[str, list[str]]], bytes | None]


def _flip(chance: random.Random, root: Path, key: str, data: bytes, kinds: dict[str, list[str]]) -> bytes | None:
    if not data:
        return None
    changed = bytearray(data)
    changed[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _byte(chance: random.Random, root: Path, key: str, data: bytes, kinds: dict[str, list[str]]) -> bytes | None:
    if not data:
        return None
    changed = bytearray(data)
    changed[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(changed)


def _digit(chance: random.Random, root: Path, key: str, data: bytes, kinds: dict[str, list[str]]) -> bytes | None:
    places = [at for at, byte in enumerate(data) if 48 <= byte <= 57]
    if not places:
        return None
    changed = bytearray(data)
    changed[chance.choice(places)] = chance.randrange(48, 58)
    return bytes(changed)


def _field(chance: random.Random, root: Path, key: str, data: bytes, kinds: dict[str, list[str]]) -> bytes | None:
    """Change, remove or exchange a value of the JSON, and leave the digest as it is; or take the digest away, too."""
    try:
        document = json.loads(data.splitlines()[-2] if key.endswith(".jsonl") else data)
    except (ValueError, IndexError):
        return None
    if not isinstance(document, dict):
        return None
    name = chance.choice(sorted(document))
    how = chance.randrange(4)
    if how == 0:
        del document[name]
    elif how == 1:
        value = document[name]
        document[name] = value + 1 if isinstance(value, int) else [] if isinstance(value, list) else None
    elif how == 2:
        other = chance.choice(sorted(document))
        document[name], document[other] = document[other], document[name]
    else:
        document.pop("digest", None)
        if re.fullmatch(r"meta/[^@/]+/[0-9]+\.json", key):  # only of a version a parent tells that it had one
            document["format"] = 1
    return json.dumps(document, separators=(",", ":")).encode()


def _truncate(chance: random.Random, root: Path, key: str, data: bytes, kinds: dict[str, list[str]]) -> bytes | None:
    return data[: chance.choice((0, chance.randrange(len(data) + 1)))]


def _shift(chance: random.Random, root: Path, key: str, data: bytes, kinds: dict[str, list[str]]) -> bytes | None:
    """Bytes come in, or go."""
    at, count = chance.randrange(len(data) + 1), chance.randrange(1, 13)
    if chance.random() < 0.5:
        return data[:at] + chance.randbytes(count) + data[at:]
    return data[:at] + data[at + count :]


def _alike(chance: random.Random, root: Path, key: str, data: bytes, kinds: dict[str, list[str]]) -> bytes | None:
    """The content of another file of the kind."""
    keys = next(keys for keys in kinds.values() if key in keys)
    return (root / chance.choice(keys)).read_bytes()


def _older(chance: random.Random, root: Path, key: str, data: bytes, kinds: dict[str, list[str]]) -> bytes | None:
    """A version's content is that of an older one of its topic."""
    before = sorted(path for path in (root / key).parent.glob("*.json") if path.name < Path(key).name)
    return chance.choice(before[-5:]).read_bytes() if key.startswith("meta/") and before else None


def _of_another_topic(
    chance: random.Random, root: Path, key: str, data: bytes, kinds: dict[str, list[str]]
) -> bytes | None:
    name = Path(key).name
    others = sorted(path for path in root.rglob(name) if str(path.relative_to(root)) != key and path.is_file())
    return chance.choice(others).read_bytes() if others else None


def _delete(chance: random.Random, root: Path, key: str, data: bytes, kinds: dict[str, list[str]]) -> bytes | None:
    """Of a group, a decision or a list nothing else knows that it was there; of a version the view does."""
    return _GONE if re.match(r"(data|log)/|meta/[^@/]+/[0-9]+\.json", key) else None


_CHANGES: list[tuple[str, _Change]] = [
    ("bit", _flip), ("byte", _byte), ("digit", _digit), ("field", _field), ("truncation", _truncate),
    ("shift", _shift), ("swap", _alike), ("older", _older), ("other topic", _of_another_topic), ("deletion", _delete),
]  # fmt: skip


# Trials.


@dataclass
class Trial:
    """What came of one damage. outcomes: by what was done, `refused`, `same` or what is wrong. found: by `verify`."""

    damage: Damage
    seed: int
    outcomes: dict[str, str] = field(default_factory=dict)
    found: bool = False

    @property
    def wrong(self) -> dict[str, str]:
        return {name: outcome for name, outcome in self.outcomes.items() if outcome not in ("refused", "same")}

    @property
    def must_be_found(self) -> bool:
        """A deleted version, group or decision leaves nothing behind unless something else knows of it."""
        return self.damage.key.startswith(("meta/", "staging/")) and self.damage.data is not None


class Damages:
    """The root, what is done with it while it is whole, and the damages."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.root = folder / "whole"
        self.now_ms = build(self.root)
        self.kinds = small_files(self.root)
        self._expected: dict[str, Outcome] = {
            name: _outcome(act, self.root, self.now_ms) for name, act in READING.items()
        }
        for name, act in WRITING.items():
            with self._copy() as copy:
                self._expected[name] = _outcome(act, copy, self.now_ms)
        refused = [name for name, outcome in self._expected.items() if isinstance(outcome, LogError)]
        assert not refused, (refused, [str(self._expected[name]) for name in refused])
        self._read = read(self.root, self.now_ms)
        self._ids = {name: topics_of(self.root, self.now_ms).state(name).topic_id for name in NAMES}
        left = check_root(topics_of(self.root, self.now_ms), None, None, Options(), 1).findings
        assert not problems(left), [str(each) for each in problems(left)]

    def _copy(self) -> _Copy:
        return _Copy(self.root, self._folder / "copy")

    def trial(self, seed: int) -> Trial:
        """Damage a copy, and do everything with it."""
        damage = make_damage(self.root, self.kinds, seed)
        done = Trial(damage, seed)
        keeps_time = random.Random(seed + 1).random() < 0.5
        with self._copy() as copy:
            _apply(copy, damage, keeps_time=keeps_time)
            for name, act in READING.items():
                done.outcomes[name] = self._judged(name, _outcome(act, copy, self.now_ms), damage, keeps_time)
        concerned = self._concerned(damage.key)
        for name, act in WRITING.items():
            with self._copy() as copy:
                _apply(copy, damage, keeps_time=keeps_time)
                outcome = _outcome(functools.partial(act, names=concerned), copy, self.now_ms)
                done.outcomes[name] = self._judged(name, outcome, damage, keeps_time, concerned)
        with self._copy() as copy:
            _apply(copy, damage, keeps_time=keeps_time)
            done.found, done.outcomes["repair"] = self._repaired(copy)
        return done

    def _concerned(self, key: str) -> tuple[str, ...]:
        """The topics that a file may matter to: its own, or all."""
        ids = {self._ids[name]: name for name in NAMES}
        folders = key.split("/")
        own = {"meta": folders[1], "data": ids.get(folders[1]), "log": folders[1].rpartition("-")[0]}.get(folders[0])
        return (own,) if own in NAMES else NAMES

    def _judged(
        self, name: str, outcome: Outcome, damage: Damage, keeps_time: bool, concerned: Sequence[str] = NAMES
    ) -> str:
        expected = self._expected[name]
        if isinstance(expected, dict) and name != "settle":
            expected = {key: value for key, value in expected.items() if key in concerned}
        if isinstance(outcome, LogError):
            return "refused"
        if isinstance(outcome, Exception):
            return f"{type(outcome).__name__}: {outcome}"[:300]
        if isinstance(outcome, dict) and isinstance(expected, dict):
            other = {key for key in expected.keys() | outcome.keys() if outcome.get(key) != expected.get(key)}
            crashed = [
                each for each in outcome.values() if isinstance(each, Exception) and not isinstance(each, LogError)
            ]
            if crashed:
                return f"{type(crashed[0]).__name__}: {crashed[0]}"[:300]
            other -= {key for key in other if isinstance(outcome.get(key), LogError)}
            # A file of the view that rots and keeps its time is taken for the same, which `verify` finds out.
            other -= {damage.key.removeprefix("log/")} if name == "settle" and keeps_time else set()
            held = {key.removeprefix(f"{HELD} ") for key in outcome if key.startswith(HELD)}
            if damage.kind == "groups" and held and other == held | {f"{HELD} {key}" for key in held}:
                lost = [key for key in held if not _is_part(expected[key], outcome[key])]
                return f"held back, and yet less {lost}" if lost else "refused"
            if not other:
                return "refused" if any(isinstance(each, LogError) for each in outcome.values()) else "same"
            return f"other {sorted(other)[:3]}"
        if name == "plan" and damage.kind == "groups" and isinstance(outcome, bytes) and HELD.encode() in outcome:
            return "refused"
        return "same" if outcome == expected else "other"

    def _repaired(self, copy: Path) -> tuple[bool, str]:
        """Whether `verify` finds the damage, and what `verify --repair` leaves."""
        topics = topics_of(copy, self.now_ms)
        try:
            found = check_root(topics, None, None, Options(), 1)
            wrong = problems(found.findings)
            restored, left = [], wrong
            if wrong:
                restored = repair_documents(topics)
                again = check_root(topics, None, None, Options(), 1) if restored else found
                repair_root(topics, again)
                left = problems(check_root(topics, None, None, Options(), 1).findings)
        except LogError:
            return True, "refused"
        is_told = bool(left) or any(each.is_loss for each in restored)
        outcomes = set()
        for name, expected in self._read.items():
            try:
                contents = _contents(topics_of(copy, self.now_ms), name)
            except LogError:
                outcomes.add("refused" if is_told or not wrong else f"repair says that all is well, and {name} is not")
                continue
            if contents == expected:
                outcomes.add("same")
            elif any(NEVER in repr(each).encode() for each in contents):
                outcomes.add(f"made bytes of {name} visible that were never committed")
            elif is_told and _is_part(contents, expected):
                outcomes.add("refused")
            else:
                outcomes.add(f"other {name}, told: {is_told}, found: {bool(wrong)}")
        worst = sorted(outcomes - {"same", "refused"})
        return bool(wrong), worst[0] if worst else "refused" if "refused" in outcomes else "same"


def _is_part(contents: list[Any], expected: list[Any]) -> bool:
    """Whether no partition has a record that the other contents do not have."""

    def by_partition_of(found: list[Any]) -> dict[tuple[int, str], list[Any]]:
        parts = [each for each in found if isinstance(each, tuple)]
        return {(each[0], each[1]): each[4] for each in parts}

    whole = by_partition_of(expected)
    return all(
        all(record in whole.get(where, ()) for record in records)
        for where, records in by_partition_of(contents).items()
    )


class _Copy:
    """A copy of links, removed at the end. Every file that is changed is written anew or renamed, never in place."""

    def __init__(self, root: Path, copy: Path) -> None:
        self._root, self._path = root, copy

    def __enter__(self) -> Path:
        shutil.copytree(self._root, self._path, copy_function=os.link)
        return self._path

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._path)


def _apply(root: Path, damage: Damage, *, keeps_time: bool) -> None:
    path = root / damage.key
    modified = path.stat().st_mtime_ns
    path.unlink()
    if damage.data is not None:
        path.write_bytes(damage.data)
        if keeps_time:
            os.utime(path, ns=(modified, modified))


def _outcome(act: Callable[[Path, int], Outcome], path: Path, now_ms: int) -> Outcome:
    try:
        return act(path, now_ms)
    except LogError as error:
        return error
    except Exception as error:  # noqa: BLE001 - an outcome that no damage may have
        return error


def table(trials: list[Trial]) -> Iterator[str]:
    """By kind of file, and by kind of damage."""
    sorts: dict[str, Callable[[Trial], str]] = {
        "file": lambda trial: trial.damage.kind,
        "damage": lambda trial: trial.damage.what,
    }
    for title, of in sorts.items():
        yield f"{title:<42} damages  refused  same  WRONG  found  not found"
        for name in sorted({of(trial) for trial in trials}):
            chosen = [trial for trial in trials if of(trial) == name]
            refused = sum("refused" in trial.outcomes.values() and not trial.wrong for trial in chosen)
            wrong = sum(bool(trial.wrong) for trial in chosen)
            found = sum(trial.found for trial in chosen)
            yield (
                f"{name:<42} {len(chosen):7} {refused:8} {len(chosen) - refused - wrong:5} {wrong:6} {found:6}"
                f" {len(chosen) - found:10}"
            )
        yield ""
    acts = Counter((name, outcome if outcome in ("refused", "same") else "WRONG") for trial in trials
                   for name, outcome in trial.outcomes.items())  # fmt: skip
    for name in trials[0].outcomes if trials else ():
        counts = {what: acts[name, what] for what in ("refused", "same", "WRONG")}
        yield f"{name:<42} {'':7} {counts['refused']:8} {counts['same']:5} {counts['WRONG']:6}"


def failures(trials: list[Trial]) -> Iterator[str]:
    """What is wrong in each trial, with the seed that does it again."""
    for trial in trials:
        where = f"damage {trial.seed}: {trial.damage.what} of {trial.damage.key}"
        for name, outcome in trial.wrong.items():
            yield f"{where}: {name}: {outcome}"
        if trial.must_be_found and not trial.found:
            yield f"{where}: verify does not find it"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--damages", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=7, help="of the first damage; the others follow it")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="make no more after so long")
    parser.add_argument("--folder", type=Path, default=None, help="where the roots lie, such as a disk in memory")
    options = parser.parse_args()
    documents._UNDO_SECONDS = 0.3  # what cannot be undone is tried for so long
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        damages = Damages(Path(folder))
        counts = {kind: len(keys) for kind, keys in damages.kinds.items()}
        print(f"small files: {counts}")
        trials = []
        begun = time.monotonic()
        for number in range(options.damages):
            if time.monotonic() - begun > options.seconds:
                break
            trials.append(damages.trial(options.seed * 1_000_000 + number))
            for line in failures(trials[-1:]):
                print(line, flush=True)
    print(f"\n{len(trials)} damages, seed {options.seed}, {time.monotonic() - begun:.0f} s\n")
    print("\n".join(table(trials)))
    return 1 if any(True for _ in failures(trials)) else 0


if __name__ == "__main__":
    sys.exit(main())
