"""Commands with the options of Kafka's tools, without a broker. tests/kafka/test_kafka_tools.py compares these commands
with Kafka's own tools.
"""

from __future__ import annotations

import base64
import json
import re
import tracemalloc
from pathlib import Path

import pytest
import typer

from lakelog.cli.app import app
from lakelog.cli.kafka_tools.kafka_options import TOOLS
from lakelog.cli.kafka_tools.perf_figures import (
    Consumed,
    ProducerFigures,
    consumer_interval,
    consumer_total,
    shown_date,
)
from storage_engine.errors import UsageError
from tests.lakelog.cli.conftest import Lakelog, line

REFUSED = [(tool, option) for tool in TOOLS for option in tool.options if not option.ours]
DOTTED = ("a.b", "a-b", "axb")


@pytest.fixture
def orders(lakelog: Lakelog) -> Lakelog:
    """A root with the topic orders: two records in partition 0, and one in partition 1."""
    assert lakelog("topics", "create", "orders", "--partitions", "2").status == 0
    for partition, count in (("0", 2), ("1", 1)):
        lakelog("append", "--topic", "orders", "--partition", partition, stdin=[line(b"k", b"value")] * count)
    return lakelog


# --- Options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tool", "option"), REFUSED, ids=[f"{tool.script} {option.name}" for tool, option in REFUSED])
def test_an_option_that_is_refused_names_the_reason(lakelog: Lakelog, tool, option) -> None:
    for words in ((option.name, "value"), (f"{option.name}=value",)):
        ended = lakelog(*tool.command.split(), *words)
        assert (ended.status, ended.out) == (2, "")
        assert ended.err == f"lakelog: {option.name} of {tool.script}: is not supported. {option.note}\n"


@pytest.mark.parametrize("tool", TOOLS, ids=[tool.script for tool in TOOLS])
def test_an_option_that_is_accepted_is_an_option_of_the_command(tool) -> None:
    command = typer.main.get_command(app)
    for word in tool.command.split():
        command = command.commands[word]  # type: ignore[attr-defined]
    names = {name for parameter in command.params for name in parameter.opts} | {"--help"}
    assert {option.ours.split()[0] for option in tool.options if option.ours} <= names


# --- offsets ----------------------------------------------------------------------------------------------------------


def test_the_exact_name_of_a_topic_means_only_this_topic(lakelog: Lakelog) -> None:
    for name in DOTTED:
        lakelog("topics", "create", name)
    assert lakelog("offsets", "--topic", "a.b").out == "a.b:0:0\n"
    assert lakelog("offsets", "--topic", "a.b,none").out == "a-b:0:0\na.b:0:0\naxb:0:0\n"
    assert lakelog("offsets", "--topic-partitions", "a.b:0").out == "a-b:0:0\na.b:0:0\naxb:0:0\n"


@pytest.mark.posix("damages a file")
def test_an_unreadable_topic_is_named_and_the_others_are_printed(orders: Lakelog, tmp_path: Path) -> None:
    orders("topics", "create", "clicks")
    (damaged,) = (tmp_path / "root/meta/clicks").glob("*.json")
    damaged.write_bytes(b"{}")
    ended = orders("offsets")
    assert (ended.status, ended.out) == (4, "orders:0:2\norders:1:1\n")
    assert "meta/clicks/00000000000000000000.json" in ended.err
    assert orders("offsets", "--topic", "clicks").status == 1


# --- configs ----------------------------------------------------------------------------------------------------------


