"""Kafka log directories that are open for writing: loading, refusals, offline directories, schedules, closing."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from storage_engine.clock import ManualClock
from storage_engine.config.kafka_dir_keys import LogManagerConfig
from storage_engine.errors import (
    ConfigError,
    ConflictError,
    CorruptionError,
    ExitStatus,
    LockedError,
    StorageAccessError,
    StorageError,
    TopicExistsError,
    UnknownTopicError,
)
from storage_engine.kafka_dir.log_manager import LogManager
from storage_engine.kafka_dir.upkeep.tasks import Tasks
from storage_engine.log.checkpoint import decode_offsets
from tests.storage_engine.record_tables import Row, to_rows, to_table

HOME = Path(__file__).parents[3]
GOLDEN = Path(__file__).parents[2] / "golden"
NOW_MS = 1_700_000_000_000
TOPIC_ID = "AAAAAAAAQACAAAAAAAAAAA"


def rows(count: int, first: int = 0) -> list[Row]:
    return [Row(b"k%d" % n, b"v%d" % n, (), NOW_MS + n) for n in range(first, first + count)]


def offsets(directory: Path, file: str) -> dict[tuple[str, int], int]:
    return decode_offsets((directory / file).read_bytes(), file)


def manager(*directories: Path, clock: ManualClock | None = None, **broker: object) -> LogManager:
    keys = {key.replace("_", "."): value for key, value in broker.items()}
    config = LogManagerConfig.from_mapping({"log.segment.bytes": 4096, **keys})
    return LogManager(directories, config, clock=clock or ManualClock(NOW_MS))


def test_an_orderly_close_leaves_what_the_next_start_needs(tmp_path: Path) -> None:
    with manager(tmp_path) as logs:
        log = logs.create("orders", 0, TOPIC_ID)
        log.append_records(to_table(rows(10)))
        log.delete_records(4)
        assert not (tmp_path / ".kafka_cleanshutdown").exists()
    assert (tmp_path / ".kafka_cleanshutdown").exists()
    assert offsets(tmp_path, "recovery-point-offset-checkpoint") == {("orders", 0): 10}
    assert offsets(tmp_path, "replication-offset-checkpoint") == {("orders", 0): 10}
    assert offsets(tmp_path, "log-start-offset-checkpoint") == {("orders", 0): 4}
    assert (tmp_path / "orders-0/leader-epoch-checkpoint").read_text() == "0\n1\n0 4\n"
    assert (tmp_path / "orders-0/partition.metadata").read_text() == f"version: 0\ntopic_id: {TOPIC_ID}"
    identity = (tmp_path / "meta.properties").read_text()
    with manager(tmp_path) as logs:
        assert not (tmp_path / ".kafka_cleanshutdown").exists()
        log = logs.log("orders", 0)
        assert (log.log_start_offset, log.log_end_offset, log.topic_id) == (4, 10, TOPIC_ID)
        assert [row for part in log.read(4, 10) for row in to_rows(part)] == rows(6, 4)
        assert log.report.recovered == []
    assert (tmp_path / "meta.properties").read_text() == identity


def test_after_a_crash_what_lies_behind_the_recovery_point_is_read_again(tmp_path: Path) -> None:
    logs = manager(tmp_path)
    log = logs.create("orders", 0)
    log.append_records(to_table(rows(10)))
    logs.abandon()
    with manager(tmp_path) as again:
        assert again.log("orders", 0).report.recovered == [0]
        assert again.log("orders", 0).log_end_offset == 10
        assert again.exit_status is ExitStatus.DONE


def test_a_killed_process_leaves_a_log_that_is_whole(tmp_path: Path) -> None:
    writer = """if True:
        import sys
        from storage_engine.kafka_dir.log_manager import LogManager
        from storage_engine.config.kafka_dir_keys import LogManagerConfig
        from tests.storage_engine.record_tables import to_table
        from tests.storage_engine.kafka_dir.test_log_manager import rows
        logs = LogManager([sys.argv[1]], LogManagerConfig.from_mapping({"log.segment.bytes": 4096,
            "log.message.timestamp.after.max.ms": 2**62}))
        log = logs.create("orders", 0)
        while True:
            first = log.log_end_offset
            log.append_records(to_table(rows(7, first)))
            print(log.log_end_offset, flush=True)
    """
    with subprocess.Popen(
        [sys.executable, "-c", writer, tmp_path], cwd=HOME, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        ends = [int(process.stdout.readline()) for _ in range(80)]
        with pytest.raises(StorageError, match="locked by another program"):
            manager(tmp_path)
        os.kill(process.pid, signal.SIGKILL)
    with manager(tmp_path) as logs:
        log = logs.log("orders", 0)
        assert log.log_end_offset >= ends[-1]
        assert len(log.state().segments) > 2
        assert [row for part in log.read(0, ends[-1]) for row in to_rows(part)] == rows(ends[-1])


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with manager(tmp_path), pytest.raises(StorageError, match="locked by this process"):
        manager(tmp_path)
    manager(tmp_path).close()


def test_a_lock_that_cannot_be_taken_costs_only_its_directory(tmp_path: Path) -> None:
    (tmp_path / "one/.lock").mkdir(parents=True)
    with manager(tmp_path / "one", tmp_path / "two") as logs:
        (error,) = logs.offline.values()
        assert f"{tmp_path}/one/.lock" in str(error)
        assert logs.directories == (str(tmp_path / "two"),)
        logs.create("orders", 0)
        with pytest.raises(LockedError, match=r"two/\.lock: is already locked by this process"):
            manager(tmp_path / "one", tmp_path / "two")
    with pytest.raises(StorageAccessError, match=r"one/\.lock"):
        manager(tmp_path / "one")


def test_the_same_partition_in_two_directories_is_refused_by_both_names(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "orders-0").mkdir(parents=True)
    with pytest.raises(ConflictError, match=r"one/orders-0 and .*two/orders-0"):
        manager(tmp_path / "one", tmp_path / "two")
    shutil.rmtree(tmp_path / "two/orders-0")
    manager(tmp_path / "one", tmp_path / "two").close()


@pytest.mark.parametrize("written", ["version=1\ncluster.id=a\nnode.id=3\n", "version=0\nbroker.id=3\n"])
def test_a_directory_of_an_older_broker_keeps_its_meta_properties(tmp_path: Path, written: str) -> None:
    (tmp_path / "meta.properties").write_text(written)
    with manager(tmp_path) as logs:
        logs.create("orders", 0).append_records(to_table(rows(3)))
    assert (tmp_path / "meta.properties").read_text() == written


def test_directories_of_two_clusters_are_refused(tmp_path: Path) -> None:
    for name in ("one", "two"):
        manager(tmp_path / name).close()
    with pytest.raises(ConflictError, match="belongs to node 1 of cluster"):
        manager(tmp_path / "one", tmp_path / "two")


def test_a_directory_that_cannot_be_used_goes_offline_and_the_others_go_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    with manager(tmp_path / "file", tmp_path / "good") as logs:
        assert logs.directories == (str(tmp_path / "good"),)
        assert isinstance(logs.offline[str(tmp_path / "file")], StorageAccessError)
        assert logs.exit_status is ExitStatus.PARTIAL
    with pytest.raises(StorageAccessError):
        manager(tmp_path / "file")


@pytest.mark.parametrize(
    ("name", "error"),
    [("no partition", StorageAccessError), ("recovery-point-offset-checkpoint", CorruptionError)],
)
def test_what_a_broker_stops_over_puts_one_directory_offline(tmp_path: Path, name: str, error: type[Exception]) -> None:
    bad = tmp_path / "bad"
    bad.mkdir()
    if error is CorruptionError:
        (bad / name).write_text("0\n2\nonly 0 1\n")
    else:
        (bad / name).mkdir()
    with manager(bad, tmp_path / "good") as logs:
        assert isinstance(logs.offline[str(bad)], error)
    with pytest.raises(error):
        manager(bad)


def test_new_partitions_go_where_there_are_the_fewest(tmp_path: Path) -> None:
    with manager(tmp_path / "one", tmp_path / "two") as logs:
        for number in range(4):
            logs.create("orders", number)
        assert [Path(logs.directory_of("orders", number)).name for number in range(4)] == ["one", "two"] * 2
        with pytest.raises(TopicExistsError):
            logs.create("orders", 3)
    with manager(tmp_path / "one", tmp_path / "two") as logs:
        assert [each.folder for each in logs.partitions] == [f"orders-{number}" for number in range(4)]


def test_a_deleted_partition_stays_for_a_while_under_another_name(tmp_path: Path) -> None:
    clock = ManualClock(NOW_MS)
    with manager(tmp_path, clock=clock) as logs:
        tasks = Tasks(logs, clock)
        logs.create("orders", 0).append_records(to_table(rows(3)))
        logs.delete("orders", 0)
        assert [path.name for path in tmp_path.glob("orders-0*")] == [
            path.name for path in tmp_path.glob("orders-0.*-delete")
        ]
        with pytest.raises(UnknownTopicError):
            logs.log("orders", 0)
        assert logs.create("orders", 0).log_end_offset == 0
        clock.advance(59_999)
        tasks.run_due()
        assert list(tmp_path.glob("*-delete"))
        clock.advance(1)
        tasks.run_due()
        assert not list(tmp_path.glob("*-delete"))


def test_a_deleted_partition_of_a_topic_with_the_longest_name_has_a_name_that_a_broker_accepts(tmp_path: Path) -> None:
    with manager(tmp_path) as logs:
        logs.create("o" * 249, 7)
        logs.delete("o" * 249, 7)
        (name,) = (path.name for path in tmp_path.glob("o*"))
        assert re.fullmatch("o{213}-7[.][0-9a-f]{32}-delete", name)
    with manager(tmp_path) as logs:
        assert not logs.partitions


@pytest.mark.parametrize("name", ["orders-backup-delete", "orders-0-delete", "orders.a-delete", "orders-x.a-future"])
def test_a_folder_with_the_suffix_but_not_the_name_of_a_deleted_partition_is_not_deleted(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "precious").write_text("mine")
    with pytest.raises(StorageAccessError, match=rf"{name}: is not a partition's folder.*Move this folder away"):
        manager(tmp_path)
    assert (tmp_path / name / "precious").read_text() == "mine"


def test_what_a_broker_put_aside_is_left_alone(tmp_path: Path) -> None:
    for suffix in ("future", "stray", "delete"):
        (tmp_path / f"orders-0.{'a' * 32}-{suffix}").mkdir()
    with manager(tmp_path) as logs:
        assert logs.partitions == ()
        Tasks(logs, ManualClock(NOW_MS)).run_due()
    assert sorted(path.name.rpartition("-")[2] for path in tmp_path.glob("orders-*")) == ["future", "stray"]


def test_checkpoints_and_flushes_come_when_they_are_due(tmp_path: Path) -> None:
    clock = ManualClock(NOW_MS)
    flushes = {"log_flush_scheduler_interval_ms": 1000, "log_flush_interval_ms": 3000}
    with manager(tmp_path, clock=clock, log_initial_task_delay_ms=1000, **flushes) as logs:
        tasks = Tasks(logs, clock)
        log = logs.create("orders", 0)
        log.append_records(to_table(rows(5)))
        clock.advance(999)
        tasks.run_due()
        assert not list(tmp_path.glob("*-checkpoint"))
        clock.advance(1)
        tasks.run_due()
        assert log.recovery_point == 0
        assert offsets(tmp_path, "recovery-point-offset-checkpoint") == {("orders", 0): 0}
        assert offsets(tmp_path, "replication-offset-checkpoint") == {("orders", 0): 5}
        clock.advance(1999)
        tasks.run_due()
        assert log.recovery_point == 0
        clock.advance(1)
        tasks.run_due()
        assert log.recovery_point == 5
        assert offsets(tmp_path, "recovery-point-offset-checkpoint") == {("orders", 0): 0}
        clock.advance(58_000)
        tasks.run_due()
        assert offsets(tmp_path, "recovery-point-offset-checkpoint") == {("orders", 0): 5}


def test_retention_runs_on_schedule_by_a_topics_own_settings(tmp_path: Path) -> None:
    clock = ManualClock(NOW_MS)
    topics = {"short": {"retention.ms": 1000, "segment.bytes": 1024}}
    with LogManager([tmp_path], LogManagerConfig(initial_task_delay_ms=300_000), topics, clock) as logs:
        tasks = Tasks(logs, clock)
        for topic in ("short", "long"):
            logs.create(topic, 0)
            for first in range(0, 300, 10):
                logs.log(topic, 0).append_records(to_table(rows(10, first)))
        clock.advance(300_000)
        tasks.run_due()
        assert logs.log("short", 0).log_start_offset == 300
        assert logs.log("long", 0).log_start_offset == 0
        assert list((tmp_path / "short-0").glob("*.log.deleted"))
        clock.advance(60_000)
        tasks.run_due()
        assert not list((tmp_path / "short-0").glob("*.deleted"))
        logs.configure("long", {"retention.ms": 1000})
        clock.advance(240_000)
        tasks.run_due()
        assert logs.log("long", 0).log_start_offset == 300
        with pytest.raises(ConfigError, match=r"topic long, flush\.ms"):
            logs.configure("long", {"flush.ms": -1})


def test_a_directory_that_fails_later_goes_offline(tmp_path: Path) -> None:
    clock = ManualClock(NOW_MS)
    logs = manager(tmp_path / "bad", tmp_path / "good", clock=clock)
    tasks = Tasks(logs, clock)
    logs.create("orders", 0)
    shutil.rmtree(tmp_path / "bad")
    (tmp_path / "bad").write_text("a file now")
    clock.advance(60_000)
    tasks.run_due()
    assert list(logs.offline) == [str(tmp_path / "bad")]
    assert logs.partitions == ()
    logs.close()
    assert (tmp_path / "good/.kafka_cleanshutdown").exists()


def test_damage_that_was_met_shows_in_the_exit_status(tmp_path: Path) -> None:
    logs = manager(tmp_path)
    log = logs.create("orders", 0)
    for first in range(3):
        log.append_records(to_table(rows(1, first)))
    log.flush()
    place = log.locate(1)
    logs.abandon()
    assert place is not None
    path = tmp_path / "orders-0/00000000000000000000.log"
    data = bytearray(path.read_bytes())
    data[place.position + 70] ^= 1
    path.write_bytes(data)
    with manager(tmp_path) as logs:
        assert logs.exit_status is ExitStatus.PARTIAL
        assert [row.key for part in logs.log("orders", 0).read(0, 3) for row in to_rows(part)] == [b"k0", b"k2"]


@pytest.mark.parametrize("name", ["multi", "idem", "txn", "delrec", "retention_bytes", "compact.after1", "empty"])
def test_a_brokers_directory_is_opened_and_closed_without_a_change(tmp_path: Path, name: str) -> None:
    shutil.copytree(GOLDEN / name / "data", tmp_path / "data")
    folders = [path for path in (tmp_path / "data").iterdir() if path.is_dir()]
    before = {path: path.read_bytes() for folder in folders for path in folder.iterdir()}
    with LogManager([tmp_path / "data"], clock=ManualClock(NOW_MS)) as logs:
        assert not any(report.rebuilt or report.cuts for report in logs.reports)
        ends = {each: logs.log(*each).log_end_offset for each in logs.partitions}
    assert {path: path.read_bytes() for folder in folders for path in folder.iterdir()} == before
    lines = offsets(tmp_path / "data", "recovery-point-offset-checkpoint")
    assert lines == ends
    given = offsets(GOLDEN / name / "data", "recovery-point-offset-checkpoint")
    assert lines.items() <= given.items()


def test_a_brokers_directory_is_appended_to(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "multi/data", tmp_path / "data")
    with LogManager([tmp_path / "data"], clock=ManualClock(NOW_MS)) as logs:
        log = logs.log("multi", 1)
        end = log.log_end_offset
        log.append_records(to_table(rows(3)))
    with LogManager([tmp_path / "data"], clock=ManualClock(NOW_MS)) as logs:
        log = logs.log("multi", 1)
        assert [row for part in log.read(end, end + 3) for row in to_rows(part)] == rows(3)
        found = np.concatenate([part["offset"].to_numpy() for part in log.read(0, end + 3)])
        assert found.tolist() == list(range(end + 3))


@pytest.mark.parametrize(
    "linked", ["orders-0", "orders-0/00000000000000000000.log", "orders-0/00000000000000000000.index"]
)
def test_a_symbolic_link_is_followed_as_by_a_broker(tmp_path: Path, linked: str) -> None:
    plain, other, elsewhere = tmp_path / "plain", tmp_path / "other", tmp_path / "elsewhere"
    with manager(plain) as logs:
        logs.create("orders", 0, TOPIC_ID).append_records(to_table(rows(300)))
    (plain / ".kafka_cleanshutdown").unlink()  # as after a crash
    shutil.copytree(plain, other)
    (other / linked).rename(elsewhere)
    (other / linked).symlink_to(elsewhere)
    for directory in (plain, other):
        with manager(directory) as logs:
            log = logs.log("orders", 0)
            assert [row for part in log.read(0, 400) for row in to_rows(part)] == rows(300)
            log.append_records(to_table(rows(7, 300)))
    assert (other / linked).is_symlink()
    files = [{path.name: path.read_bytes() for path in (each / "orders-0").iterdir()} for each in (plain, other)]
    assert files[0] == files[1]


@pytest.mark.parametrize("linked", ["orders-0", "orders-0/00000000000000000000.log"])
def test_a_link_to_a_disk_that_is_not_mounted_is_refused_and_changes_nothing(tmp_path: Path, linked: str) -> None:
    with manager(tmp_path / "logs") as logs:
        logs.create("orders", 0, TOPIC_ID).append_records(to_table(rows(10)))
    link = tmp_path / "logs" / linked
    link.rename(tmp_path / "moved")
    link.symlink_to(tmp_path / "disk")
    with pytest.raises(StorageAccessError, match=f"{link}: is a symbolic link to a path that does not exist"):
        manager(tmp_path / "logs")
    assert link.is_symlink()
    link.unlink()
    (tmp_path / "moved").rename(link)
    with manager(tmp_path / "logs") as logs:
        assert [row for part in logs.log("orders", 0).read(0, 10) for row in to_rows(part)] == rows(10)


def test_a_deleted_partition_behind_a_link_takes_its_files_and_the_link_with_it(tmp_path: Path) -> None:
    clock = ManualClock(NOW_MS)
    with manager(tmp_path / "logs") as logs:
        logs.create("orders", 0, TOPIC_ID).append_records(to_table(rows(10)))
    (tmp_path / "logs/orders-0").rename(tmp_path / "disk")
    (tmp_path / "logs/orders-0").symlink_to(tmp_path / "disk")
    with manager(tmp_path / "logs", clock=clock) as logs:
        logs.delete("orders", 0)
        assert (tmp_path / "disk/00000000000000000000.log").exists()
        clock.advance(60_000)
        Tasks(logs, clock).run_due()
    assert not list((tmp_path / "logs").glob("orders*"))
    assert not list((tmp_path / "disk").iterdir())
