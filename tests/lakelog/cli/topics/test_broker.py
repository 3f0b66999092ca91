"""`lakelog broker`, and that every command uses the broker settings that are stored in the root."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from storage_engine.record.batch_limit import VARIABLE
from storage_engine.storage import Storage
from storage_engine.topic.broker_settings import SETTINGS_KEY
from tests.in_process import Ended
from tests.lakelog.cli.conftest import Lakelog, line
from tests.storage_engine.topic.chain.signed_documents import change_fields, signed
from tests.stores import storage_at

NOW = 1_700_000_100_000
SECTION = "broker: {log.retention.minutes: 1, num.partitions: 2}\n"


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    file = tmp_path / "conf.yaml"
    file.write_text(SECTION)
    return file


@pytest.fixture
def root(tmp_path: Path) -> Storage:
    return storage_at(tmp_path / "root")


@pytest.fixture
def filled(lakelog: Lakelog, conf: Path) -> Lakelog:
    """t, made with the file: of three segments two are too old at NOW by the file, none by Kafka's default."""
    assert lakelog("topics", "create", "t", "--config", "segment.bytes=1024", "--conf", str(conf))[::2] == (0, "")
    for age_ms in (82_000, 80_000, 0):
        record = line(b"k", bytes(900), timestamp=NOW - age_ms)
        assert lakelog("append", "--topic", "t", "--partition", "0", stdin=[record]).status == 0
    return lakelog


def plan(lakelog: Lakelog, *options: str) -> Ended:
    return lakelog("plan", "--now", str(NOW), "--format", "json", *options)


def kept(lakelog: Lakelog) -> dict[str, str]:
    described = lakelog("broker", "describe", "--format", "json")
    assert (described.status, described.err) == (0, "")
    (document,) = described.records
    assert {each["from"] for each in document["settings"]} <= {"root"}
    return {each["key"]: each["value"] for each in document["settings"]}


def deleted(ended: Ended) -> list[int]:
    """The base offsets of the segments of partition 0 of the first topic that a plan deletes."""
    steps = ended.records[0]["topics"][0]["partitions"][0]["steps"]
    return [step["base_offset"] for step in steps if step["action"] == "delete"]


def test_what_the_first_run_was_told_holds_without_the_file(filled: Lakelog, conf: Path) -> None:
    with_file, without = plan(filled, "--conf", str(conf)), plan(filled)
    assert (with_file.status, with_file.err) == (without.status, without.err) == (0, "")
    assert without.records == with_file.records
    assert deleted(without) == [0, 1]
    assert kept(filled) == {"log.retention.minutes": "1", "num.partitions": "2"}
    assert filled("topics", "create", "u").out.startswith("created topic u with 2 partitions")
    assert filled("topics", "list").out == "t\nu\n"
    assert "nothing is wrong" in filled("verify", "--deep").out


def test_a_later_file_does_not_change_what_the_root_keeps_and_says_so(filled: Lakelog, tmp_path: Path) -> None:
    before = plan(filled)
    other = tmp_path / "other.yaml"
    other.write_text("broker:\n  log.retention.hours: 9\n  num.partitions: 2\n")
    ended = plan(filled, "--conf", str(other))
    assert ended.err == (
        f"lakelog: {other}, line 2, broker.log.retention.hours: log.retention.hours=9 is used in this run only. The root has"
        " log.retention.minutes=1; `lakelog broker alter --config log.retention.hours=9` stores this value in the root\n"
    )
    assert (deleted(before), deleted(ended)) == ([0, 1], [])
    assert filled("topics", "create", "u", "--conf", str(other)).status == 0
    assert kept(filled) == {"log.retention.minutes": "1", "num.partitions": "2"}
    assert plan(filled, "--topic", "t").records == before.records
    other.write_text("broker: {log.retention.ms: 60000}\n")
    assert plan(filled, "--topic", "t", "--conf", str(other))[::2] == (0, ""), "the same in other words"


def test_altering_and_deleting_act_in_the_next_command(filled: Lakelog, root: Storage) -> None:
    before = plan(filled)
    ended = filled(
        "broker", "alter", "--config", "log.retention.hours=9", "--config", "log.cleanup.policy=compact,delete"
    )
    assert (ended.status, ended.err) == (0, "")
    assert ended.out == (
        "altered the broker's settings: log.cleanup.policy=compact,delete log.retention.hours=9 num.partitions=2\n"
    )
    assert kept(filled) == {
        "log.cleanup.policy": "compact,delete", "log.retention.hours": "9", "num.partitions": "2",
    }, "a key takes the place of its synonyms"  # fmt: skip
    assert plan(filled).records != before.records
    data = root.read(SETTINGS_KEY)
    document = {"format": 2, "id": json.loads(data)["id"], "settings": kept(filled)}
    assert data == signed(SETTINGS_KEY, document)
    assert (
        filled("broker", "alter", "--config", "log.retention.ms=60000", "--delete-config", "log.cleanup.policy").status
        == 0
    )
    assert plan(filled).records == before.records
    for key in ("log.retention.ms", "num.partitions"):
        assert filled("broker", "alter", "--delete-config", key).status == 0
    assert filled("broker", "describe").out == "no broker settings are stored in the root: Kafka's defaults apply\n"
    assert "log.retention" not in filled("topics", "describe", "t").out