def test_configs_show_what_the_root_stores_as_defaults_of_a_broker(orders: Lakelog) -> None:
    orders("broker", "alter", "--config", "log.retention.hours=24", "--config", "log.segment.bytes=2000000")
    altered = orders("configs", "--alter", "--topic", "orders", "--add-config", "segment.bytes=3000000")
    assert (altered.status, altered.out) == (0, "Completed updating config for topic orders.\n")
    assert orders("configs", "--describe", "--entity-name", "orders").out == (
        "Dynamic configs for topic orders are:\n"
        "  segment.bytes=3000000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:segment.bytes=3000000,"
        " DYNAMIC_DEFAULT_BROKER_CONFIG:log.segment.bytes=2000000, DEFAULT_CONFIG:log.segment.bytes=1073741824}\n"
    )
    retention = [each for each in orders("configs", "--describe", "--all").out.splitlines() if "retention.ms=" in each]
    assert (
        "  retention.ms=86400000 sensitive=false synonyms={DYNAMIC_DEFAULT_BROKER_CONFIG:log.retention.hours=24}"
        in (retention)
    )


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ((), "--describe or --alter is required"),
        (("--describe", "--entity-type", "brokers"), "expected topics; found 'brokers'"),
        (("--describe", "--topic", "a", "--entity-name", "b"), "--entity-name is given, too"),
        (("--describe", "--add-config", "a=b"), "an option of --alter is given, too"),
        (("--alter", "--topic", "a", "--add-config", "a=b", "--add-config-file", "f"), "--add-config is given, too"),
        (("--alter", "--topic", "a", "--add-config", "nothing=1"), "--add-config nothing: unknown topic key"),
        (("--alter", "--topic", "a", "--delete-config", "retention.ms,nothing"), "unknown topic key nothing"),
        (("--alter", "--topic", "a", "--add-config", "retention.ms=1", "--delete-config", "retention.ms"), "too"),
    ],
)
def test_configs_refuse(lakelog: Lakelog, words: tuple[str, ...], problem: str) -> None:
    ended = lakelog("configs", *words)
    assert (ended.status, ended.out) == (2, "")
    assert problem in ended.err


# --- log-dirs ---------------------------------------------------------------------------------------------------------


def test_log_dirs_of_a_root_have_the_committed_bytes(orders: Lakelog) -> None:
    (described,) = orders("topics", "describe", "orders", "--format", "json").records
    sizes = {f"orders-{number}": each["size"] for number, each in enumerate(described["partitions"])}
    first, second, document = orders("log-dirs", "--describe").out.splitlines()
    assert first == "Querying brokers for log directories information"
    assert second == "Received log directory information from brokers 0"
    (broker,) = json.loads(document)["brokers"]
    (directory,) = broker["logDirs"]
    assert {each["partition"]: each["size"] for each in directory["partitions"]} == sizes
    assert min(sizes.values()) > 60
    assert orders("log-dirs").status == 2
    assert "the brokers 7 do not exist" in orders("log-dirs", "--describe", "--broker-list", "0,7").err


def test_a_partition_that_a_broker_was_moving_to_the_directory_is_a_future_one(orders: Lakelog, tmp_path: Path) -> None:
    for folder, sizes in {
        "a-0": (70,), "a-0.7e57-future": (9,), "a-1.7e57-future": (30, 5), "a-2.7e57-delete": (1,), "a-3.7e57-stray": (1,),
        "b-x.7e57-future": (1,),
    }.items():  # fmt: skip
        (tmp_path / "disk" / folder).mkdir(parents=True)
        for number, size in enumerate(sizes):
            (tmp_path / "disk" / folder / f"{number:020}.log").write_bytes(bytes(size))
    (broker,) = json.loads(
        orders("log-dirs", "--describe", "--kafka-dir", str(tmp_path / "disk")).out.splitlines()[-1]
    )["brokers"]
    assert sorted(broker["logDirs"][0]["partitions"], key=lambda each: each["partition"]) == [
        {"partition": "a-0", "size": 70, "offsetLag": 0, "isFuture": False},
        {"partition": "a-1", "size": 35, "offsetLag": -1, "isFuture": True},
    ]


# --- delete-records ---------------------------------------------------------------------------------------------------


def test_delete_records_needs_all_its_options_or_a_file(orders: Lakelog, tmp_path: Path) -> None:
    assert "an option is missing" in orders("delete-records", "--topic", "orders").err
    file = tmp_path / "offsets.json"
    file.write_text('{"partitions": [{"topic": "orders", "partition": 0, "offset": -1}]}')
    given = orders("delete-records", "--offset-json-file", str(file), "--topic", "orders")
    assert (given.status, "is given, too" in given.err) == (2, True)
    for text, problem in (
        ("{", "the file is not JSON"),
        ("[" * 100_000, "the file has lists or objects that are nested too deeply"),
    ):
        (tmp_path / "wrong.json").write_text(text)
        ended = orders("delete-records", "--offset-json-file", str(tmp_path / "wrong.json"))
        assert (ended.status, ended.out) == (2, "")
        assert ended.err.startswith(f"lakelog: --offset-json-file {tmp_path}/wrong.json: {problem}. For example ")
    assert orders("delete-records", "--offset-json-file", str(file)).out == (
        "Executing records delete operation\nRecords delete operation completed:\npartition: orders-0\tlow_watermark: 2\n"
    )
    assert orders("offsets", "--time", "earliest").out == "orders:0:2\norders:1:0\n"


