"""Tests that the logs of a broker are opened in the same way as by the broker. Also tests what the scheduled tasks and
the cleaning do with these logs.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from storage_engine.clock import ManualClock
from storage_engine.config.server_properties import read_server_properties
from storage_engine.errors import (
    ConfigError,
    ConflictError,
    CorruptionError,
    StorageAccessError,
    StorageError,
    StorageFullError,
)
from storage_engine.kafka_dir.upkeep.cleaning import Cleaning
from storage_engine.kafka_dir.upkeep.opening import BrokerLogs, Options
from storage_engine.kafka_dir.upkeep.running import run_once, run_until
from storage_engine.kafka_dir.upkeep.schedule import Task
from storage_engine.kafka_dir.upkeep.tasks import Tasks
from storage_engine.log.checkpoint import decode_offsets
from storage_engine.storage.storage_opening import open_directory
from tests.small_disks import needs_a_disk, small_disk
from tests.storage_engine.kafka_dir.upkeep.brokers_directory import (
    NOW_MS,
    Told,
    config_record,
    known,
    make_directory,
    partition_record,
    rows,
)
from tests.storage_engine.record_tables import to_rows

OLD = rows(60, age_ms=10_000)
"""Records that are ten seconds old."""
SHORT = {"retention.ms": "5000", "segment.bytes": "1024"}
COMPACT = {"cleanup.policy": "compact", "segment.bytes": "1024"}


class Manager:
    """A log manager on log directories, with a clock that stands still."""

    def __init__(self, *directories: Path, options: Options | None = None, **settings: object) -> None:
        file = directories[0].parent / "server.properties"
        lines = [f"log.dirs={','.join(map(str, directories))}"]
        lines += [f"{key.replace('_', '.')}={value}" for key, value in settings.items()]
        file.write_text("\n".join(lines))
        self.clock = ManualClock(NOW_MS)
        self.told = Told()
        self.opened = BrokerLogs(read_server_properties(file), options or Options(), self.clock, self.told)
        self.tasks = Tasks(self.opened.logs, self.clock, self.opened.managed, self.told)
        self.cleaning = Cleaning(self.opened.logs, self.tasks, self.clock, self.opened.managed, self.told)

    def once(self) -> None:
        run_once(lambda _: False, self.tasks, self.cleaning, cleans=True)
        self.opened.close()


def files(directory: Path) -> Mapping[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def logs(folder: Path) -> list[int]:
    return sorted(int(path.stem) for path in folder.glob("*.log"))


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.log"))


def offsets(directory: Path, file: str) -> dict[tuple[str, int], int]:
    return decode_offsets((directory / file).read_bytes(), file)


def crash(directory: Path) -> None:
    (directory / ".kafka_cleanshutdown").unlink()


def test_only_topics_with_known_settings_lose_records(tmp_path: Path) -> None:
    data = tmp_path / "data"
    make_directory(data, {"a": OLD, "b": OLD, "__consumer_offsets": OLD}, [*known("a", SHORT), *known("c")])
    before = files(data)
    manager = Manager(data, log_retention_ms=1)
    manager.once()
    after = files(data)
    assert logs(data / "a-0") == [60]
    kept = ("b-0/", "__consumer_offsets-0/", "__cluster_metadata-0/")
    assert {name: data for name, data in after.items() if name.startswith(kept)} == {
        name: data for name, data in before.items() if name.startswith(kept)
    }
    (kept_line,) = (line for line in manager.told.lines if "topic b" in line)
    assert kept_line == (
        f"{tmp_path}/server.properties: topic b: loaded, recovered and flushed, but neither retained nor compacted:"
        " __cluster_metadata has no topic of this name"
    )
    deletions = [line for line in manager.told.lines if "retention deletes" in line]
    assert all(line.startswith(f"{data}/a-0: retention deletes segment ") for line in deletions)
    assert len(deletions) == 9


def test_settings_that_were_changed_while_the_broker_ran_have_priority_over_the_file(tmp_path: Path) -> None:
    forever = config_record(4, "1", "log.retention.ms", "-1")
    make_directory(tmp_path / "data", {"a": OLD}, [*known("a", {"segment.bytes": "1024"}), forever])
    Manager(tmp_path / "data", log_retention_ms=1, node_id=1).once()
    assert logs(tmp_path / "data/a-0")[0] == 0
    Manager(tmp_path / "data", log_retention_ms=1).once()  # meta.properties names the node
    assert logs(tmp_path / "data/a-0")[0] == 0
    (tmp_path / "data/meta.properties").unlink()
    before = files(tmp_path / "data")
    with pytest.raises(ConfigError, match=r"the id of the node is not known, but .* has settings of single nodes"):
        Manager(tmp_path / "data", log_retention_ms=1)
    assert files(tmp_path / "data") == before
    Manager(tmp_path / "data", log_retention_ms=1, node_id=2).once()
    assert logs(tmp_path / "data/a-0") == [60]


def test_settings_that_a_broker_cannot_change_while_it_runs_have_no_effect_and_wrong_ones_are_refused(
    tmp_path: Path,
) -> None:
    static = config_record(4, "", "log.retention.hours", "1")
    make_directory(tmp_path / "data", {"a": OLD}, [*known("a", {"segment.bytes": "1024"}), static])
    manager = Manager(tmp_path / "data", log_retention_hours=-1)
    manager.clock.advance(10 * 3_600_000)
    manager.once()
    assert logs(tmp_path / "data/a-0")[0] == 0
    said = "__cluster_metadata-0 sets log.retention.hours; ignored, as by a broker that runs"
    assert f"{tmp_path}/server.properties: {said}" in manager.told.lines
    wrong = config_record(4, "", "log.retention.ms", "bogus")
    make_directory(tmp_path / "other", {"a": OLD}, [*known("a"), wrong])
    with pytest.raises(ConfigError, match=r"^__cluster_metadata-0, settings of brokers, log\.retention\.ms: expected"):
        Manager(tmp_path / "other")


def test_the_file_of_another_node_is_refused(tmp_path: Path) -> None:
    make_directory(tmp_path / "data", {"a": OLD})
    with pytest.raises(ConfigError, match=r"belongs to node 2, but .*meta\.properties belongs to node 1"):
        Manager(tmp_path / "data", node_id=2)
    Manager(tmp_path / "data", node_id=1).once()


def test_a_start_that_is_refused_changes_nothing(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for number, directory in enumerate((one, two), 1):
        make_directory(directory, {"a": OLD}, known("a", SHORT))
        (directory / ".kafka_cleanshutdown").write_text(f'{{"version":0,"brokerEpoch":{number}}}')
    shutil.copyfile(one / "meta.properties", two / "meta.properties")
    before = files(tmp_path)
    with pytest.raises(ConfigError, match="belongs to node 2"):
        Manager(one, node_id=2)
    with pytest.raises(ConfigError, match="topic a"):
        Manager(one, options=Options(given={"a": {"retention.ms": "never"}}))
    with pytest.raises(ConflictError, match="are the same partition"):
        Manager(one, two)
    with open_directory(two).hold_exclusive(".lock"), pytest.raises(StorageError, match="locked by this process"):
        Manager(one, two)
    (tmp_path / "server.properties").unlink()
    assert files(tmp_path) == before


def test_damaged_metadata_is_reported_and_no_topic_is_retained(tmp_path: Path) -> None:
    data = tmp_path / "data"
    make_directory(data, {"a": OLD}, [*known("a", SHORT), b"\x01\x02\x09"])
    manager = Manager(data)
    manager.once()
    assert [type(error) for error in manager.told.errors] == [CorruptionError]
    assert not manager.opened.complete
    assert logs(data / "a-0")[0] == 0


def test_records_above_the_brokers_high_watermark_are_neither_deleted_nor_compacted(tmp_path: Path) -> None:
    for name, replicas in (("one", (1,)), ("two", (1, 2))):
        topics = [*known("a", SHORT, replicas), *known("b", COMPACT, replicas)]
        make_directory(tmp_path / name / "data", {"a": OLD, "b": rows(60, keys=3)}, topics)
        checkpoint = tmp_path / name / "data/replication-offset-checkpoint"
        checkpoint.write_text("0\n2\na 0 20\nb 0 20\n")
        before = checkpoint.read_bytes()
        Manager(tmp_path / name / "data").once()
        assert checkpoint.read_bytes() == before
    one, two = tmp_path / "one/data", tmp_path / "two/data"
    assert (logs(one / "a-0"), logs(two / "a-0")) == ([60], [14, 21, 28, 35, 42, 49, 56])
    assert offsets(one, "cleaner-offset-checkpoint") == {("b", 0): 56}
    assert offsets(two, "cleaner-offset-checkpoint") == {("b", 0): 14}


@pytest.mark.parametrize("checkpoint", ["0\n0\n", None])
def test_a_replicated_partition_without_a_high_watermark_is_left_as_it_is(
    tmp_path: Path, checkpoint: str | None
) -> None:
    data = tmp_path / "data"
    topics = {"a": OLD, "b": rows(60, keys=3), "c": OLD}
    make_directory(data, topics, [*known("a", SHORT, (1, 2)), *known("b", COMPACT, (1, 2)), *known("c", SHORT)])
    file = data / "replication-offset-checkpoint"
    file.unlink() if checkpoint is None else file.write_text(checkpoint)
    before = {folder: logs(data / folder) for folder in ("a-0", "b-0")}
    manager = Manager(data)
    manager.once()
    assert {folder: logs(data / folder) for folder in before} == before
    assert logs(data / "c-0") == [60]
    assert file.exists() is (checkpoint is not None)
    assert (
        f"{data}: replication-offset-checkpoint has no line for 2 replicated partitions, so none of their records are"
        " deleted or compacted"
    ) in manager.told.lines


def test_nothing_is_created_that_only_a_broker_creates(tmp_path: Path) -> None:
    make_directory(tmp_path / "data", {"a": OLD})
    for name in ("meta.properties", "a-0/leader-epoch-checkpoint"):
        (tmp_path / "data" / name).unlink()
    manager = Manager(tmp_path / "data", tmp_path / "none")
    assert isinstance(manager.opened.logs.offline[str(tmp_path / "none")], StorageAccessError)
    manager.once()
    assert not (tmp_path / "none").exists()
    assert not (tmp_path / "data/meta.properties").exists()
    with pytest.raises(StorageAccessError, match="is not a directory"):
        Manager(tmp_path / "none")
    with pytest.raises(StorageAccessError, match="is not a directory"):
        Manager(tmp_path / "data", metadata_log_dir=tmp_path / "none")


def test_a_clean_stop_keeps_the_brokers_epoch_unless_records_were_lost(tmp_path: Path) -> None:
    data = tmp_path / "data"
    make_directory(data, {"a": OLD})
    clean = data / ".kafka_cleanshutdown"
    clean.write_text('{"version":0,"brokerEpoch":12}')
    manager = Manager(data)
    assert not clean.exists()
    manager.once()
    assert clean.read_text() == '{"version":0,"brokerEpoch":12}'
    clean.write_text("")
    Manager(data).once()
    assert clean.read_text() == '{"version":0,"brokerEpoch":-1}'


def test_partitions_that_are_not_opened_keep_their_lines_in_the_checkpoints(tmp_path: Path) -> None:
    data = tmp_path / "data"
    tiered = known("b", {"remote.storage.enable": "true"})
    make_directory(data, {"a": OLD, "b": OLD}, [*known("a"), *tiered])
    (data / f"c-0.{'a' * 32}-future").mkdir()
    for name in ("recovery-point", "log-start", "cleaner"):
        (data / f"{name}-offset-checkpoint").write_text("0\n2\nb 0 7\nc 0 8\n")
    before = {name: content for name, content in files(data).items() if name.startswith("b-0/")}
    Manager(data).once()
    assert {name: content for name, content in files(data).items() if name.startswith("b-0/")} == before
    others = {("b", 0): 7, ("c", 0): 8}
    assert offsets(data, "recovery-point-offset-checkpoint") == {("a", 0): 60, **others}
    assert offsets(data, "log-start-offset-checkpoint") == others
    assert offsets(data, "cleaner-offset-checkpoint") == others
    assert (data / ".kafka_cleanshutdown").exists()


@pytest.mark.parametrize("unopened", ["tiered", "future"])
def test_after_a_crash_logs_that_are_not_opened_leave_the_recovery_to_the_broker(tmp_path: Path, unopened: str) -> None:
    data = tmp_path / "data"
    settings = {"remote.storage.enable": "true"} if unopened == "tiered" else {}
    make_directory(data, {"a": OLD}, known("a", settings))
    if unopened == "future":
        (data / f"c-0.{'a' * 32}-future").mkdir()
    crash(data)
    Manager(data).once()
    assert not (data / ".kafka_cleanshutdown").exists()


def test_after_a_crash_all_logs_are_recovered_and_the_stop_is_clean(tmp_path: Path) -> None:
    data = tmp_path / "data"
    make_directory(data, {"a": OLD, "__consumer_offsets": OLD}, known("a"))
    crash(data)
    (data / "recovery-point-offset-checkpoint").unlink()
    for folder in ("a-0", "__consumer_offsets-0"):
        with max((data / folder).glob("*.log")).open("ab") as log:
            log.write(b"torn")
    manager = Manager(data)
    assert sorted(report.place for report in manager.opened.logs.reports if report.cuts) == [
        "__consumer_offsets-0",
        "a-0",
    ]
    manager.once()
    assert (data / ".kafka_cleanshutdown").exists()
    assert offsets(data, "recovery-point-offset-checkpoint") == {("a", 0): 60, ("__consumer_offsets", 0): 60}


def test_a_flush_comes_by_number_of_records_or_by_time(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"log_flush_scheduler_interval_ms": 1000, "log_initial_task_delay_ms": 1000}
    for name, messages in (("few", 61), ("many", 60)):
        make_directory(tmp_path / name / "data", {"a": OLD})
        crash(tmp_path / name / "data")
        (tmp_path / name / "data/recovery-point-offset-checkpoint").unlink()
        manager = Manager(
            tmp_path / name / "data", log_flush_interval_ms=3000, log_flush_interval_messages=messages, **settings
        )
        log = manager.opened.logs.log("a", 0)
        manager.clock.advance(1000)
        manager.tasks.run_due()
        assert log.recovery_point == (0 if name == "few" else 60)
        manager.clock.advance(2000)
        manager.tasks.run_due()
        assert log.recovery_point == 60
        manager.opened.close()


def test_deleted_files_stay_for_the_delay_and_folders_of_deleted_partitions_too(tmp_path: Path) -> None:
    data = tmp_path / "data"
    make_directory(data, {"a": OLD}, known("a", {**SHORT, "file.delete.delay.ms": "2000"}))
    (data / f"gone-0.{'a' * 32}-delete").mkdir()
    manager = Manager(data, log_segment_delete_delay_ms=3000)
    manager.tasks.run(Task.RETENTION)
    for ms, deleted, folders in ((1999, True, 1), (1, False, 1), (999, False, 1), (1, False, 0)):
        manager.clock.advance(ms)
        manager.tasks.run(Task.DELETION)
        assert bool(list((data / "a-0").glob("*.deleted"))) is deleted
        assert len(list(data.glob("*-delete"))) == folders
    manager.opened.close()


def test_one_run_deletes_at_once(tmp_path: Path) -> None:
    data = tmp_path / "data"
    make_directory(data, {"a": OLD}, known("a", SHORT))
    (data / f"gone-0.{'a' * 32}-delete").mkdir()
    Manager(data, options=Options(deletes_at_once=True)).once()
    assert not [path for path in data.rglob("*") if path.name.endswith(("deleted", "-delete"))]


def test_the_log_with_the_largest_dirty_ratio_is_compacted_first_and_only_if_its_ratio_is_reached(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    topics = {"a": rows(30, keys=3), "b": rows(60, keys=3), "c": rows(60, keys=3), "d": OLD}
    wanted = {**COMPACT, "min.cleanable.dirty.ratio": "0.7"}
    also = {**COMPACT, "cleanup.policy": "compact,delete", "retention.ms": "5000"}
    make_directory(data, topics, [*known("a", wanted), *known("b", wanted), *known("c", wanted), *known("d", also)])
    (data / "cleaner-offset-checkpoint").write_text("0\n2\na 0 7\nb 0 42\n")
    manager = Manager(data)
    order = [manager.cleaning.clean_next() for _ in range(4)]
    assert [each and each.topic for each in order] == ["c", "a", None, None]
    assert logs(data / "b-0") == [0, 7, 14, 21, 28, 35, 42, 49, 56]
    assert logs(data / "d-0") == [60]  # retention of a compacted topic runs between two compactions
    manager.opened.close()
    assert offsets(data, "cleaner-offset-checkpoint") == {("a", 0): 28, ("b", 0): 42, ("c", 0): 56}


def test_a_log_that_cannot_be_compacted_is_reported_once_and_the_others_are_compacted(tmp_path: Path) -> None:
    data = tmp_path / "data"
    make_directory(data, {"a": rows(60, keys=3), "b": rows(60, keys=3)}, [*known("a", COMPACT), *known("b", COMPACT)])
    before = size(data / "a-0")
    with (data / "a-0/00000000000000000007.log").open("r+b") as log:
        log.seek(100)
        log.write(b"?")
    manager = Manager(data)
    manager.once()
    assert [type(error) for error in manager.told.errors] == [CorruptionError]
    assert manager.told.errors[0].place.startswith(f"{data}/a-0/00000000000000000007.log at position ")
    assert size(data / "a-0") == before
    assert size(data / "b-0") < before / 3


def test_a_compaction_is_broken_off_at_the_end_without_a_trace(tmp_path: Path) -> None:
    data = tmp_path / "data"
    make_directory(data, {"a": rows(60, keys=3)}, known("a", COMPACT))
    manager = Manager(data)
    before = {name for name in files(data) if name.endswith(".log")}
    manager.cleaning.stop()
    directory = manager.opened.logs.open_directories[0]
    manager.cleaning._clean(directory, directory.found[1], lambda: False)
    assert f"{data}/a-0: the compaction was stopped, and nothing changed" in manager.told.lines
    assert manager.cleaning.clean_next() is None
    manager.opened.close()
    assert {name for name in files(data) if name.endswith((".log", ".cleaned", ".swap", ".deleted"))} == before


def test_tasks_run_at_their_times_and_threads_compact_until_the_run_must_stop(tmp_path: Path) -> None:
    data = tmp_path / "data"
    make_directory(data, {"a": rows(60, keys=3), "b": OLD}, [*known("a", COMPACT), *known("b", SHORT)])
    before = size(data / "a-0")
    manager = Manager(data, log_retention_check_interval_ms=10_000, log_initial_task_delay_ms=5_000)
    written: list[int] = []

    def stop(seconds: float) -> bool:
        manager.clock.advance(round(seconds * 1000))
        now_ms = manager.clock.now_ms() - NOW_MS
        written.append(now_ms)
        return now_ms >= 130_000 and any("compacted up to" in line for line in manager.told.lines)

    run_until(stop, manager.tasks, manager.cleaning, manager.clock, threads=2, backoff_ms=1)
    assert written[:130] == list(range(1000, 131_000, 1000))
    lines = [line for line in manager.told.lines if "recovery-point" in line]
    assert len(lines) == (len(written) - 1 - 5) // 60 + 1  # at 5 s, and then every minute
    assert logs(data / "b-0") == [60]
    assert size(data / "a-0") < before / 3
    manager.opened.close()


def test_the_error_of_a_thread_ends_the_run(tmp_path: Path) -> None:
    data = tmp_path / "data"
    make_directory(data, {"a": rows(60, keys=3)}, known("a", COMPACT))
    manager = Manager(data)

    def broken(place: str, what: str) -> None:
        raise BrokenPipeError

    manager.told.did = broken  # type: ignore[method-assign]
    with pytest.raises(BrokenPipeError):
        run_until(lambda _: False, manager.tasks, manager.cleaning, manager.clock, threads=1, backoff_ms=1)
    manager.opened.close()


def test_after_the_clock_was_set_back_the_tasks_run_again(tmp_path: Path) -> None:
    data = tmp_path / "data"
    make_directory(data, {"a": OLD})
    manager = Manager(data)
    for step_ms, written in ((60_000, 1), (60_000, 2), (-3_600_000, 2), (60_000, 3), (60_000, 4)):
        manager.clock.advance(step_ms)
        manager.tasks.run_due()
        assert manager.told.lines.count(f"{data}: wrote recovery-point-offset-checkpoint") == written
    manager.opened.close()


def test_one_run_that_must_stop_stops_its_compaction_and_does_nothing_more(tmp_path: Path) -> None:
    data = tmp_path / "data"
    make_directory(data, {"a": rows(60, keys=3), "b": rows(60, keys=3)}, [*known("a", COMPACT), *known("b", COMPACT)])
    before = {name: content for name, content in files(data).items() if name.endswith(".log")}
    manager = Manager(data)
    stopped: list[Path] = []

    def stop(_: float) -> bool:
        stopped.extend(data.rglob("*.cleaned"))
        return bool(stopped)

    assert not run_once(stop, manager.tasks, manager.cleaning, cleans=True)
    manager.opened.close()
    assert f"{data}/a-0: the compaction was stopped, and nothing changed" in manager.told.lines
    assert {name: content for name, content in files(data).items() if ".log" in name} == before
    assert (data / ".kafka_cleanshutdown").exists()


def test_several_directories_are_one_manager_and_the_metadata_may_be_elsewhere(tmp_path: Path) -> None:
    make_directory(tmp_path / "one", {"a": OLD})
    make_directory(tmp_path / "two", {"b": OLD})
    make_directory(tmp_path / "meta", {}, [*known("a", SHORT), *known("b", SHORT), partition_record("b", 1, (1,))])
    for name in ("two", "meta"):
        shutil.copyfile(tmp_path / "one/meta.properties", tmp_path / name / "meta.properties")
    manager = Manager(tmp_path / "one", tmp_path / "two", metadata_log_dir=tmp_path / "meta")
    with (
        pytest.raises(StorageError, match="locked by this process"),
        open_directory(tmp_path / "meta").hold_exclusive(".lock"),
    ):
        pass
    manager.once()
    assert logs(tmp_path / "one/a-0") == logs(tmp_path / "two/b-0") == [60]
    with open_directory(tmp_path / "meta").hold_exclusive(".lock"):
        pass


def full(disk: Path, free: int = 0) -> Path:
    """Take the space of a file system, except so many bytes. Returns the file that has it."""
    space = os.statvfs(disk)
    (disk / "filler").write_bytes(bytes(space.f_bavail * space.f_frsize - free))
    return disk / "filler"


@needs_a_disk
def test_retention_frees_a_full_disk_and_no_log_is_given_up(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1024**2) as disk:
        data = disk / "data"
        make_directory(data, {"a": OLD, "b": OLD}, [*known("a", SHORT), *known("b", SHORT)])
        manager = Manager(data)
        full(disk)
        manager.tasks.run(Task.RETENTION)
        assert [type(error) for error in manager.told.errors] == [StorageFullError] * 2
        assert logs(data / "a-0") == logs(data / "b-0") == [56]  # a segment must begin before the newest is deleted
        manager.told.errors.clear()
        manager.clock.advance(60_000)  # file.delete.delay.ms
        for task in (Task.DELETION, Task.RETENTION):
            manager.tasks.run(task)
        assert logs(data / "a-0") == logs(data / "b-0") == [60]
        assert (data / "a-0/leader-epoch-checkpoint").read_text() == "0\n1\n0 60\n"
        manager.opened.close()
        assert manager.told.errors == []
        deletions = [line for line in manager.told.lines if "retention deletes segment" in line]
        assert len(deletions) == len(set(deletions)) == 18


@needs_a_disk
def test_one_run_does_all_its_work_on_a_full_disk_if_retention_frees_space(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1024**2) as disk:
        data = disk / "data"
        make_directory(data, {"a": OLD, "b": OLD}, [*known("a", SHORT), *known("b", SHORT)])
        manager = Manager(data, options=Options(deletes_at_once=True))
        full(disk)
        manager.once()
        assert manager.told.errors == []
        assert logs(data / "a-0") == logs(data / "b-0") == [60]
        assert (data / ".kafka_cleanshutdown").exists()


@needs_a_disk
def test_leader_epochs_that_a_full_disk_did_not_take_are_cut_by_the_next_start(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1024**2) as disk:
        data = disk / "data"
        make_directory(data, {"a": OLD}, known("a", {"retention.bytes": "1000", "segment.bytes": "1024"}))
        manager = Manager(data)
        filler = full(disk)
        manager.tasks.run(Task.RETENTION)
        assert manager.told.errors == []
        start = logs(data / "a-0")[0]
        assert start > 0
        assert (data / "a-0/leader-epoch-checkpoint").read_text() == "0\n1\n0 0\n"
        manager.opened.logs.abandon()
        filler.unlink()
        again = Manager(data)
        log = again.opened.logs.log("a", 0)
        assert (data / "a-0/leader-epoch-checkpoint").read_text() == f"0\n1\n0 {start}\n"
        found = [row for part in log.read(start, log.log_end_offset) for row in to_rows(part)]
        assert [(row.key, row.value) for row in found] == [(row.key, row.value) for row in OLD[start:]]
        again.opened.close()


@needs_a_disk
def test_a_compaction_that_meets_a_full_disk_waits_and_other_logs_are_compacted_meanwhile(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 4 * 1024**2) as disk:
        data = disk / "data"
        make_directory(data, {"a": rows(600), "b": rows(60, keys=3)}, [*known("a", COMPACT), *known("b", COMPACT)])
        manager = Manager(data, log_cleaner_backoff_ms=15_000)
        before = size(data / "a-0")
        filler = full(disk, free=160 * 1024)  # enough for b
        order = [manager.cleaning.clean_next() for _ in range(3)]
        assert [each and each.topic for each in order] == ["a", "b", None]
        assert [type(error) for error in manager.told.errors] == [StorageFullError]
        assert not list(data.rglob("*.cleaned"))
        assert size(data / "a-0") == before
        filler.unlink()
        manager.clock.advance(14_999)
        assert manager.cleaning.clean_next() is None
        manager.clock.advance(1)
        assert manager.cleaning.clean_next() == ("a", 0)
        manager.opened.close()
        assert len(manager.told.errors) == 1
        assert set(offsets(data, "cleaner-offset-checkpoint")) == {("a", 0), ("b", 0)}


def test_if_the_metadata_is_not_where_the_file_says_the_log_directories_are_searched(tmp_path: Path) -> None:
    data, meta = tmp_path / "data", tmp_path / "meta"
    make_directory(
        data, {"a": OLD}, [*known("a", {"segment.bytes": "1024"}), config_record(2, "a", "retention.ms", "-1")]
    )
    meta.mkdir()
    manager = Manager(data, metadata_log_dir=meta, log_retention_ms=1)
    manager.once()
    assert f"{data}/__cluster_metadata-0: read up to offset 4" in manager.told.lines
    assert manager.opened.complete
    assert logs(data / "a-0")[0] == 0


@pytest.mark.parametrize("is_empty", [True, False])
def test_metadata_that_is_nowhere_was_not_read(tmp_path: Path, is_empty: bool) -> None:
    data, meta = tmp_path / "data", tmp_path / "meta"
    make_directory(data, {"a": OLD}, known("a", SHORT))
    shutil.rmtree(data / "__cluster_metadata-0")
    meta.mkdir()
    if is_empty:
        (meta / "__cluster_metadata-0").mkdir()
    manager = Manager(data, metadata_log_dir=meta, log_retention_ms=1)
    manager.once()
    (error,) = manager.told.errors
    expected = (
        "a snapshot or records" if is_empty else "metadata.log.dir has no __cluster_metadata-0, and no log directory"
    )
    assert expected in str(error)
    assert not manager.opened.complete
    assert logs(data / "a-0")[0] == 0