def test_a_root_that_keeps_none_any_more_takes_no_section_over(filled: Lakelog, conf: Path) -> None:
    filled("broker", "alter", "--delete-config", "log.retention.minutes", "--delete-config", "num.partitions")
    ended = filled("topics", "create", "u", "--conf", str(conf))
    assert ended.err.count("The root has the default, ") == 2
    assert "root has the default, log.retention.hours=168; `lakelog broker alter --config log.retention" in ended.err
    assert kept(filled) == {}


def test_commands_that_make_no_topic_keep_nothing(lakelog: Lakelog, conf: Path, root: Storage) -> None:
    lakelog("topics", "create", "t")
    ended = lakelog("topics", "list", "--conf", str(conf))
    assert (ended.status, ended.out, len(ended.err.splitlines())) == (0, "t\n", 2)
    failed = lakelog("topics", "create", "t", "--conf", str(conf))
    assert (failed.status, len(failed.err.splitlines())) == (1, 1)
    assert lakelog("topics", "create", "not/a/name", "--conf", str(conf)).status != 0
    assert not list(root.list("meta/@broker/"))


def test_all_tells_where_each_setting_comes_from(
    filled: Lakelog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other.yaml"
    other.write_text("broker: {log.segment.bytes: 4096}\n")
    monkeypatch.setenv(VARIABLE, "300000000")
    ended = filled("broker", "describe", "--all", "--format", "json", "--conf", str(other))
    settings = {each["key"]: (each["value"], each["from"]) for each in ended.records[0]["settings"]}
    assert settings["log.retention.minutes"] == ("1", "root")
    assert settings["log.segment.bytes"] == ("4096", "file")
    assert settings["batch.max.uncompressed.bytes"] == ("300000000", "environment")
    assert settings["log.cleanup.policy"] == ("delete", "default")
    assert "log.retention.hours" not in settings, "its synonym acts"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--config", "log.retention.hour=1"), "The nearest valid key is log.retention.hours."),
        (("--config", "retention.ms=1"), "The broker's key that sets the default of all topics is log.retention.ms."),
        (("--config", "log.retention.hours=0"), "expected a whole number of hours"),
        (("--config", "log.retention.hours"), "expected KEY=VALUE"),
        (("--config", "num.partitions=3", "--delete-config", "log.retention.minute"), "log.retention.minutes."),
        (("--config", "num.partitions=3", "--delete-config", "num.partitions"), "is given to --config, too"),
        (
            ("--config", "num.partitions=3", "--config", "log.cleaner.max.compaction.lag.ms=5"),
            "topic lagging, min.comp",
        ),
        ((), "no change is given"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(
    filled: Lakelog, root: Storage, options: tuple[str, ...], said: str
) -> None:
    filled("topics", "create", "lagging", "--config", "min.compaction.lag.ms=10")
    before = root.read(SETTINGS_KEY)
    ended = filled("broker", "alter", *options)
    assert (ended.status, ended.out, len(ended.err.splitlines())) == (2, "", 1)
    assert said in ended.err
    assert root.read(SETTINGS_KEY) == before


def test_a_damaged_document_is_refused_found_and_brought_back(filled: Lakelog, conf: Path, root: Storage) -> None:
    before, planned = root.read(SETTINGS_KEY), plan(filled)
    root.replace(SETTINGS_KEY, before.replace(b'minutes":"1"', b'minutes":"9"'))
    for command in (
        ("plan",), ("topics", "list"), ("read", "--topic", "t"), ("broker", "describe"), ("plan", "--conf", str(conf)),
        ("broker", "alter", "--config", "num.partitions=3"), ("topics", "create", "u", "--conf", str(conf)),
    ):  # fmt: skip
        ended = filled(*command)
        assert (ended.status, ended.out, len(ended.err.splitlines())) == (1, "", 1), command
        assert ended.err.startswith(f"lakelog: {SETTINGS_KEY} at position 0: expected bytes with digest")
        assert "`lakelog verify --repair` undoes one changed byte" in ended.err
    found = filled("verify", "--conf", str(conf))
    assert (found.status, found.err) == (4, "")
    assert SETTINGS_KEY in found.out
    assert filled("verify", "--repair").status == 0
    assert root.read(SETTINGS_KEY) == before
    assert plan(filled).records == planned.records


def test_a_key_of_a_later_version_is_named(filled: Lakelog, root: Storage) -> None:
    change_fields(root, SETTINGS_KEY, settings={"log.of.tomorrow": "1"})
    ended = filled("topics", "list")
    assert (ended.status, ended.out) == (1, "")
    assert f"{root.uri}/{SETTINGS_KEY}, log.of.tomorrow: unknown broker key" in ended.err


def test_what_a_batch_may_unfold_to_is_kept_too(lakelog: Lakelog) -> None:
    lakelog("topics", "create", "t", "--config", "compression.type=zstd")
    lakelog("append", "--topic", "t", stdin=[line(b"k", bytes(500_000))])
    assert lakelog("broker", "alter", "--config", "batch.max.uncompressed.bytes=65536").status == 0
    refused = lakelog("read", "--topic", "t")
    assert (refused.status, refused.out) == (1, "")
    assert "a batch of at most 65536 bytes after decompression" in refused.err
    assert lakelog("broker", "alter", "--delete-config", "batch.max.uncompressed.bytes").status == 0
    assert json.loads(lakelog("read", "--topic", "t").out)["offset"] == 0
