"""`lakelog retain` on topics of a root and on plain Kafka directories."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from storage_engine.storage.storage_opening import open_directory
from tests.in_process import Ended
from tests.lakelog.cli.clean.test_compact import INTERNAL, changed
from tests.lakelog.cli.conftest import line
from tests.storage_engine.kafka_dir.upkeep.brokers_directory import NOW_MS, config_record, known, make_directory, rows
from tests.storage_engine.verify.directories import contents
from tests.stores import storage_at

LIMIT = ("--config", "retention.ms=1000")
ALL = "".join(f"{topic} 0 60\n" for topic in ("a", "b", "c", "d", *INTERNAL))
KNOWN = [
    *known("a", {"retention.ms": "1000"}), *known("b", {"retention.bytes": "3000"}),
    *known("c", {"cleanup.policy": "compact"}),
]  # fmt: skip


def brokers_directory(directory: Path, metadata: Sequence[bytes] = KNOWN, watermarks: str = ALL) -> Path:
    """Topics a to d, and the internal ones, each with 60 records that are ten seconds old, in segments of seven."""
    make_directory(directory, dict.fromkeys(["a", "b", "c", "d", *INTERNAL], rows(60, age_ms=10_000)), metadata)
    (directory / "replication-offset-checkpoint").write_text(f"0\n{len(watermarks.splitlines())}\n{watermarks}")
    (directory / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":77}')
    return directory


def retain(lakelog, data: Path, *arguments: str) -> tuple[Ended, set[str]]:
    """The end of the command, and what it changed."""
    before = contents(data)
    ended = lakelog("retain", "--kafka-dir", str(data), "--now", str(NOW_MS), *arguments)
    return ended, changed(before, contents(data)) - {"recovery-point-offset-checkpoint", "log-start-offset-checkpoint"}


def offsets(lakelog, data: Path, topic: str) -> list[int]:
    return [each["offset"] for each in lakelog("read", "--kafka-dir", str(data), "--topic", topic).records]


def test_a_topic_of_a_root_is_retained(lakelog) -> None:
    lakelog("topics", "create", "t", "--partitions", "1", "--config", "retention.ms=50000")
    lakelog("topics", "create", "u", "--partitions", "1")
    for age in (82_000, 80_000, 0):
        for topic in "tu":
            lakelog("append", "--topic", topic, stdin=[line(b"k", b"v", timestamp=NOW_MS - age)])
    ended = lakelog("retain", "--now", str(NOW_MS))
    assert (ended.status, ended.err) == (0, "")
    assert ended.out == "topic t, partition 0: 2 segments deleted, 140 B; the partition now begins at offset 2\n"
    assert [each["offset"] for each in lakelog("read", "--topic", "t").records] == [2]
    assert [each["offset"] for each in lakelog("read", "--topic", "u").records] == [0, 1, 2]
    again = lakelog("retain", "--now", str(NOW_MS))
    assert (again.status, again.out) == (0, "retain: there is nothing to delete in 2 topics\n")
    assert lakelog("verify").status == 0


def test_the_files_of_dropped_segments_are_deleted_after_the_delay(lakelog, tmp_path: Path) -> None:
    lakelog("topics", "create", "t", "--partitions", "1", "--config", "retention.ms=50000")
    for age in (82_000, 0):
        lakelog("append", "--topic", "t", stdin=[line(b"k", b"v", timestamp=NOW_MS - age)])
    storage = storage_at(tmp_path / "root")

    def logs() -> int:
        return sum(file.key.endswith(".log") for file in storage.list("data/"))

    lakelog("retain", "--now", str(NOW_MS))
    assert logs() == 2
    lakelog("topics", "alter", "t", "--config", "file.delete.delay.ms=0")
    ended = lakelog("retain", "--now", str(NOW_MS))
    assert (ended.status, ended.err, ended.out) == (0, "", "topic t: deleted the files of 1 dropped segment\n")
    assert logs() == 1
    assert [each["offset"] for each in lakelog("read", "--topic", "t").records] == [1]


def test_an_unknown_topic_of_a_root_is_an_error(lakelog) -> None:
    lakelog("topics", "create", "t")
    ended = lakelog("retain", "--topic", "nothing")
    assert (ended.status, ended.out) == (1, "")
    assert "topic nothing" in ended.err
    ended = lakelog("retain", *LIMIT)
    assert (ended.status, "--config: is given without --kafka-dir" in ended.err) == (2, True)


def test_topics_with_known_settings_are_retained(lakelog, tmp_path: Path) -> None:
    data = brokers_directory(tmp_path / "data")
    ended, found = retain(lakelog, data)
    assert (ended.status, ended.err) == (0, "")
    assert found == {"a-0", "b-0"}
    assert offsets(lakelog, data, "a") == []
    kept = offsets(lakelog, data, "b")
    assert kept == list(range(kept[0], 60))
    assert 0 < kept[0] < 40
    for topic in ("c", "d", "__consumer_offsets"):
        assert offsets(lakelog, data, topic) == list(range(60))
    lines = ended.out.splitlines()
    assert f"{data}: __cluster_metadata: not retained: KRaft alone opens it" in lines
    assert f"{data}: __consumer_offsets: not retained: it is an internal topic" in lines
    assert f"{data}: d: not retained: __cluster_metadata has no topic of this name" in lines
    deleted = [each for each in lines if each.startswith(f"{data}/a-0: retention deletes segment ")]
    assert len(deleted) == 9
    assert deleted[0].endswith(" by time: it is 10000 ms old, and retention.ms is 1000")
    assert not list(data.glob("*/*.deleted"))
    assert (data / ".kafka_cleanshutdown").read_text() == '{"version":0,"brokerEpoch":77}'
    assert lakelog("verify", "--kafka-dir", str(data)).status == 0
    ended, found = retain(lakelog, data)
    assert (ended.status, found) == (0, set())
    assert ended.out.endswith(f"retain: there is nothing to delete in {data}\n")


@pytest.mark.parametrize(
    ("arguments", "folders", "problem"),
    [
        (("--topic", "a"), {"a-0"}, ""),
        (("--topic", "a", "--config", "retention.ms=10000"), set(), ""),
        (("--topic", "d"), set(), "d: not retained: __cluster_metadata has no topic of this name; give its retention.ms,"),
        (("--topic", "d", "--config", "segment.bytes=1024"), set(), "retention.bytes or cleanup.policy with --config"),
        (("--topic", "d", *LIMIT), {"d-0"}, ""),
        (("--topic", "d", "--config", "retention.bytes=100"), {"d-0"}, ""),
        (("--topic", "d", "--config", "cleanup.policy=delete"), set(), ""),
        (("--topic", "c"), set(), ""),
        (("--topic", "__consumer_offsets"), set(), "__consumer_offsets: not retained: "),
        (("--topic", "__consumer_offsets", *LIMIT), {"__consumer_offsets-0"}, ""),
        (("--topic", "__cluster_metadata", *LIMIT), set(), "not retained: KRaft alone opens it"),
        (("--topic", "a", "--topic", "d"), {"a-0"}, "d: not retained: "),
    ],
)  # fmt: skip
def test_a_named_topic_is_retained_or_the_status_says_why_not(
    lakelog, tmp_path: Path, arguments: tuple[str, ...], folders: set[str], problem: str
) -> None:
    data = brokers_directory(tmp_path / "data")
    ended, found = retain(lakelog, data, *arguments)
    assert found == folders
    assert ended.status == (4 if problem else 0)
    assert problem in ended.err
    assert bool(ended.err) == bool(problem)


def test_no_default_deletes_records(lakelog, tmp_path: Path) -> None:
    """The records are older than Kafka's default of retention.ms, which a server.properties can change."""
    data = brokers_directory(tmp_path / "data", [*known("a"), *known("b", {"retention.bytes": "100000"})])
    later = str(NOW_MS + 30 * 86_400_000)
    ended, found = retain(lakelog, data, "--now", later)
    assert (ended.status, ended.err, found) == (0, "", set())
    assert f"{data}: a: only segments below the log start are deleted, because neither retention.ms nor" in ended.out
    ended, found = retain(lakelog, data, "--topic", "d", "--config", "retention.bytes=100000", "--now", later)
    assert (ended.status, ended.err, found) == (0, "", set())
    limit = config_record(4, "", "log.retention.ms", "86400000")
    data = brokers_directory(tmp_path / "limited", [*known("a"), limit])
    ended, found = retain(lakelog, data, "--now", later)
    assert (ended.status, ended.err, found) == (0, "", {"a-0"})