# --- perf -------------------------------------------------------------------------------------------------------------


def test_perf_produce_appends_the_records(orders: Lakelog, tmp_path: Path) -> None:
    payloads = tmp_path / "payloads"
    payloads.write_text("one|two|")
    for words in (
        ("--num-records", "25", "--payload-monotonic", "--batch-records", "10"),
        ("--num-records", "5", "--record-size", "7"),
        ("--num-records", "5", "--payload-file", str(payloads), "--payload-delimiter", "|"),
    ):
        ended = orders("perf", "produce", "--topic", "orders", *words)
        assert (ended.status, ended.err) == (0, "")
    values = sorted(record["value"] for record in orders("read", "--topic", "orders").records if not record["key"])
    decoded = [base64.b64decode(each) for each in values]
    assert {each for each in decoded if each.isdigit()} == {b"%d" % number for number in range(25)}
    assert sum(bool(re.fullmatch(rb"[A-Z]{7}", each)) for each in decoded) == 5
    assert sum(each in {b"one", b"two"} for each in decoded) == 5
    empty = ("--num-records", "5", "--payload-file", str(payloads), "--payload-delimiter", "")
    ended = orders("perf", "produce", "--topic", "orders", *empty)
    expected = "lakelog: --payload-delimiter: found an empty text. Give the text between two values of the file.\n"
    assert (ended.status, ended.out, ended.err) == (2, "", expected)
    assert (
        "25 records sent"
        in orders("perf", "produce", "--topic", "orders", "--num-records", "25", "--record-size", "1").out
    )


def test_perf_produce_appends_in_transactions(orders: Lakelog) -> None:
    """Each append takes longer than a millisecond, so each is a transaction. In the other runs, one transaction has all. Each
    transaction appends a marker."""
    orders("topics", "create", "single")
    batches, end = ("--batch-records", "10"), 0
    for words, markers in (
        (("--transactional-id", "x", *batches, "--transaction-duration-ms", "1"), 3),
        (("--transaction-duration-ms", "3600000", *batches), 1),
        (("--transactional-id", "x"), 1),
    ):
        ended = orders("perf", "produce", "--topic", "single", "--payload-monotonic", "--num-records", "30", *words)
        assert (ended.status, ended.err) == (0, "")
        assert ended.out.splitlines()[-1].startswith("30 records sent, ")
        found = orders("read", "--topic", "single", "--from", str(end)).records
        assert [base64.b64decode(each["value"]) for each in found] == [b"%d" % number for number in range(30)]
        end += 30 + markers
        assert orders("offsets", "--topic", "single").out == f"single:0:{end}\n"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("produce", "--topic", "orders", "--num-records", "5"), "expected one of --record-size"),
        (("produce", "--topic", "no", "--num-records", "5", "--payload-monotonic"), "topic no: not found"),
        (
            ("produce", "--topic", "orders", "--num-records", "5", "--payload-monotonic", "--warmup-records", "5"),
            "expected fewer than --num-records, 5; found 5",
        ),
        *(
            (
                ("produce", "--topic", "orders", "--num-records", "5", "--payload-monotonic", "--throughput", found),
                f"lakelog: --throughput: found {found}. Give a number of records per second, at least 0.001. Or give -1",
            )
            for found in ("nan", "inf", "1e-300")
        ),
        (("consume", "--num-records", "5"), "expected --topic or --include"),
        (("consume", "--topic", "orders"), "--num-records is not given"),
        (("consume", "--include", "x.*", "--num-records", "5"), "no topic matches"),
        (("consume", "--topic", "orders", "--num-records", "5", "--date-format", "EEE"), "found 'EEE'"),
    ],
)
def test_perf_refuses(orders: Lakelog, words: tuple[str, ...], problem: str) -> None:
    ended = orders("perf", *words)
    assert ended.status in {1, 2}
    assert problem in ended.err
    assert orders("offsets", "--topic", "orders").out == "orders:0:2\norders:1:1\n"


