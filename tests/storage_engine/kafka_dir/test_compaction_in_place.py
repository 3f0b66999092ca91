"""Compaction of a plain Kafka directory: the same files as from Kafka's cleaner, and the recovery after a kill."""

from __future__ import annotations

import copy
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import cache
from itertools import count
from pathlib import Path

import pytest

from storage_engine.clock import ManualClock
from storage_engine.kafka_dir.log_manager import LogManager
from storage_engine.kafka_dir.partition_log import PartitionLog
from storage_engine.kafka_dir.upkeep.schedule import Task
from storage_engine.kafka_dir.upkeep.tasks import Tasks
from storage_engine.log.isolation import Isolation
from tests.storage_engine.cleaner.test_golden import batches
from tests.storage_engine.kafka_dir.unreliable_directory import StoppedError, UnreliableDirectory, topic_config
from tests.storage_engine.record_tables import Row, to_table

GOLDEN = Path(__file__).parents[2] / "golden"
NOW_MS = 1_700_000_000_000
FOLDER = "orders-0"
LEFT_ALONE = ("leader-epoch-checkpoint", "partition.metadata")
OVERRIDES = {"segment.bytes": 1024, "cleanup.policy": "compact", "index.interval.bytes": 100, "retention.ms": -1}


def topic_overrides(file: Path) -> Mapping[str, str]:
    """A topic.config: {key=value, key=value}, where a value may hold a comma."""
    words: list[str] = []
    for part in file.read_text().strip().strip("{}").split(","):
        if "=" in part:
            words.append(part.strip())
        else:
            words[-1] += f",{part}"
    return dict(word.split("=", 1) for word in words)


@pytest.mark.parametrize("topic", ["compact", "compact_delete"])
@pytest.mark.parametrize(("before", "after"), [("before", "after1"), ("before2", "after2h")])
def test_a_brokers_directory_is_compacted_to_the_files_of_kafkas_cleaner(
    tmp_path: Path, topic: str, before: str, after: str
) -> None:
    shutil.copytree(GOLDEN / f"{topic}.{before}/data", tmp_path / "data")
    clock = ManualClock(int((GOLDEN / f"{topic}.{after}/clock").read_text().split("=")[1]))
    overrides = {topic: topic_overrides(GOLDEN / f"{topic}.{before}/topic.config")}
    with LogManager([tmp_path / "data"], topics=overrides, clock=clock) as logs:
        logs.compact()
        clock.advance(60_000)
        Tasks(logs, clock).run(Task.DELETION)
    folder = tmp_path / "data" / f"{topic}-0"
    expected = GOLDEN / f"{topic}.{after}/data"
    kinds = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
    names = {path.name for path in (expected / f"{topic}-0").iterdir() if path.suffix in kinds}
    assert {path.name for path in folder.iterdir() if path.name not in LEFT_ALONE} == names
    for name in names:
        found, wanted = (folder / name).read_bytes(), (expected / f"{topic}-0" / name).read_bytes()
        # Two versions of the zstd library may pick different codes: as many bytes, and the same records.
        assert len(found) == len(wanted), name
        assert found == wanted or (name.endswith(".log") and batches(found) == batches(wanted)), name
    lines = (tmp_path / "data/cleaner-offset-checkpoint").read_text()
    assert f"{topic} 0 " in lines
    assert lines.splitlines()[2] in (expected / "cleaner-offset-checkpoint").read_text().splitlines()


def open_log(storage: UnreliableDirectory, *, clean: bool = False) -> PartitionLog:
    config = topic_config(OVERRIDES)
    return PartitionLog.open(storage, FOLDER, config, ManualClock(NOW_MS), clean=clean)


@cache
def _dirty() -> UnreliableDirectory:
    storage = UnreliableDirectory()
    log = open_log(storage)
    for number in range(60):
        log.append_records(to_table([Row(b"key %d" % (number % 5), b"%d" % number, (), NOW_MS)]))
    log.roll()
    log.close()
    return storage


