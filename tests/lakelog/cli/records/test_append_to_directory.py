"""`lakelog append --kafka-dir`: the records, the files and the errors, read back with `lakelog read`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from storage_engine.log.checkpoint import LEADER_EPOCHS
from storage_engine.storage.storage_opening import open_directory
from tests.in_process import Ended
from tests.lakelog.cli.clean.test_compact import changed
from tests.lakelog.cli.conftest import line, text
from tests.small_disks import needs_a_disk, small_disk
from tests.storage_engine.kafka_dir.upkeep.brokers_directory import (
    IDS,
    NOW_MS,
    config_record,
    known,
    make_directory,
    partition_record,
    rows,
    topic_record,
)
from tests.storage_engine.verify.directories import contents

LINES = [line(b"k%d" % number, b"v%d" % number, timestamp=NOW_MS + number) for number in range(20)]
KNOWN = [*known("a"), *known("b", replicas=(1, 2)), *known("c", {"remote.storage.enable": "true"})]


def brokers_directory(directory: Path, metadata: Sequence[bytes] = KNOWN) -> Path:
    topics = ["a", "b", "c", "d", "__consumer_offsets"]
    make_directory(directory, dict.fromkeys(topics, rows(10)), metadata)
    (directory / "replication-offset-checkpoint").write_text("0\n1\na 0 10\n")
    (directory / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":77}')
    return directory


def own_directory(directory: Path, *, partitions: int = 1) -> Path:
    """A directory that no broker has used, with the topic a."""
    make_directory(directory, {"a": rows(10)}, partitions=partitions)
    for file in ("meta.properties", "replication-offset-checkpoint"):
        (directory / file).unlink()
    return directory


def append(lakelog, data: Path, *arguments: str, lines: Sequence[str] = LINES) -> tuple[Ended, set[str]]:
    """The end of the command, and what it changed."""
    before = contents(data)
    ended = lakelog("append", "--kafka-dir", str(data), *arguments, stdin=lines)
    checkpoints = {"recovery-point-offset-checkpoint", "log-start-offset-checkpoint", "cleaner-offset-checkpoint"}
    return ended, changed(before, contents(data)) - checkpoints


def read(lakelog, data: Path, *arguments: str) -> list[dict[str, object]]:
    ended: Ended = lakelog("read", "--kafka-dir", str(data), "--topic", "a", *arguments)
    assert (ended.status, ended.err) == (0, "")
    return ended.records


def test_records_are_appended_to_the_only_replica(lakelog, tmp_path: Path) -> None:
    data = brokers_directory(tmp_path / "data")
    before = read(lakelog, data)
    headers = [["h", "AAE="], ["empty", None]]
    lines = [*LINES, line(None, b"no key", timestamp=NOW_MS, headers=headers), line(b"gone", None, timestamp=NOW_MS)]
    ended, found = append(lakelog, data, "--topic", "a", lines=lines)
    assert (ended.status, ended.err) == (0, "")
    assert ended.out == "partition 0: 22 records, offsets 10 to 31\nappended 22 records to topic a\n"
    assert found == {"a-0"}
    records = read(lakelog, data)
    assert records[:10] == before
    assert [each["offset"] for each in records] == list(range(32))
    assert [(each["key"], each["value"], each["timestamp"]) for each in records[10:30]] == [
        (text(b"k%d" % number), text(b"v%d" % number), NOW_MS + number) for number in range(20)
    ]
    assert [(each["key"], each["value"], each["headers"]) for each in records[30:]] == [
        (None, text(b"no key"), headers), (text(b"gone"), None, []),
    ]  # fmt: skip
    assert (data / ".kafka_cleanshutdown").read_text() == '{"version":0,"brokerEpoch":77}'
    assert (data / "replication-offset-checkpoint").read_text() == "0\n1\na 0 10\n"
    assert lakelog("verify", "--kafka-dir", str(data)).status == 0


@pytest.mark.parametrize(
    ("arguments", "status", "problem"),
    [
        (("--topic", "b"), 2, "b-0: may have replicas on other nodes: __cluster_metadata does not say that"),
        (("--topic", "c"), 2, "topic c: remote.storage.enable is set"),
        (
            ("--topic", "d"),
            2,
            "topic d: may have replicas on other nodes: __cluster_metadata has no topic of this name",
        ),
        (("--topic", "nothing"), 1, "topic nothing: no folder nothing-<partition number>"),
        (("--topic", "a", "--partition", "1"), 1, "topic a: has partitions 0, but no partition 1"),
        (("--topic", "__consumer_offsets"), 2, "topic __consumer_offsets: is an internal topic"),
        (("--topic", "__cluster_metadata"), 2, "topic __cluster_metadata: is an internal topic"),
        (("--topic", "a", "--transactional"), 2, "--transactional: is given with --kafka-dir"),
        (("--topic", "a", "--root", "r"), 2, "--root: is given with --kafka-dir"),
        (("--topic", "a", "--conf", "c"), 2, "--conf: is given with --kafka-dir"),
        ((), 2, "--topic: no topic is given"),
        (("--topic", "a", "--config", "segment.bytes=1"), 2, "--config segment.bytes"),
    ],
)
def test_what_a_broker_could_contradict_is_refused(
    lakelog, tmp_path: Path, arguments: tuple[str, ...], status: int, problem: str
) -> None:
    data = brokers_directory(tmp_path / "data")
    ended, found = append(lakelog, data, *arguments)
    assert (ended.status, ended.out, found) == (status, "", set())
    assert problem in ended.err


def test_without_metadata_a_brokers_partition_is_refused(lakelog, tmp_path: Path) -> None:
    for name, metadata in (("none", ()), ("damaged", [*known("a"), b"\x01\x02\x09"])):
        data = brokers_directory(tmp_path / name, metadata)
        ended, found = append(lakelog, data, "--topic", "a")
        assert (ended.out, found) == ("", set())
        expected = "may have replicas on other nodes" if name == "none" else "found version 9 of record type 2"
        assert expected in ended.err
        assert ended.status != 0


def test_a_topic_of_another_id_is_refused(lakelog, tmp_path: Path) -> None:
    data = brokers_directory(
        tmp_path / "data", [topic_record("a", id_of="b"), config_record(2, "a", "retention.ms", "1")]
    )
    ended, found = append(lakelog, data, "--topic", "a")
    assert (ended.status, ended.out, found) == (2, "", set())
    assert f"the topic id in its folders is {IDS['a']}, but in __cluster_metadata {IDS['b']}" in ended.err


def test_the_settings_of_the_topic_are_those_of_its_records(lakelog, tmp_path: Path) -> None:
    """The topic is compacted, so that a record needs a key, and gets the time of the append."""
    stored = {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"}
    data = brokers_directory(tmp_path / "data", known("a", stored))
    ended, found = append(lakelog, data, "--topic", "a", lines=[*LINES, line(None, b"v")])
    assert (ended.status, ended.out, found) == (1, "", set())
    assert "standard input, line 21: has no key" in ended.err
    ended, _ = append(lakelog, data, "--topic", "a", "--config", "compression.type=zstd", lines=LINES[:1])
    assert (ended.status, ended.err) == (0, "")
    newest = read(lakelog, data)[-1]
    assert newest["timestampType"] == "LogAppendTime"
    log = max((data / "a-0").glob("*.log"))
    assert "compresscodec: zstd" in lakelog("dump", str(log)).out


def test_keys_go_to_the_partitions_of_kafkas_producer(lakelog, tmp_path: Path) -> None:
    data = own_directory(tmp_path / "data", partitions=3)
    ended, found = append(lakelog, data, "--topic", "a")
    assert (ended.status, ended.err) == (0, "")
    lakelog("topics", "create", "a", "--partitions", "3")
    lakelog("append", "--topic", "a", stdin=LINES)

    def placed(records: list[dict[str, object]]) -> list[tuple[object, object]]:
        return [(each["partition"], each["key"]) for each in records]

    appended = [each for each in read(lakelog, data) if int(str(each["offset"])) >= 10]
    assert placed(appended) == placed(lakelog("read", "--topic", "a").records)
    assert found == {f"a-{number}" for number, _ in placed(appended)} == {"a-0", "a-1", "a-2"}
    ended, found = append(lakelog, data, "--topic", "a", "--partition", "1")
    assert (ended.status, found) == (0, {"a-1"})
    assert not (data / "replication-offset-checkpoint").exists()


def test_a_key_of_a_partition_elsewhere_is_refused(lakelog, tmp_path: Path) -> None:
    """The cluster has three partitions, of which one is in this directory. Other directories have the others."""
    metadata = [topic_record("a"), *[partition_record("a", number, (1,)) for number in range(3)]]
    data = brokers_directory(tmp_path / "data", metadata)
    ended, found = append(lakelog, data, "--topic", "a")
    assert (ended.status, ended.out, found) == (1, "", set())
    assert f"which is not in {data}" in ended.err
    ended, found = append(lakelog, data, "--topic", "a", "--partition", "0")
    assert (ended.status, found) == (0, {"a-0"})
    ended, found = append(lakelog, data, "--topic", "a", lines=[line(None, b"v", timestamp=NOW_MS)])
    assert (ended.status, found) == (0, {"a-0"})

    own = own_directory(tmp_path / "own", partitions=2)
    (own / "a-0").rename(own / "a-2")
    ended, found = append(lakelog, own, "--topic", "a")
    assert (ended.status, ended.out, found) == (2, "", set())
    assert "has only the partitions 1, 2 here, so the partition of a key is not known" in ended.err


def test_a_wrong_line_leaves_every_log_as_it_was(lakelog, tmp_path: Path) -> None:
    data = own_directory(tmp_path / "data", partitions=3)
    for wrong, problem in (
        ('{"key": null}', "line 21: the field value is missing"),
        (line(b"k", b"x" * 2_000_000), "line 21"),
    ):
        ended, found = append(lakelog, data, "--topic", "a", lines=[*LINES, wrong])
        assert (ended.status, ended.out, found) == (1, "", set())
        assert problem in ended.err
    ended, found = append(lakelog, data, "--topic", "a", lines=[])
    assert (ended.status, ended.out, found) == (0, "appended 0 records to topic a\n", set())


def test_after_a_crash_the_partition_is_recovered_first(lakelog, tmp_path: Path) -> None:
    data = brokers_directory(tmp_path / "data")
    for name in (".kafka_cleanshutdown", "recovery-point-offset-checkpoint"):
        (data / name).unlink()
    first = min((data / "a-0").glob("*.log"))
    damaged = bytearray(first.read_bytes())
    damaged[70] ^= 1
    first.write_bytes(damaged)
    with max((data / "a-0").glob("*.log")).open("ab") as log:
        log.write(b"torn")
    ended, found = append(lakelog, data, "--topic", "a")
    assert (ended.status, found) == (4, {"a-0"})
    assert f"a-0/{first.name}" in ended.err
    assert [each["offset"] for each in read(lakelog, data)] == list(range(1, 30))
    assert not (data / ".kafka_cleanshutdown").exists(), "the broker recovers the other logs"


def test_an_empty_partition_gets_its_first_epoch(lakelog, tmp_path: Path) -> None:
    data = tmp_path / "data"
    make_directory(data, {"a": []}, known("a"))
    (data / "a-0" / LEADER_EPOCHS).unlink()
    ended, _ = append(lakelog, data, "--topic", "a")
    assert (ended.status, ended.err) == (0, "")
    assert {each["leaderEpoch"] for each in read(lakelog, data)} == {0}
    assert (data / "a-0" / LEADER_EPOCHS).read_text() == "0\n1\n0 0\n"


def test_a_directory_in_use_is_refused(lakelog, tmp_path: Path) -> None:
    data = brokers_directory(tmp_path / "data")
    with open_directory(data).hold_exclusive(".lock"):
        ended, found = append(lakelog, data, "--topic", "a")
    assert (ended.status, ended.out, found) == (1, "", set())
    assert "is already locked" in ended.err
    ended = lakelog("append", "--topic", "a", "--config", "retention.ms=1", stdin=LINES)
    assert (ended.status, "--config: is given without --kafka-dir" in ended.err) == (2, True)


@needs_a_disk
def test_a_full_disk_leaves_the_first_records_and_the_error_names_them(lakelog, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 900_000) as disk:
        data = own_directory(disk / "data")
        many = [line(b"k%d" % number, b"%06d" % number * 170, timestamp=NOW_MS) for number in range(1500)]
        ended, _ = append(lakelog, data, "--topic", "a", "--config", "segment.bytes=65536", lines=many)
        assert (ended.status, ended.out) == (1, "")
        named = re.search(
            r"No space left on device\. .* Some of the records are in the logs now: of partition 0 the first (\d+)"
            r", up to standard input, line (\d+) \(offsets 10 to (\d+)\)\. Append only the others\.\n$",
            ended.err,
        )
        assert named is not None, ended.err
        count = int(named[1])
        assert 0 < count == int(named[2]) == int(named[3]) - 9
        found = lakelog("read", "--kafka-dir", str(data), "--topic", "a")  # without the batch that was cut off
        values = [record["value"] for record in found.records]
        assert values[10:] == [text(b"%06d" % number * 170) for number in range(count)]