def test_figures_of_a_producer() -> None:
    figures = ProducerFigures(1000.0)
    for latency, count in ((5, 90), (20, 9), (100, 1)):
        figures.record(latency, count, 10 * count)
    assert figures.total(2000.0) == (
        "100 records sent, 100.000000 records/sec (0.00 MB/sec), 7.30 ms avg latency, 100.00 ms max latency, 5 ms 50th,"
        " 20 ms 95th, 100 ms 99th, 100 ms 99.9th."
    )
    assert figures.window(3000.0) == (
        "100 records sent, 50.0 records/sec (0.00 MB/sec), 7.3 ms avg latency, 100.0 ms max latency."
    )
    assert ProducerFigures(5.0, steady=True).total(5.0).startswith("0 steady state records sent, NaN records/sec")


def test_figures_of_a_consumer() -> None:
    start, end = Consumed(1_700_000_000_000), Consumed(1_700_000_002_005, 30, 3 * 1024 * 1024)
    columns = consumer_total(start, end, 5, "ss:SSS").split(", ")
    assert columns == ["20:000", "22:005", "3.0000", "1.4963", "30", "14.9626", "5", "2000", "1.5000", "15.0000"]
    columns = consumer_interval(start, end, 0, "ss").split(", ")
    assert columns == ["22", "0", "3.0000", "1.4963", "30", "14.9626", "0", "2005", "1.4963", "14.9626"]
    assert shown_date(1_700_000_000_007, "S.SSS.SSSS") == "7.007.0007"
    with pytest.raises(UsageError, match="'MMM'"):
        shown_date(0, "yyyy MMM")


# --- Arguments that are bytes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ("read", "--topic", "orders", "--group", "bad\udcff"),
        ("read", "--topic", "orders", "--group", "bad\udcff", "--commit"),
        ("groups", "reset-offsets", "--topic", "orders", "--to-earliest", "--execute", "--group", "bad\udcff"),
    ],
)
def test_the_name_of_a_group_is_text(orders: Lakelog, words: tuple[str, ...]) -> None:
    """Python has such a text for an argument whose bytes are not UTF-8."""
    ended = orders(*words)
    assert (ended.status, ended.out) == (1, "")
    assert ended.err == (
        "lakelog: group: found half a surrogate pair in 'bad\\udcff', which UTF-8 cannot encode. Choose another name.\n"
    )


def test_a_delimiter_of_payloads_may_be_any_bytes(orders: Lakelog, tmp_path: Path) -> None:
    (tmp_path / "payloads").write_bytes(b"same\xffsame\xffsame")
    words = ("--num-records", "3", "--payload-file", str(tmp_path / "payloads"), "--payload-delimiter", "\udcff")
    assert orders("perf", "produce", "--topic", "orders", *words).status == 0
    values = [base64.b64decode(each["value"]) for each in orders("read", "--topic", "orders").records]
    assert sorted(values) == [b"same"] * 3 + [b"value"] * 3


def test_one_commit_of_perf_has_a_limit_in_bytes(orders: Lakelog) -> None:
    """Otherwise the values of all 10,000 records of a commit would be in memory."""
    tracemalloc.start()
    try:
        ended = orders("perf", "produce", "--topic", "orders", "--num-records", "10000", "--record-size", "2000000")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert ended.status == 1
    assert "max.message.bytes" in ended.err
    assert peak < 2**30


def test_log_dirs_prints_a_root_or_a_directory(orders: Lakelog, tmp_path: Path) -> None:
    ended = orders("log-dirs", "--describe", "--kafka-dir", str(tmp_path), "--root", "elsewhere")
    assert (ended.status, ended.out) == (2, "")
    assert (
        ended.err == "lakelog: --root: is given with --kafka-dir. Remove one of the two: only a root has this option.\n"
    )