def test_segments_below_the_log_start_are_deleted(lakelog, tmp_path: Path) -> None:
    data = brokers_directory(tmp_path / "data")
    (data / "log-start-offset-checkpoint").write_text("0\n1\nc 0 30\n")
    ended, found = retain(lakelog, data, "--topic", "c")
    assert (ended.status, ended.err, found) == (0, "", {"c-0"})
    assert "by start offset" in ended.out
    assert offsets(lakelog, data, "c") == list(range(30, 60))


def test_nothing_above_the_high_watermark_is_deleted(lakelog, tmp_path: Path) -> None:
    replicated = [*known("a", {"retention.ms": "1000"}, (1, 2)), *known("b", {"retention.ms": "1000"}, (1, 2))]
    data = brokers_directory(tmp_path / "data", replicated, "a 0 20\n")
    ended, found = retain(lakelog, data)
    assert (ended.status, ended.err, found) == (0, "", {"a-0"})
    assert f"{data}: b-0: not retained: replication-offset-checkpoint has no line for it" in ended.out
    kept = offsets(lakelog, data, "a")
    assert kept == list(range(kept[0], 60))
    assert 0 < kept[0] <= 20
    assert (data / "replication-offset-checkpoint").read_text() == "0\n1\na 0 20\n"


def test_without_metadata_a_topic_must_be_named(lakelog, tmp_path: Path) -> None:
    data = brokers_directory(tmp_path / "data", ())
    for more in ((), LIMIT):
        ended, found = retain(lakelog, data, *more)
        assert (ended.status, ended.out, found) == (2, "", set())
        assert f"{data}: has no __cluster_metadata-0, so the settings of its topics are not known" in ended.err
        assert "Name the topics to retain with --topic." in ended.err
    ended, found = retain(lakelog, data, "--topic", "a")
    assert (ended.status, found) == (4, set())
    assert (
        "because __cluster_metadata was not read; give its retention.ms, retention.bytes or cleanup.policy" in ended.err
    )
    ended, found = retain(lakelog, data, "--topic", "a", *LIMIT)
    assert (ended.status, ended.err, found) == (0, "", {"a-0"})


