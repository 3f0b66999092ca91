"""`lakelog topics`, and the parts that all commands share: roots, settings files, and errors for mistakes of the user."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from lakelog.cli.topics import topics as commands
from storage_engine.clock import ManualClock
from storage_engine.config import BrokerConfig
from storage_engine.errors import UnsupportedError
from storage_engine.topic.append.topic_writer import take_over
from storage_engine.topic.chain.topic_state import CommittedBatch
from storage_engine.topic.ingest_reports import IngestReport, put_report
from storage_engine.topic.topics import Topics
from tests.lakelog.cli.conftest import line
from tests.storage_engine.topic.wrapped_storage import PlainStorage
from tests.stores import root_at, storage_at


def test_a_topic_is_created_listed_described_altered_and_deleted(lakelog) -> None:
    created = lakelog("topics", "create", "orders", "--partitions", "2", "--config", "cleanup.policy=compact")
    assert created.status == 0
    assert created.out.startswith("created topic orders with 2 partitions, topic id ")
    lakelog("topics", "create", "a.first")
    assert lakelog("topics", "list").out == "a.first\norders\n"
    assert lakelog("topics", "alter", "orders", "--partitions", "3", "--config", "retention.ms=5").status == 0
    described = lakelog("topics", "describe", "orders")
    assert described.status == 0
    for expected in ("orders", "version 1", "writer           none", "cleanup.policy", "compact", "retention.ms"):
        assert expected in described.out
    altered = lakelog("topics", "alter", "orders", "--delete-config", "cleanup.policy")
    assert altered.out == "altered topic orders: 3 partitions, retention.ms=5\n"
    assert lakelog("topics", "delete", "orders").out == "deleted topic orders\n"
    assert lakelog("topics", "list").out == "a.first\n"
    assert lakelog("topics", "create", "orders").status == 0


def test_describe_shows_how_far_sources_are_committed(lakelog, tmp_path) -> None:
    lakelog("topics", "create", "t")
    topics = Topics(storage_at(tmp_path / "root"), BrokerConfig(), ManualClock(1_700_000_000_000))
    positions = {"kafka b1:9092": {"orders/0": 41, "orders/1": 7}}
    query = {"q": CommittedBatch(batch_id=-1, offsets_hash="", lineage="0a")}
    topics.chain("t").commit(
        lambda state: state.model_copy(update={"positions": positions, "queries": query}), "fed by another checkpoint"
    )
    described = lakelog("topics", "describe", "t").out
    assert "positions        of 2 partitions of source kafka b1:9092\n" in described
    assert "last batch       none of query q\n" in described
    assert json.loads(lakelog("topics", "describe", "t", "--format", "json").out)["positions"] == positions


def test_describe_shows_how_far_the_ingest_is_behind_its_source(lakelog, tmp_path) -> None:
    lakelog("topics", "create", "t")
    topics = Topics(storage_at(tmp_path / "root"), BrokerConfig(), ManualClock(1_700_000_000_000))
    take_over(topics.chain("t"), "q")
    assert json.loads(lakelog("topics", "describe", "t", "--format", "json").out)["ingest"] is None
    shown = {
        "query": "q",
        "updated_ms": 1_700_000_000_000,
        "is_running": True,
        "batch_id": 41,
        "batch_ms": 1_699_999_990_000,
    }
    for lag, told in (
        (1_200, "1,200 records behind its source"),
        (None, "its lag is not known"),
    ):
        put_report(topics.storage, IngestReport.model_validate(shown | {"lag_records": lag}))
        line = f"ingest           runs, micro-batch 41 is recorded, {told}; reported 2023-11-14 22:13:20.000Z\n"
        assert line in lakelog("topics", "describe", "t").out
        found = json.loads(lakelog("topics", "describe", "t", "--format", "json").out)["ingest"]
        assert found == shown | {"lag_records": lag}


def test_describe_shows_everything_else_if_the_report_of_the_ingest_is_damaged(lakelog, tmp_path) -> None:
    lakelog("topics", "create", "t", "--partitions", "2")
    storage = storage_at(tmp_path / "root")
    topics = Topics(storage, BrokerConfig(), ManualClock(1_700_000_000_000))
    take_over(topics.chain("t"), "q")
    whole = lakelog("topics", "describe", "t", "--format", "json")
    storage.replace("meta/@ingests/q.json", b'{"format":2,')
    found = lakelog("topics", "describe", "t", "--format", "json")
    shown = json.loads(found.out)
    assert (found.status, found.err) == (4, f"lakelog: {shown['ingest_error']}\n")
    assert shown["ingest_error"].startswith("meta/@ingests/q.json at position 0: expected the report of an ingest")
    assert shown | {"ingest_error": None} == json.loads(whole.out)
    table = lakelog("topics", "describe", "t")
    assert (table.status, table.err) == (4, found.err)
    assert "ingest           its report cannot be read\n" in table.out
    removed = lakelog("verify", "--repair")
    assert (removed.status, lakelog("topics", "describe", "t", "--format", "json")) == (0, whole)


def test_describe_shows_partitions_and_segments(lakelog) -> None:
    lakelog("topics", "create", "t", "--partitions", "2", "--config", "segment.bytes=1024")
    lines = [line(b"k", bytes(400), timestamp=1_700_000_000_000 + number) for number in range(5)]
    lakelog("append", "--topic", "t", "--partition", "1", stdin=lines)
    rows = [row.split() for row in lakelog("topics", "describe", "t").out.splitlines()]
    assert ["0", "0", "0", "-", "0", "0", "0", "none"] in rows
    partition = next(row for row in rows if row[:6] == ["1", "0", "5", "-", "0", "3"])
    assert partition[7:] == ["2023-11-14", "22:13:20.004Z"]
    segments = [row for row in rows if len(row) > 7 and row[0] == "1" and row[7].count(".") == 2]
    assert [row[1:4] for row in segments] == [["0", "2", "0"], ["2", "4", "0"], ["4", "5", "0"]]
    assert segments[0][5:7] == ["2023-11-14", "22:13:20.001Z"]
    assert [row[8:] for row in segments] == [[], [], ["active"]]
    assert sum(int(row[4].replace(",", "")) for row in segments) == int(partition[6].replace(",", ""))


def test_describe_gives_programs_every_number_as_it_is(lakelog) -> None:
    lakelog("topics", "create", "t", "--config", "segment.bytes=1024")
    lakelog("append", "--topic", "t", stdin=[line(b"k", bytes(900), timestamp=1_700_000_000_000 + n) for n in range(2)])
    ended = lakelog("topics", "describe", "t", "--format", "json")
    assert ended.status == 0
    described = json.loads(ended.out)
    assert (described["topic"], described["version"]) == ("t", 1)
    assert described["settings"] == [{"key": "segment.bytes", "value": "1024", "from": "topic"}]
    (partition,) = described["partitions"]
    assert (partition["log_start_offset"], partition["high_watermark"], partition["first_dirty_offset"]) == (0, 2, None)
    assert partition["leader_epochs"] == [{"epoch": 0, "start_offset": 0}]
    assert [each["base_offset"] for each in partition["segments"]] == [0, 1]
    assert [each["largest_timestamp"] for each in partition["segments"]] == [1_700_000_000_000, 1_700_000_000_001]
    assert partition["size"] == sum(each["size"] for each in partition["segments"])


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["topics", "describe", "missing"], 1, "topic missing: not found under"),
        (["topics", "delete", "missing"], 1, "topic missing: not found under"),
        (["topics", "alter", "missing", "--partitions", "2"], 1, "topic missing: not found under"),
        (["read", "--topic", "missing"], 1, "topic missing: not found under"),
        (["append", "--topic", "missing"], 1, "topic missing: not found under"),
        (["offsets", "--topic", "missing"], 1, "topic missing: not found under"),
        (["topics", "create", "t"], 1, "topic t: already exists, with 1 partition."),
        (["topics", "create", "a/b"], 1, "'/' at position 1 is not allowed"),
        (["topics", "create", "u", "--partitions", "0"], 1, "found 0 partitions"),
        (["topics", "alter", "t", "--partitions", "0"], 1, "found 0 partitions"),
        (["topics", "create", "u", "--config", "retention.mss=1"], 2, "The nearest valid key is retention.ms"),
        (["topics", "create", "u", "--config", "retention.ms=soon"], 2, "retention.ms: expected a whole number"),
        (["topics", "create", "u", "--config", "retention.ms"], 2, "--config: expected KEY=VALUE"),
        (["topics", "create", "u", "--config", "flush.ms=1"], 2, "would have no effect in Lakelog"),
        (["topics", "create", "u", "--config", "segment.bytes=2000", "--config", "segment.bytes=3000"], 2, "twice"),
        (["topics", "alter", "t"], 2, "no change is given"),
        (["topics", "alter", "t", "--config", "retention.ms=1", "--delete-config", "retention.ms"], 2, "too"),
        (["topics", "alter", "t", "--delete-config", "nothing"], 2, "unknown topic key nothing"),
        (["topics", "list", "--root", "ftp://bucket"], 2, "found the scheme 'ftp'"),
        (["topics", "list", "--conf", "missing.yaml"], 2, "missing.yaml: cannot be read"),
        (["read", "--topic", "t", "--partition", "1"], 1, "has partitions 0 to 0, but --partition is 1"),
        (["append", "--topic", "t", "--partition", "1"], 1, "has partitions 0 to 0, but no partition 1"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_on_standard_error(lakelog, arguments, status, message) -> None:
    lakelog("topics", "create", "t")
    ended = lakelog(*arguments)
    assert (ended.status, ended.out) == (status, "")
    assert message in ended.err
    assert ended.err.startswith("lakelog: ")
    assert ended.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", [["read", "t"], ["topics", "lst"], ["read", "--topic", "t", "--max", "x"], ["topics", "create"]]
)
def test_a_wrong_command_line_is_status_2_without_a_traceback(lakelog, arguments) -> None:
    ended = lakelog(*arguments)
    assert (ended.status, ended.out) == (2, "")
    assert "Usage: lakelog" in ended.err
    assert "Traceback" not in ended.err


def test_a_root_that_is_a_file_is_named(lakelog, tmp_path) -> None:
    (tmp_path / "file").write_text("no directory")
    for arguments in (["topics", "create", "t"], ["topics", "list"], ["read", "--topic", "t"]):
        ended = lakelog(*arguments, "--root", str(tmp_path / "file"))
        assert ended.status == 1
        assert f"{tmp_path}/file" in ended.err
        assert "move the file away, or choose another root" in ended.err


def test_a_root_must_be_named(lakelog, monkeypatch, tmp_path) -> None:
    monkeypatch.delenv("LAKELOG_ROOT")
    ended = lakelog("topics", "list")
    assert (ended.status, ended.err) == (
        2,
        "lakelog: --root: no root is given, so Lakelog does not know where the topics are. Give --root or LAKELOG_ROOT.\n",
    )
    assert lakelog("topics", "create", "t", "--root", f"file://{tmp_path}/other").status == 0
    assert (tmp_path / "other/meta/t").is_dir()


@pytest.mark.posix("names local roots")
def test_root_beats_the_variable_and_that_the_file(lakelog, monkeypatch, tmp_path) -> None:
    conf = tmp_path / "conf.yaml"
    conf.write_text(f"root: {tmp_path}/from-file\nbroker:\n  num.partitions: 3\n  log.segment.bytes: 4096\nother: 1\n")
    lakelog("topics", "create", "t", "--conf", str(conf), "--root", f"{tmp_path}/from-option")
    lakelog("topics", "create", "t", "--conf", str(conf))
    monkeypatch.delenv("LAKELOG_ROOT")
    created = lakelog("topics", "create", "t", "--conf", str(conf))
    assert created.out.startswith("created topic t with 3 partitions")
    for root in ("from-option", "root", "from-file"):
        assert (tmp_path / root / "meta/t").is_dir()
    described = lakelog("topics", "describe", "t", "--conf", str(conf)).out
    assert "segment.bytes" in described
    assert "broker" in described


def test_a_mistake_in_the_file_names_its_line(lakelog, tmp_path) -> None:
    conf = tmp_path / "conf.yaml"
    conf.write_text("broker:\n  num.partitions: 3\n  log.retention.hour: 4\n")
    ended = lakelog("topics", "list", "--conf", str(conf))
    assert ended.status == 2
    assert f"{conf}, line 3" in ended.err
    assert "log.retention.hours" in ended.err


@pytest.mark.posix("reads the view")
def test_a_damaged_topic_costs_the_others_nothing(lakelog, tmp_path) -> None:
    log, meta = tmp_path / "root/log", tmp_path / "root/meta"
    for name in ("bad", "good", "last"):
        lakelog("topics", "create", name)
        lakelog("append", "--topic", name, stdin=[line(b"k", b"v")])
    recovery_points = (log / "recovery-point-offset-checkpoint").read_bytes()
    max((meta / "bad").glob("*.json")).write_bytes(b"")
    listed = lakelog("topics", "list")
    assert (listed.status, listed.out) == (4, "good\nlast\n")
    assert listed.err.startswith("lakelog: meta/bad/")
    appended = lakelog("append", "--topic", "good", stdin=[line(b"k", b"v")])
    assert (appended.status, appended.err) == (0, "")
    assert lakelog("append", "--transactional", stdin=[line(b"k", b"v", topic="last")]).status == 0
    assert lakelog("topics", "settle", "good").status == 0
    settled = lakelog("topics", "settle")
    assert settled.status == 1
    assert settled.err.startswith("lakelog: meta/bad/")
    assert (log / "bad-0/00000000000000000000.log").stat().st_size > 0
    shown = (log / "recovery-point-offset-checkpoint").read_bytes().splitlines()
    assert shown[2] == recovery_points.splitlines()[2] == b"bad 0 1"
    assert shown[3] == b"good 0 2"
    assert (lakelog("transactions", "list").status, lakelog("transactions", "finish").status) == (4, 1)
    exported = lakelog("topics", "export", str(tmp_path / "out"))
    assert exported.status == 4
    assert (tmp_path / "out/good-0").is_dir()


@pytest.mark.posix("reads the view")
def test_log_shows_what_was_created_and_deleted(lakelog, tmp_path) -> None:
    lakelog("topics", "create", "t", "--partitions", "2")
    lakelog("append", "--topic", "t", "--partition", "1", stdin=[line(b"k", b"v")])
    assert (tmp_path / "root/log/t-1/00000000000000000000.log").stat().st_size > 0
    assert (tmp_path / "root/log/t-0").is_dir()
    lakelog("topics", "delete", "t")
    assert not (tmp_path / "root/log/t-0").exists()


def test_listing_topics_loads_no_kernels() -> None:
    code = "import sys, lakelog.cli.app, storage_engine.topic.topics; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"numba", "numpy", "pyarrow", "rich.table", "yaml"} & set(loaded)


def test_reading_does_not_load_pandas(lakelog, tmp_path) -> None:
    """Loading pandas takes as long as the rest of a command's start. The first pa.array() of a list would load it."""
    lakelog("topics", "create", "t")
    lakelog("append", "--topic", "t", stdin=[line(b"k", b"v", headers=[["n", "dg=="]]), line(b"k", None)])
    code = (
        "import atexit, sys; atexit.register(lambda: print('pandas' in sys.modules))\n"
        "import lakelog.cli; lakelog.cli.main()"
    )
    command = [sys.executable, "-c", code, "read", "--topic", "t", "--root", root_at(tmp_path / "root")]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert (len(printed), printed[-1]) == (3, "False")


def test_the_module_can_be_run() -> None:
    command = [sys.executable, "-m", "lakelog.cli", "--version"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.startswith("lakelog ")


@pytest.mark.posix("names local roots")
def test_settling_a_root_that_can_have_no_view_says_what_to_do(tmp_path, monkeypatch) -> None:
    topics = Topics(PlainStorage(storage_at(tmp_path)), BrokerConfig(), ManualClock(0))
    topics.create("t", 1, {})
    monkeypatch.setattr(commands, "open_topics", lambda root, conf: topics)
    with pytest.raises(UnsupportedError) as refused:
        commands.settle()
    assert str(refused.value) == (
        f"root {tmp_path}: showing topics in log/ is not possible on this kind of storage."
        " `lakelog topics export` copies topics for Kafka's tools."
    )
