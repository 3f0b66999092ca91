"""`lakelog log-manager`: its output, its errors for mistakes of the user, and processes that are stopped or killed."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from lakelog.cli.clean.topic_config_file import read_topic_configs
from storage_engine.clock import ManualClock
from storage_engine.kafka_dir.log_directory import LogDirectory
from storage_engine.kafka_dir.log_manager import LogManager
from storage_engine.record.batch import scan_batches
from tests.small_disks import needs_a_disk, small_disk
from tests.storage_engine.kafka_dir.upkeep.brokers_directory import NOW_MS, known, make_directory, rows
from tests.storage_engine.record_tables import to_rows

HOME = Path(__file__).parents[4]
GOLDEN = HOME / "tests/golden"
COMPACT = {"cleanup.policy": "compact", "segment.bytes": "1024", "file.delete.delay.ms": "0"}
KEPT = "loaded, recovered and flushed, but neither retained nor compacted"
OLD = rows(60, age_ms=10_000)


def properties(tmp_path: Path, *directories: Path, text: str = "") -> str:
    file = tmp_path / "server.properties"
    file.write_text(f"log.dirs={','.join(map(str, directories))}\n{text}")
    return str(file)


def topic_config(tmp_path: Path, text: str) -> str:
    (tmp_path / "topics.yaml").write_text(text)
    return str(tmp_path / "topics.yaml")


def untimed(out: str) -> list[str]:
    """The lines without their times, which are those of today."""
    lines = [re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (.*)", line) for line in out.splitlines()]
    return [line[1] for line in lines if line is not None]


def contents(directory: Path) -> dict[str, bytes]:
    names = (".log", ".index", ".timeindex", ".snapshot", ".txnindex")
    return {str(path): path.read_bytes() for path in sorted(directory.rglob("*")) if path.suffix in names}


def records(directory: Path) -> list[tuple[bytes | None, bytes | None]]:
    directory_ = LogDirectory(directory)
    reader = directory_.reader(directory_.inspect(directory_.partitions_of("a")[0]))
    return [(row.key, row.value) for part in reader.read(reader.partition.log_start_offset) for row in to_rows(part)]


def test_each_action_is_a_line(lakelog, tmp_path) -> None:
    data = tmp_path / "data"
    make_directory(data, {"a": rows(60, keys=3), "b": OLD}, [*known("a", COMPACT), *known("c")])
    file = properties(tmp_path, data, text="log.retention.ms=1\nlisteners=PLAINTEXT://:9092\nprocess.roles=broker\n")
    ended = lakelog("log-manager", "--config", file, "--once")
    assert (ended.status, ended.err) == (0, "")
    assert untimed(ended.out) == [
        f"{file}: ignored, because these keys have no effect on logs, or are misspelt: listeners, process.roles",
        f"{data}/__cluster_metadata-0: read up to offset 7",
        f"{file}: topic __cluster_metadata: not opened: KRaft alone opens it",
        f"{file}: topic a: retained and compacted: settings from __cluster_metadata",
        f"{file}: topic b: {KEPT}: __cluster_metadata has no topic of this name",
        f"{data}: opened, was closed cleanly, has 2 open logs",
        f"{data}/a-0: loaded, offsets 0 to 60",
        f"{data}/b-0: loaded, offsets 0 to 60",
        f"{data}/a-0: compacted up to offset 56, 56 records to 3, 7.6 kB in 8 segments to 408 B in 8 segments",
        f"{data}: wrote cleaner-offset-checkpoint",
        f"{data}: wrote recovery-point-offset-checkpoint",
        f"{data}: wrote log-start-offset-checkpoint",
        f"{data}/a-0: deleted 24 files",
        f"{data}: closed, wrote .kafka_cleanshutdown",
    ]  # fmt: skip


def test_lines_are_objects_if_json_is_asked_for(lakelog, tmp_path) -> None:
    data = tmp_path / "data"
    make_directory(data, {"a": OLD})
    file = properties(tmp_path, data)
    command = ("log-manager", "--config", file, "--once")
    text = lakelog(*command)
    ended = lakelog(*command, "--log-format", "json")
    assert (text.status, ended.status, text.err, ended.err) == (0, 0, "", "")
    messages = [
        {"job": "log-manager", "level": "info", "message": line}
        for line in untimed(text.out)
        if not line.endswith(("wrote log-start-offset-checkpoint", "wrote recovery-point-offset-checkpoint"))
    ]
    assert f"{data}: opened, was closed cleanly, has 1 open log" in [each["message"] for each in messages]
    assert [each for each in objects(ended.out) if "-offset-checkpoint" not in each["message"]] == messages

    (data / "a-0/00000000000000000000.log").write_bytes(b"damaged, and longer than the head of a batch" * 2)
    for name in (".kafka_cleanshutdown", "recovery-point-offset-checkpoint"):
        (data / name).unlink()
    ended = lakelog(*command, "--log-format", "json")
    assert ended.status == 4
    errors = objects(ended.err)
    assert errors
    assert {(each["job"], each["level"]) for each in errors} == {("log-manager", "error")}
    assert "00000000000000000000.log" in errors[0]["message"]

    ended = lakelog("log-manager", "--config", str(tmp_path / "none"), "--once", "--log-format", "json")
    text = lakelog("log-manager", "--config", str(tmp_path / "none"), "--once")
    assert (ended.status, ended.out) == (text.status, "") == (1, "")
    (error,) = objects(ended.err)
    assert text.err == f"lakelog: {error['message']}\n"


def objects(text: str) -> list[dict[str, str]]:
    """The lines without their times, which are those of today."""
    found = [json.loads(line) for line in text.splitlines()]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", each.pop("time")) for each in found)
    return found


@pytest.mark.parametrize("name", ["multi", "idem", "txn", "delrec", "retention_bytes", "compact.before", "empty"])
def test_a_brokers_directory_without_settings_is_not_changed(lakelog, tmp_path, name: str) -> None:
    data = tmp_path / "data"
    shutil.copytree(GOLDEN / name / "data", data)
    before = contents(data)
    clean = json.loads((data / ".kafka_cleanshutdown").read_text())
    for crashed in (False, True):
        if crashed:
            (data / ".kafka_cleanshutdown").unlink()
            (data / "recovery-point-offset-checkpoint").unlink()
        ended = lakelog("log-manager", "--config", properties(tmp_path, data), "--once")
        assert (ended.status, ended.err) == (0, "")
        assert json.loads((data / ".kafka_cleanshutdown").read_text()) == (
            {"version": 0, "brokerEpoch": -1} if crashed else clean
        )
        if not crashed:
            assert contents(data) == before


def test_settings_of_a_file_let_a_topic_be_retained(lakelog, tmp_path) -> None:
    data = tmp_path / "data"
    make_directory(data, {"a": OLD, "b": OLD})
    given = topic_config(tmp_path, "a: {retention.ms: 1000}\nz: {}\n")
    ended = lakelog("log-manager", "--config", properties(tmp_path, data), "--once", "--topic-config", given)
    assert ended.status == 0
    assert "topic z: has settings in --topic-config, but no partition in these directories" in untimed(ended.out)
    assert [path.name for path in (data / "a-0").glob("*.log")] == [f"{60:020d}.log"]
    assert len(list((data / "b-0").glob("*.log"))) == 9


@pytest.mark.parametrize("text", ["a: {cleanup.policy: [compact, delete]}", "a: {cleanup.policy: 'compact,delete'}"])
def test_a_list_of_a_file_has_the_effect_of_its_text(tmp_path: Path, text: str) -> None:
    assert read_topic_configs(Path(topic_config(tmp_path, text))) == {"a": {"cleanup.policy": "compact,delete"}}


def test_a_topic_with_a_list_of_policies_is_retained(lakelog, tmp_path) -> None:
    make_directory(tmp_path / "data", {"a": OLD})
    given = topic_config(tmp_path, "a: {cleanup.policy: [delete], retention.ms: 1000}\n")
    ended = lakelog(
        "log-manager", "--config", properties(tmp_path, tmp_path / "data"), "--once", "--topic-config", given
    )
    assert (ended.status, ended.err) == (0, "")
    assert [path.name for path in (tmp_path / "data" / "a-0").glob("*.log")] == [f"{60:020d}.log"]


@pytest.mark.parametrize("text", ["", "# a: {retention.ms: 1000}\n", "---\n"])
def test_a_file_without_keys_has_settings_of_no_topic(lakelog, tmp_path, text: str) -> None:
    make_directory(tmp_path / "data", {"a": OLD})
    before = contents(tmp_path / "data")
    file = properties(tmp_path, tmp_path / "data")
    ended = lakelog("log-manager", "--config", file, "--once", "--topic-config", topic_config(tmp_path, text))
    assert (ended.status, ended.err) == (0, "")
    assert contents(tmp_path / "data") == before


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: {retention.ms: soon}", "topics.yaml, line 1, a.retention.ms: expected a whole number"),
        ("a:\n  retention.mz: 1", "topics.yaml, line 2, a.retention.mz: unknown topic key"),
        ("'a b': {}", "topics.yaml, line 1, a b: expected the name of a topic"),
        ("a: 5", "topics.yaml, line 1, a: expected a section of keys"),
        ("a: {min.insync.replicas: 1}", "would have no effect"),
    ],
)
def test_wrong_settings_of_topics_are_refused_with_their_line(lakelog, tmp_path, text: str, problem: str) -> None:
    make_directory(tmp_path / "data", {"a": OLD})
    file = properties(tmp_path, tmp_path / "data")
    ended = lakelog("log-manager", "--config", file, "--once", "--topic-config", topic_config(tmp_path, text))
    assert (ended.status, ended.out) == (1, "")
    assert problem in ended.err


def test_a_segment_that_is_missing_is_named(lakelog, tmp_path) -> None:
    data = tmp_path / "data"
    make_directory(data, {"a": OLD, "b": OLD})
    before = records(data)
    for topic in ("a", "b"):
        (data / f"{topic}-0/{14:020}.log").unlink()
    config = topic_config(
        tmp_path, "a: {retention.ms: -1}\nb: {cleanup.policy: compact, min.cleanable.dirty.ratio: 1}\n"
    )
    command = ("log-manager", "--config", properties(tmp_path, data), "--once", "--topic-config", config)
    ended = lakelog(*command)
    assert ended.status == 4
    assert ended.err == (
        f"lakelog: {data}/a-0/{14:020}.log at position 0: expected a segment, because it had an index, found no such file. The"
        " offsets 14 to 20 are missing. Restore the file from a backup or a replica.\n"
    )
    assert records(data) == before[:14] + before[21:]


def test_an_index_inside_another_segment_is_not_a_missing_segment(lakelog, tmp_path) -> None:
    data = tmp_path / "data"
    make_directory(data, {"a": OLD})
    before = records(data)
    stray = data / f"a-0/{17:020}.index"
    stray.write_bytes(b"")
    given = topic_config(tmp_path, "a: {retention.ms: -1}\n")
    ended = lakelog("log-manager", "--config", properties(tmp_path, data), "--once", "--topic-config", given)
    assert (ended.status, ended.err) == (0, "")
    assert not stray.exists()
    assert records(data) == before


def broken_copy(tmp_path: Path, *, crashed: bool = False) -> Path:
    """A directory of a broker with three partitions of 300 records. Each has three segments; those of multi-0 begin at
    the offsets 0, 127 and 254."""
    data = tmp_path / "data"
    shutil.copytree(GOLDEN / "multi/data", data)
    if crashed:
        (data / ".kafka_cleanshutdown").unlink()
    return data


def remove_newest_segment(folder: Path) -> None:
    for file in folder.glob(f"{254:020}.*"):
        file.unlink()


def remove_newest_log(folder: Path) -> None:
    (folder / f"{254:020}.log").unlink()


def empty_newest_log(folder: Path) -> None:
    (folder / f"{254:020}.log").write_bytes(b"")


def remove_all_logs(folder: Path) -> None:
    for file in folder.glob("*.log"):
        file.unlink()


@pytest.mark.parametrize("crashed", [False, True])
@pytest.mark.parametrize(
    ("damage", "end"),
    [(remove_newest_segment, 254), (remove_newest_log, 254), (empty_newest_log, 254), (remove_all_logs, 0)],
)
def test_a_log_that_ends_below_a_checkpoint_is_named(
    lakelog, tmp_path, damage: Callable[[Path], None], end: int, crashed: bool
) -> None:
    data = broken_copy(tmp_path, crashed=crashed)
    damage(data / "multi-0")
    command = ("log-manager", "--config", properties(tmp_path, data), "--once")
    ended = lakelog(*command)
    assert ended.status == 4
    assert ended.err == (
        f"lakelog: {data}/multi-0: the recovery point is 300 (recovery-point-offset-checkpoint), but the log ends at offset"
        f" {end}: the records from {end} on are lost. Restore the log from a backup or a replica.\n"
    )
    assert json.loads((data / ".kafka_cleanshutdown").read_text())["brokerEpoch"] == -1


def test_a_batch_with_offsets_that_its_segment_cannot_have_is_cut_out(lakelog, tmp_path) -> None:
    data = broken_copy(tmp_path)
    log = data / f"multi-0/{254:020}.log"
    changed = bytearray(log.read_bytes())
    newest = int(scan_batches(np.frombuffer(log.read_bytes(), np.uint8), log.name).positions[-1])
    changed[newest + 2] ^= 1
    log.write_bytes(changed)
    ended = lakelog("log-manager", "--config", properties(tmp_path, data), "--once")
    assert ended.status == 4
    offset = 2**40 + 299
    assert ended.err == (
        f"lakelog: {log} at position {newest}: expected offsets from 294 to 2147483901, found a batch with {2**40 + 294} to"
        f" {offset}. The {len(changed) - newest} bytes were cut out and saved as multi-0/{254:020}.{newest}.corrupt.\n"
        f"lakelog: {data}/multi-0: the recovery point is 300 (recovery-point-offset-checkpoint), but the log ends at offset"
        " 294: the records from 294 on are lost. Restore the log from a backup or a replica.\n"
    )


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_an_empty_log_whose_indexes_have_entries_is_named(lakelog, tmp_path, policy: str) -> None:
    data = broken_copy(tmp_path)
    emptied = data / f"multi-0/{127:020}.log"
    emptied.write_bytes(b"")
    given = topic_config(tmp_path, f"multi: {{cleanup.policy: {policy}, retention.ms: -1}}\n")
    command = ("log-manager", "--config", properties(tmp_path, data), "--once", "--topic-config", given)
    ended = lakelog(*command)
    assert ended.status == 4
    assert ended.err.splitlines()[0] == (
        f"lakelog: {emptied}: is empty, but its indexes have entries: the records from offset 127 to 253 are lost. Restore"
        " the file from a backup or a replica."
    )
    assert json.loads((data / ".kafka_cleanshutdown").read_text())["brokerEpoch"] == -1


def test_a_log_without_losses_is_not_named(lakelog, tmp_path) -> None:
    data = broken_copy(tmp_path)
    # The records of multi-0 were deleted up to the end, so its only segment begins at the log start offset. The indexes
    # of multi-1 belong to a segment that compaction has emptied. The checkpoints have no line for multi-2.
    for file in (data / "multi-0").glob("0000*"):
        file.unlink()
    (data / f"multi-0/{300:020}.log").write_bytes(b"")
    (data / "log-start-offset-checkpoint").write_text("0\n1\nmulti 0 300\n")
    for suffix in (".log", ".index", ".timeindex"):
        (data / f"multi-1/{134:020}{suffix}").write_bytes(b"")
    remove_newest_segment(data / "multi-2")
    (data / f"multi-2/{260:020}.log").unlink()
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        (data / name).write_text("0\n2\nmulti 0 300\nmulti 1 300\n")
    ended = lakelog("log-manager", "--config", properties(tmp_path, data), "--once")
    assert (ended.status, ended.err) == (0, "")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("partition.metadata", "found 0 other lines. Copy the file from another partition of the topic.\n"),
        ("copy.log", "expected a name of 20 digits"),
    ],
)
def test_a_start_that_a_file_in_a_folder_prevents_changes_nothing(lakelog, tmp_path, name: str, problem: str) -> None:
    data = broken_copy(tmp_path)
    shutil.copytree(GOLDEN / "ooo/data/ooo-0", data / "ooo-0")
    (data / "multi-1" / name).write_bytes(b"")
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    ended = lakelog("log-manager", "--config", properties(tmp_path, data), "--once")
    assert (ended.status, ended.out.count("loaded, offsets")) == (1, 0)
    assert f"{data}/multi-1/{name} at position 0" in ended.err
    assert problem in ended.err
    (data / ".lock").unlink()
    assert {path: path.read_bytes() for path in data.rglob("*") if path.is_file()} == before

    shutil.copytree(GOLDEN / "ooo/data", tmp_path / "other")
    shutil.rmtree(data / "ooo-0")
    ended = lakelog("log-manager", "--config", properties(tmp_path, data, tmp_path / "other"), "--once")
    assert ended.status == 4
    assert (tmp_path / "other/.kafka_cleanshutdown").exists()


def test_a_topic_without_a_value_has_no_settings(lakelog, tmp_path) -> None:
    data = tmp_path / "data"
    make_directory(data, {"a": OLD})
    before = contents(data)
    given = topic_config(tmp_path, "a:\n  # retention.ms: -1\n")
    ended = lakelog("log-manager", "--config", properties(tmp_path, data), "--once", "--topic-config", given)
    assert (ended.status, ended.out) == (1, "")
    assert (
        "topics.yaml, line 1, a: found no settings. Give the settings of the topic, or remove the topic." in ended.err
    )
    assert contents(data) == before


def test_a_root_is_no_log_directory(lakelog, tmp_path) -> None:
    lakelog("topics", "create", "t")
    root = tmp_path / "root"
    names = sorted(path.name for path in root.iterdir())
    ended = lakelog("log-manager", "--config", properties(tmp_path, root), "--once")
    assert ended.status == 2
    assert f"{root}: is a root of Lakelog, and not a log directory of Kafka. Use --root {root} instead" in ended.err
    assert sorted(path.name for path in root.iterdir()) == names


def test_mistakes_are_named(lakelog, tmp_path) -> None:
    make_directory(tmp_path / "data", {"a": OLD})
    file = properties(tmp_path, tmp_path / "data", text="log.cleaner.threads=many\n")
    ended = lakelog("log-manager", "--config", file, "--once")
    assert (ended.status, ended.out) == (1, "")
    assert f"{file}, line 2, log.cleaner.threads: expected a whole number" in ended.err
    broken = properties(tmp_path, Path("\\u0000"))
    ended = lakelog("log-manager", "--config", broken, "--once")
    assert (ended.status, ended.out) == (1, "")
    assert ended.err == (
        f"lakelog: {broken}, line 1, log.dirs: found U+0000 at position 0; settings may not contain this character. Remove"
        " the character.\n"
    )
    ended = lakelog("log-manager", "--config", file, "--once", "--include", "a")
    assert (ended.status, ended.out) == (2, "")
    assert "--include: expected an internal topic; found 'a'" in ended.err
    ended = lakelog("log-manager", "--config", properties(tmp_path, tmp_path / "none"), "--once")
    assert ended.status == 1
    assert f"{tmp_path}/none: is not a directory" in ended.err


@pytest.mark.parametrize("truncates", [False, True])
def test_damage_costs_only_itself_unless_kafkas_way_is_asked_for(lakelog, tmp_path, truncates: bool) -> None:
    data = tmp_path / "data"
    make_directory(data, {"a": rows(60)})
    (data / ".kafka_cleanshutdown").unlink()
    (data / "recovery-point-offset-checkpoint").unlink()
    with (data / "a-0" / f"{14:020d}.log").open("r+b") as log:
        log.seek(100)
        log.write(b"?")
    options = ["--truncate-at-damage"] if truncates else []
    ended = lakelog("log-manager", "--config", properties(tmp_path, data), "--once", *options)
    assert ended.status == 4
    assert f"a-0/{14:020d}.log at position 0" in ended.err
    deleted = ", ".join(f"{base:020d}.log" for base in range(21, 60, 7))
    rest = (
        f"The log now ends at offset 14: the offsets 14 to 59 are gone. These later segments were deleted: {deleted}."
    )
    assert (rest in ended.err) == truncates
    left = [number for number in range(60) if number != 14] if not truncates else range(14)
    assert records(data) == [(b"k%d" % number, b"%064d" % number) for number in left]


def test_the_view_of_a_root_is_refused(lakelog, tmp_path) -> None:
    lakelog("topics", "create", "t")
    ended = lakelog("log-manager", "--config", properties(tmp_path, tmp_path / "root/log"), "--once")
    assert ended.status == 2
    assert "is the view (log/) of a root" in ended.err


@contextmanager
def running(file: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A process of the command, killed at the end if it still runs."""
    command = [sys.executable, "-m", "lakelog.cli", "log-manager", "--config", file, *options]
    with subprocess.Popen(command, cwd=HOME, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(process: subprocess.Popen[str], words: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if words in line:
            return
    raise AssertionError(f"the process ended without {words!r}")


FAST = "log.initial.task.delay.ms=0\nlog.cleaner.backoff.ms=50\nlog.flush.offset.checkpoint.interval.ms=100\n"


def test_a_signal_closes_the_logs_cleanly_and_a_second_manager_is_refused(lakelog, tmp_path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    make_directory(one, {"a": rows(60, keys=3)}, known("a", COMPACT))
    make_directory(two, {"b": OLD})
    shutil.copyfile(one / "meta.properties", two / "meta.properties")
    file = properties(tmp_path, one, two, text=FAST)
    for ending in (signal.SIGTERM, signal.SIGINT):
        with running(file) as process:
            wait_for(process, f"{two}: wrote recovery-point-offset-checkpoint")
            assert not (one / ".kafka_cleanshutdown").exists()
            ended = lakelog("log-manager", "--config", file, "--once")
            assert ended.status == 1
            assert "is locked by another program: a Kafka broker or another Lakelog process" in ended.err
            process.send_signal(ending)
            out, err = process.communicate()
            assert (process.returncode, err) == (0, "")
            assert untimed(out)[-2:] == [f"{each}: closed, wrote .kafka_cleanshutdown" for each in (one, two)]
        for directory in (one, two):
            assert (directory / ".kafka_cleanshutdown").exists()
    with LogManager([one, two], clock=ManualClock(NOW_MS)) as logs:
        assert [report.recovered for report in logs.reports] == [[], [], []]


def test_a_killed_manager_loses_nothing_and_the_next_one_goes_on(tmp_path) -> None:
    data = tmp_path / "data"
    make_directory(data, {"a": rows(600, keys=5)}, known("a", {**COMPACT, "min.cleanable.dirty.ratio": "0"}))
    newest = dict(records(data))
    file = properties(tmp_path, data, text=FAST)
    for words in ("a-0: loaded", "cleaner-offset-checkpoint", "recovery-point"):
        with running(file) as process:
            wait_for(process, words)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        assert not (data / ".kafka_cleanshutdown").exists()
    with running(file) as process:
        wait_for(process, "recovery-point-offset-checkpoint")
        process.terminate()
        process.wait()
    assert dict(records(data)) == newest
    assert len(records(data)) < 30
    assert not [
        path for path in (data / "a-0").iterdir() if path.suffix in (".deleted", ".cleaned", ".swap", ".corrupt")
    ]


def test_a_reader_of_the_lines_that_goes_away_does_not_end_the_manager(tmp_path) -> None:
    data = tmp_path / "data"
    make_directory(data, {"a": OLD})
    with running(properties(tmp_path, data, text=FAST)) as process:
        wait_for(process, "a-0: loaded")
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.readline() == UNPRINTED.format("Broken pipe")
        (data / "recovery-point-offset-checkpoint").unlink()
        while not (data / "recovery-point-offset-checkpoint").exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.terminate()
        assert process.wait() == 0
        assert process.stderr.read() == ""
    assert (data / ".kafka_cleanshutdown").exists()


UNPRINTED = "lakelog: standard output cannot be written ({}); the work continues without these lines\n"


@pytest.mark.parametrize("output", ["without a reader", "full", "closed"])
def test_a_run_whose_lines_cannot_be_printed_does_all_its_work(tmp_path, output: str) -> None:
    data = tmp_path / "data"
    make_directory(data, {"a": OLD}, known("a", {"retention.ms": "1000"}))
    command = [sys.executable, "-m", "lakelog.cli", "log-manager", "--config", properties(tmp_path, data), "--once"]
    reading, writing = os.pipe()
    os.close(reading)
    with Path("/dev/full").open("w") as full:
        place, reason = {
            "without a reader": (writing, "Broken pipe"),
            "full": (full.fileno(), "No space left on device"),
            "closed": (None, "Bad file descriptor"),
        }[output]
        if place is None:
            command = ["sh", "-c", 'exec "$@" >&-', "sh", *command]
        ended = subprocess.run(command, check=False, cwd=HOME, stdout=place, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (0, UNPRINTED.format(reason))
    assert [path.name for path in (data / "a-0").glob("*.log")] == [f"{60:020d}.log"]
    assert (data / ".kafka_cleanshutdown").exists()


def test_a_signal_ends_one_run_before_its_next_task(tmp_path) -> None:
    data = tmp_path / "data"
    make_directory(data, {"a": rows(1, age_ms=10_000)}, known("a", {"retention.ms": "1000"}), partitions=150)
    before = [path.name for path in sorted(data.rglob("*.log"))]
    with running(properties(tmp_path, data), "--once") as process:
        assert process.stdout is not None
        fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, 4096)  # the process waits until its lines are read
        assert "__cluster_metadata" in process.stdout.readline()
        process.terminate()
        out, err = process.communicate()
    assert (process.returncode, err) == (4, "")
    assert untimed(out)[-2:] == [
        f"{tmp_path}/server.properties: stopped by a signal before all tasks were done",
        f"{data}: closed, wrote .kafka_cleanshutdown",
    ]
    assert [path.name for path in sorted(data.rglob("*.log"))] == before


def fill(disk: Path) -> Path:
    """Take all space of a file system. Returns the file that has it."""
    (disk / "filler").write_bytes(bytes(os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize))
    return disk / "filler"


@needs_a_disk
def test_retention_and_compaction_work_on_a_full_disk_if_retention_frees_space(lakelog, tmp_path) -> None:
    with small_disk(tmp_path / "disk", 512 * 1024) as disk:
        data = disk / "data"
        topics = [*known("a", {"retention.ms": "1000"}), *known("b", COMPACT)]
        make_directory(data, {"a": OLD, "b": rows(60, keys=3)}, topics)
        fill(disk)
        ended = lakelog("log-manager", "--config", properties(tmp_path, data), "--once")
        assert (ended.status, ended.err) == (0, "")
        assert [path.name for path in (data / "a-0").glob("*.log")] == [f"{60:020d}.log"]
        assert f"{data}/b-0: compacted up to offset 56" in ended.out
        assert (data / ".kafka_cleanshutdown").exists()


@needs_a_disk
def test_a_full_disk_is_reported_and_the_next_run_does_the_work(lakelog, tmp_path) -> None:
    with small_disk(tmp_path / "disk", 512 * 1024) as disk:
        data = disk / "data"
        make_directory(data, {"a": rows(60, keys=3)}, known("a", COMPACT))
        before = {name: content for name, content in contents(data).items() if name.endswith(".log")}
        filler = fill(disk)
        ended = lakelog("log-manager", "--config", properties(tmp_path, data), "--once")
        assert ended.status != 0
        assert "No space left on device" in ended.err
        assert {name: content for name, content in contents(data).items() if name.endswith(".log")} == before
        filler.unlink()
        ended = lakelog("log-manager", "--config", properties(tmp_path, data), "--once")
        assert (ended.status, ended.err) == (0, "")
        assert f"{data}/a-0: compacted up to offset 56" in ended.out
