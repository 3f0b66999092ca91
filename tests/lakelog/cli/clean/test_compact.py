"""`lakelog compact` on topics of a root and on plain Kafka directories."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from storage_engine.log.checkpoint import CLEAN_SHUTDOWN, LEADER_EPOCHS
from storage_engine.log.filenames import LOG
from tests.in_process import Ended
from tests.lakelog.cli.conftest import line, text
from tests.storage_engine.cleaner.test_golden import batches, words_of
from tests.storage_engine.kafka_dir.upkeep.brokers_directory import (
    NOW_MS,
    config_record,
    known,
    make_directory,
    rows,
)
from tests.storage_engine.verify.directories import contents

GOLDEN = Path(__file__).parents[3] / "golden"
LINES = [line(b"k%d" % (number % 4), b"%050d" % number, timestamp=1000) for number in range(40)]
SETTINGS = ["--config", "cleanup.policy=compact", "--config", "segment.bytes=1024"]


@pytest.fixture
def compacted(lakelog):
    """A topic with 40 records of 4 keys in several segments."""
    lakelog("topics", "create", "t", "--partitions", "1", *SETTINGS)
    lakelog("append", "--topic", "t", stdin=LINES)
    return lakelog


def values(lakelog) -> list[str]:
    return [record["value"] for record in lakelog("read", "--topic", "t").records]


def test_each_key_keeps_its_newest_record_below_the_active_segment(compacted) -> None:
    ended = compacted("compact", "--topic", "t", "--now", "2000")
    assert ended.status == 0
    assert ended.out.startswith("topic t, partition 0: compacted up to offset ")
    left = values(compacted)
    assert left[-4:] == [text(b"%050d" % number) for number in range(36, 40)]
    assert len(left) < 20


def test_what_is_not_due_is_left_unless_forced(compacted) -> None:
    compacted("topics", "alter", "t", "--config", "min.cleanable.dirty.ratio=1")
    before = values(compacted)
    assert compacted("compact", "--topic", "t").out == "compact: there is nothing to compact in 1 topic\n"
    assert values(compacted) == before
    assert "compacted" in compacted("compact", "--force").out
    assert len(values(compacted)) < len(before)


@pytest.mark.posix("looks at the view")
def test_a_partition_that_cannot_be_compacted_is_named_and_the_others_are_compacted(compacted, tmp_path: Path) -> None:
    compacted("topics", "create", "u", "--partitions", "1", *SETTINGS)
    compacted("append", "--topic", "u", stdin=LINES)
    damaged = min(path for path in (tmp_path / "root/data").glob("*/0/*.log") if path.stat().st_nlink > 1)
    topic = "t" if "t-0" in _folder_of(damaged, tmp_path) else "u"
    data = bytearray(damaged.read_bytes())
    data[70] ^= 1
    damaged.write_bytes(data)
    ended = compacted("compact")
    assert ended.status == 4
    assert f"topic {topic}, partition 0" in ended.err
    assert f"topic {'u' if topic == 't' else 't'}, partition 0: compacted" in ended.out


def _folder_of(file: Path, tmp_path: Path) -> str:
    shown = (path for path in (tmp_path / "root/log").glob("*/*.log") if path.samefile(file))
    return next(shown).parent.name


def test_an_unknown_topic_is_an_error(lakelog) -> None:
    lakelog("topics", "create", "t")
    ended = lakelog("compact", "--topic", "nothing")
    assert (ended.status, ended.out) == (1, "")
    assert "topic nothing" in ended.err


def newest(records: list[dict[str, object]]) -> dict[object, dict[str, object]]:
    """The newest record of each key that was not deleted."""
    latest = {record["key"]: record for record in records}
    return {key: record for key, record in latest.items() if record["value"] is not None}


def test_a_brokers_directory_is_compacted_in_place(lakelog, tmp_path: Path) -> None:
    data = shutil.copytree(GOLDEN / "compact_delete.before/data", tmp_path / "data")
    configs = ["--config=segment.bytes=16384", "--config=index.interval.bytes=512"]
    before = lakelog("read", "--kafka-dir", str(data)).records
    ended = lakelog(
        "compact",
        "--kafka-dir",
        str(data),
        "--topic",
        "compact_delete",
        "--now",
        str(before[-1]["timestamp"]),
        "--force",
        *configs,
    )
    assert (ended.status, ended.err) == (0, "")
    assert "compacted up to offset" in ended.out
    after = lakelog("read", "--kafka-dir", str(data)).records
    assert len(after) < len(before)
    assert newest(after) == newest(before)
    assert not [path.name for path in data.glob("*/*.deleted")]
    assert lakelog("verify", "--kafka-dir", str(data)).status == 0


def test_a_partition_of_a_directory_that_cannot_be_compacted_is_named(lakelog, tmp_path: Path) -> None:
    data = shutil.copytree(GOLDEN / "idem/data", tmp_path / "data")
    (data / ".kafka_cleanshutdown").touch()  # or opening it would cut the damage out
    log = data / "idem-0/00000000000000000139.log"
    damaged = bytearray(log.read_bytes())
    damaged[1000] ^= 1
    log.write_bytes(damaged)
    ended = lakelog("compact", "--kafka-dir", str(data), "--topic", "idem", "--force")
    assert (ended.status, ended.out) == (4, "")
    assert "idem-0" in ended.err
    assert log.read_bytes() == damaged
    assert lakelog("compact", "--config", "cleanup.policy=compact").status == 2


SMALL = {"segment.bytes": "1024", "min.cleanable.dirty.ratio": "0"}
INTERNAL = ("__consumer_offsets", "__transaction_state", "__share_group_state")
KNOWN = [
    *known("a", {**SMALL, "cleanup.policy": "compact"}), *known("b", {**SMALL, "cleanup.policy": "compact"}, (1, 2)),
    *known("c", SMALL), *[config_record(2, "c", "retention.ms", str(number)) for number in range(30)],
]  # fmt: skip


def brokers_directory(directory: Path, metadata: Sequence[bytes] = KNOWN) -> Path:
    """Topics a to d, and the internal ones, each with 60 records of 3 keys. The high watermarks are at offset 20."""
    topics = ["a", "b", "c", "d", *INTERNAL]
    make_directory(directory, dict.fromkeys(topics, rows(60, keys=3)), metadata)
    lines = "".join(f"{topic} 0 20\n" for topic in topics)
    (directory / "replication-offset-checkpoint").write_text(f"0\n{len(topics)}\n{lines}")
    (directory / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":77}')
    return directory


def changed(before: dict[str, bytes], after: dict[str, bytes]) -> set[str]:
    """The folders and files of a directory that changed."""
    names = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    return {name.split("/")[0] for name in names}


def compact_directory(lakelog, data: Path, *arguments: str) -> tuple[Ended, set[str]]:
    """The end of the command, and what it changed."""
    before = contents(data)
    ended = lakelog("compact", "--kafka-dir", str(data), "--now", str(NOW_MS), *arguments)
    return ended, changed(before, contents(data)) - {"recovery-point-offset-checkpoint"}


def test_in_a_brokers_directory_only_topics_with_known_settings_are_compacted(lakelog, tmp_path: Path) -> None:
    data = brokers_directory(tmp_path / "data")
    ended, found = compact_directory(lakelog, data)
    assert (ended.status, ended.err) == (0, "")
    assert found == {"a-0", "b-0", "cleaner-offset-checkpoint"}
    internal = "".join(f"{data}: {topic}: not compacted: it is an internal topic\n" for topic in sorted(INTERNAL))
    left, done = ended.out.split(f"{data}/a-0: compacted up to offset 56, 56 records to 3, ")
    metadata, internal_left = left.split("\n", 1)
    assert metadata == f"{data}: __cluster_metadata: not compacted: KRaft alone opens it"
    assert internal_left == f"{internal}{data}: d: not compacted: __cluster_metadata has no topic of this name\n"
    assert f"{data}/b-0: compacted up to offset 14, 14 records to 3, " in done
    marker = (data / ".kafka_cleanshutdown").read_text()
    assert marker == '{"version":0,"brokerEpoch":77}'


@pytest.mark.parametrize(
    ("arguments", "folders", "problem"),
    [
        (("--topic", "a"), {"a-0"}, ""),
        (("--topic", "c"), set(), "c: not compacted: its cleanup.policy does not contain compact"),
        (("--topic", "c", "--config", "cleanup.policy=compact"), {"c-0"}, ""),
        (("--topic", "d"), set(), "no topic of this name; give its cleanup.policy with --config"),
        (("--topic", "d", *SETTINGS), {"d-0"}, ""),
        (("--topic", "__consumer_offsets", *SETTINGS), {"__consumer_offsets-0"}, ""),
        (
            ("--topic", "__cluster_metadata", *SETTINGS),
            set(),
            "__cluster_metadata: not compacted: KRaft alone opens it",
        ),
        (("--topic", "a", "--topic", "__cluster_metadata"), {"a-0"}, "not compacted: KRaft alone opens it"),
        (("--config", "delete.retention.ms=5"), {"a-0", "b-0"}, ""),
    ],
)
def test_a_named_topic_of_a_broker_is_compacted_or_the_status_says_why_not(
    lakelog, tmp_path: Path, arguments: tuple[str, ...], folders: set[str], problem: str
) -> None:
    data = brokers_directory(tmp_path / "data")
    ended, found = compact_directory(lakelog, data, "--force", *arguments)
    assert found == (folders | {"cleaner-offset-checkpoint"} if folders else set())
    assert ended.status == (4 if problem else 0)
    assert problem in ended.err
    assert bool(ended.err) == bool(problem)


def test_a_policy_for_all_topics_of_a_broker_is_refused(lakelog, tmp_path: Path) -> None:
    ended, found = compact_directory(lakelog, brokers_directory(tmp_path / "data"), "--force", *SETTINGS)
    assert (ended.status, ended.out, found) == (2, "", set())
    assert "--config cleanup.policy: is given without --topic" in ended.err


def test_damaged_metadata_is_an_error_and_nothing_is_compacted(lakelog, tmp_path: Path) -> None:
    data = brokers_directory(tmp_path / "data", [*known("a", {"cleanup.policy": "compact"}), b"\x01\x02\x09"])
    for arguments in ((), ("--topic", "a")):
        ended, found = compact_directory(lakelog, data, "--force", *arguments)
        assert (ended.status, found) == (4, set())
        assert "found version 9 of record type 2" in ended.err


def test_without_metadata_a_topic_must_be_named(lakelog, tmp_path: Path) -> None:
    data = brokers_directory(tmp_path / "data", ())
    ended, found = compact_directory(lakelog, data, "--force", *SETTINGS)
    assert (ended.status, ended.out, found) == (2, "", set())
    assert f"{data}: has no __cluster_metadata-0, so the settings of its topics are not known" in ended.err
    ended, found = compact_directory(lakelog, data, "--force", "--topic", "a")
    assert (ended.status, ended.err, found) == (0, "", {"a-0", "cleaner-offset-checkpoint"})
    assert f"{data}/a-0: compacted up to offset 14, 14 records to 3, " in ended.out
    (data / "replication-offset-checkpoint").unlink()
    ended, found = compact_directory(lakelog, data, "--force", "--topic", "b")
    assert (ended.status, found) == (4, set())
    assert "b-0: not compacted: replication-offset-checkpoint has no line for it, so no record is known to" in ended.err


def test_a_directory_that_no_broker_has_used_is_compacted_up_to_the_end(lakelog, tmp_path: Path) -> None:
    data = brokers_directory(tmp_path / "data", ())
    for file in ("meta.properties", "replication-offset-checkpoint"):
        (data / file).unlink()
    ended, found = compact_directory(lakelog, data, "--force", "--config", "segment.bytes=1024")
    assert (ended.status, found) == (2, set())
    ended, found = compact_directory(lakelog, data, "--topic", "a")
    assert (ended.status, found) == (0, {"a-0", "cleaner-offset-checkpoint"})
    assert f"{data}/a-0: compacted up to offset 56, 56 records to 3, " in ended.out
    ended, found = compact_directory(lakelog, data, *SETTINGS)
    assert (ended.status, found) == (0, {"b-0", "c-0", "d-0", "cleaner-offset-checkpoint"})
    assert not (data / "replication-offset-checkpoint").exists()


def test_after_a_crash_logs_that_are_not_compacted_wait_for_the_broker(lakelog, tmp_path: Path) -> None:
    data = brokers_directory(tmp_path / "data")
    (data / ".kafka_cleanshutdown").unlink()
    (data / "recovery-point-offset-checkpoint").unlink()
    for folder in ("a-0", "d-0"):
        with max((data / folder).glob("*.log")).open("ab") as log:
            log.write(b"torn")
    ended, found = compact_directory(lakelog, data, "--topic", "a")
    assert (ended.status, found) == (0, {"a-0", "cleaner-offset-checkpoint", "log-start-offset-checkpoint"} & found)
    assert not (data / ".kafka_cleanshutdown").exists()


@pytest.mark.posix("looks at the view")
@pytest.mark.parametrize("topic", ["compact", "compact_delete"])
@pytest.mark.parametrize(("before", "after"), [("before", "after1"), ("before2", "after2h")])
def test_an_imported_directory_is_shown_as_kafka_leaves_it(
    lakelog, tmp_path: Path, topic: str, before: str, after: str
) -> None:
    source = GOLDEN / f"{topic}.{before}"
    data = shutil.copytree(source / "data", tmp_path / "data")
    (data / CLEAN_SHUTDOWN).touch()
    now = (GOLDEN / f"{topic}.{after}" / "clock").read_text().split("=")[1].strip()
    configs = [f"--config={word}" for word in words_of(source / "topic.config")]
    assert lakelog("topics", "import", str(data), *configs).status == 0
    assert lakelog("compact", "--topic", topic, "--now", now).status == 0
    shown = {path.name: path.read_bytes() for path in (tmp_path / f"root/log/{topic}-0").iterdir()}
    kafka = {path.name: path.read_bytes() for path in (GOLDEN / f"{topic}.{after}/data/{topic}-0").iterdir()}
    assert shown.keys() == kafka.keys()
    for name in kafka.keys() - {LEADER_EPOCHS}:
        equal = batches(shown[name]) == batches(kafka[name]) if name.endswith(LOG) else shown[name] == kafka[name]
        assert equal, name


@pytest.mark.posix("looks at the view")
def test_snapshots_stay_what_they_were_at_the_roll(lakelog, tmp_path: Path) -> None:
    data = shutil.copytree(GOLDEN / "txn/data", tmp_path / "data")
    (data / CLEAN_SHUTDOWN).touch()
    before = {path.name: path.read_bytes() for path in (data / "txn-0").glob("*.snapshot")}
    lakelog("topics", "import", str(data), "--config=cleanup.policy=compact", "--config=segment.bytes=16384")
    shown = tmp_path / "root/log/txn-0"
    assert {path.name: path.read_bytes() for path in shown.glob("*.snapshot")} == before
    assert "to 127" in lakelog("compact", "--topic", "txn", "--force", "--now", "1800000000000").out
    lakelog("topics", "settle")
    after = {path.name: path.read_bytes() for path in shown.glob("*.snapshot")}
    assert after == {name: before[name] for name in after}
    assert len(after) == len(before)


def test_records_that_a_log_has_lost_are_named(lakelog, tmp_path) -> None:
    data = tmp_path / "data"
    shutil.copytree(GOLDEN / "compact.before/data", data)
    newest = max((data / "compact-0").glob("*.log"))
    newest.unlink()
    ended = lakelog("compact", "--kafka-dir", str(data), "--topic", "compact")
    assert ended.status == 4
    assert (
        f"{data}/compact-0: the recovery point is 4000 (recovery-point-offset-checkpoint), but the log ends"
        in ended.err
    )
    assert f"the records from {int(newest.stem)} on are lost" in ended.err
    assert json.loads((data / ".kafka_cleanshutdown").read_text())["brokerEpoch"] == -1