def test_a_limit_for_all_topics_of_a_broker_is_refused(lakelog, tmp_path: Path) -> None:
    data = brokers_directory(tmp_path / "data")
    ended, found = retain(lakelog, data, *LIMIT)
    assert (ended.status, ended.out, found) == (2, "", set())
    assert "--config retention.ms: is given without --topic, and" in ended.err


def test_a_directory_that_no_broker_has_used_is_retained_by_one_limit(lakelog, tmp_path: Path) -> None:
    data = brokers_directory(tmp_path / "data", ())
    for file in ("meta.properties", "replication-offset-checkpoint"):
        (data / file).unlink()
    ended, found = retain(lakelog, data, *LIMIT)
    assert (ended.status, ended.err, found) == (0, "", {"a-0", "b-0", "c-0", "d-0"})
    assert not (data / "replication-offset-checkpoint").exists()


def test_damaged_metadata_is_an_error_and_nothing_is_retained(lakelog, tmp_path: Path) -> None:
    data = brokers_directory(tmp_path / "data", [*known("a", {"retention.ms": "1"}), b"\x01\x02\x09"])
    ended, found = retain(lakelog, data)
    assert (ended.status, found) == (4, set())
    assert "found version 9 of record type 2" in ended.err


def test_after_a_crash_the_log_is_recovered_first(lakelog, tmp_path: Path) -> None:
    data = brokers_directory(tmp_path / "data")
    (data / ".kafka_cleanshutdown").unlink()
    (data / "recovery-point-offset-checkpoint").unlink()
    for folder in ("b-0", "d-0"):
        log = min((data / folder).glob("*.log"))
        damaged = bytearray(log.read_bytes())
        damaged[70] ^= 1
        log.write_bytes(damaged)
    ended, found = retain(lakelog, data, "--topic", "b", "--config", "retention.bytes=100000")
    assert (ended.status, found) == (4, {"b-0"})
    assert "b-0/00000000000000000000.log" in ended.err
    assert offsets(lakelog, data, "b") == list(range(1, 60))
    assert not (data / ".kafka_cleanshutdown").exists(), "the broker recovers d"


def test_mistakes_are_named(lakelog, tmp_path: Path) -> None:
    data = brokers_directory(tmp_path / "data")
    with open_directory(data).hold_exclusive(".lock"):
        ended, found = retain(lakelog, data)
        assert (ended.status, ended.out, found) == (1, "", set())
        assert "is already locked" in ended.err
    for arguments, status, problem in (
        (("--root", "r"), 2, "--root: is given with --kafka-dir"),
        (("--conf", "c"), 2, "--conf: is given with --kafka-dir"),
        (("--topic", "nothing"), 1, "topic nothing: no folder nothing-<partition number>"),
        (("--topic", "a", "--config", "retention.ms=x"), 2, "--config retention.ms"),
    ):
        ended, found = retain(lakelog, data, *arguments)
        assert (ended.status, ended.out, found) == (status, "", set())
        assert problem in ended.err