def dirty() -> tuple[UnreliableDirectory, PartitionLog]:
    """A log in which each of five keys was written twelve times."""
    storage = copy.deepcopy(_dirty())
    return storage, open_log(storage, clean=True)


def values(log: PartitionLog) -> dict[bytes, bytes]:
    """The newest value of each key, as readers of committed records see it."""
    found: dict[bytes, bytes] = {}
    for part in log.read(log.log_start_offset, log.log_end_offset, isolation=Isolation.READ_COMMITTED):
        found |= dict(zip(part["key"].to_pylist(), part["value"].to_pylist(), strict=True))
    return found


NEWEST = {b"key %d" % (number % 5): b"%d" % number for number in range(55, 60)}


def test_only_the_newest_value_of_a_key_stays_and_the_old_files_go_later() -> None:
    storage, log = dirty()
    end = log.log_end_offset
    before = log.state().size
    cleaned = log.compact()
    assert cleaned is not None
    assert (cleaned.records_before, cleaned.records_after) == (60, 5)
    assert log.state().size < before / 5
    assert values(log) == NEWEST
    assert (log.log_end_offset, log.first_dirty_offset) == (end, end)
    assert log.compact() is None
    assert [name for name in storage.files() if name.endswith(".log.deleted")]
    log.close()
    again = open_log(storage, clean=True)
    assert not [name for name in storage.files() if name.endswith(".deleted")]
    assert values(again) == NEWEST
    assert again.log_end_offset == end


def killed_and_opened(
    first: UnreliableDirectory, open_: Callable[..., PartitionLog], every: int = 1
) -> Iterator[tuple[str, UnreliableDirectory, PartitionLog]]:
    """Kill the compaction of a log before each step, or before every n-th step, and at last let it end. Every second time,
    there is a power cut, too.

    Yields a text about the trial, the log's directory, and the log after it was opened again.
    """
    for stops in count(step=every):
        storage = copy.deepcopy(first)
        log = open_(storage, clean=True)
        storage.steps_left = stops
        try:
            log.compact()
        except StoppedError:
            finished = False
        else:
            finished = True
        storage.steps_left = None
        log.abandon()
        if stops % 2:
            storage.cut_power(random.Random(stops))
        yield f"stopped before step {stops}", storage, open_(storage, clean=False)
        if finished:
            assert stops > 10 * every
            return


def test_a_kill_between_any_two_changes_of_files_leaves_the_old_segments_or_the_new() -> None:
    for place, storage, log in killed_and_opened(_dirty(), open_log):
        assert values(log) == NEWEST, place
        assert log.log_end_offset == 60
        assert not log.report.cuts
        assert not [name for name in storage.files() if name.endswith((".cleaned", ".swap", ".deleted"))]
        log.compact()
        assert values(log) == NEWEST, place


@cache
def _with_transactions() -> tuple[UnreliableDirectory, dict[bytes, bytes]]:
    """A broker's log with transactions, as it was closed, and the newest value of each key that was committed."""
    storage = UnreliableDirectory()
    storage.make_folder("txn-0")
    for path in (GOLDEN / "txn/data/txn-0").iterdir():
        with closing(storage.open(f"txn-0/{path.name}")) as file:
            file.write_at(0, [path.read_bytes()])
            file.sync()
    storage.sync_names("txn-0")
    return storage, values(open_transactions(copy.deepcopy(storage)))


def open_transactions(storage: UnreliableDirectory, *, clean: bool = True) -> PartitionLog:
    overrides = OVERRIDES | {"segment.bytes": 16384, "index.interval.bytes": 512}
    return PartitionLog.open(storage, "txn-0", topic_config(overrides), ManualClock(NOW_MS), clean=clean)


def test_a_kill_while_transactions_are_compacted_shows_no_aborted_record() -> None:
    first, newest = _with_transactions()
    for place, storage, log in killed_and_opened(first, open_transactions, every=11):  # some thirty places
        assert values(log) == newest, place
        assert log.log_end_offset == 884
        names = storage.files()
    assert any(name.endswith(".txnindex") for name in names)
    assert sum(len(data) for name, data in names.items() if name.endswith(".log")) < 30_000
