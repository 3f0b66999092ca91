"""Compares commands of lakelog with Kafka's own tools: both get the same options, and must print the same output.

Kafka's tools connect to a broker. The commands of lakelog work on a root with the same topics and records, or on the
directory of the running broker. If a number depends on the machine, the tests compare only its form.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from kafka import KafkaProducer

import lakelog
from lakelog import cli
from lakelog.cli.kafka_tools.kafka_options import TOOLS
from tests.in_process import Ended, run_in_process
from tests.kafka.kafka_tools import CLASSES, KafkaTools
from tests.kafka_broker import KafkaBroker
from tests.stores import root_at

pytestmark = [pytest.mark.kafka, pytest.mark.posix("reads the directory of a broker")]
OLD = 1_700_000_000_000
BASE = f"{0:020d}"
TOPICS = {"kt-orders": 12, "kt.dot": 1, "kt-dot": 1}
"""The topics with their numbers of partitions. Only kt-orders has records: in its partitions 0 and 1."""
SETTINGS = {"retention.ms": "-1", "max.message.bytes": "4000000"}
GOLDEN = Path(__file__).parents[1] / "golden"


@dataclass(frozen=True)
class Both:
    """Kafka's tools with the broker, and a root with the same topics."""

    tools: KafkaTools
    broker: KafkaBroker
    root: str

    def kafka(self, tool: str, *arguments: str) -> Ended:
        """Run Kafka's tool with this broker."""
        return self.tools.run(tool, "--bootstrap-server", self.broker.bootstrap_servers, *arguments)

    def ours(self, *words: str) -> Ended:
        """Run our command on the root."""
        return run_in_process(cli.main, ["lakelog", *words, "--root", self.root])


def values() -> Iterator[tuple[int, bytes | None, bytes | None, int]]:
    """The partition, key, value and timestamp of each record. The largest timestamp is not in the last record."""
    for number in range(40):
        key = None if number % 5 == 0 else b"%0*d" % (8 if number % 2 else 4, number)
        yield number % 2, key, b"%040d" % number, OLD + (100 - number if number > 30 else number)


@pytest.fixture(scope="module")
def tools() -> Iterator[KafkaTools]:
    with KafkaTools() as started:
        yield started


@pytest.fixture(scope="module")
def both(tools: KafkaTools, kafka_broker: KafkaBroker, tmp_path_factory: pytest.TempPathFactory) -> Both:
    root = root_at(tmp_path_factory.mktemp("tools") / "root")
    log = lakelog.open(root, create=True)
    for topic, partitions in TOPICS.items():
        kafka_broker.create_topic(topic, partitions, SETTINGS)
        log.create_topic(topic, partitions=partitions, config=SETTINGS)
    producer = KafkaProducer(bootstrap_servers=kafka_broker.bootstrap_servers)
    for partition, key, value, timestamp in values():
        producer.send("kt-orders", value, key=key, partition=partition, timestamp_ms=timestamp).get()
        record = {"key": key, "value": value, "timestamp": timestamp}
        log.topic("kt-orders").append([record], partition=partition)
    producer.close()
    return Both(tools, kafka_broker, root)


def form(text: str) -> str:
    """A text with N in place of each number; the decimal places are kept."""
    return re.sub(r"\d+(?:\.(\d+))?", lambda found: f"N.{len(found[1])}" if found[1] else "N", text)


# --- The table --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tool", TOOLS, ids=[each.script for each in TOOLS])
def test_the_table_has_all_options_of_the_tool(tools: KafkaTools, tool) -> None:
    helped = tools.run(tool.script, "--help")
    text = (helped.out + helped.err).partition("usage: ")[2] or helped.err or helped.out
    found = set(re.findall(r"(?m)^ {0,2}(?:-h, )?(--[a-z][a-z.-]*[a-z])", text))
    assert found == {each.name for each in tool.options}
    assert CLASSES.keys() == {each.script for each in TOOLS}


# --- kafka-get-offsets ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ("--topic", "kt-orders"),
        ("--topic", "kt-ord.*,kt-dot", "--partitions", "0,10,1"),
        ("--topic", "'kt-dot'"),
        ("--topic", "kt[.]dot"),
        ("--topic-partitions", "kt-ord.*:9-,kt-dot:0,kt.*:5,kt-orders:-2"),
        ("--topic-partitions", "kt-orders:2-4", "--exclude-internal-topics"),
        *(("--topic", "kt-orders", "--time", str(time)) for time in range(-6, 0)),
        *(("--topic", "kt-.*", "--time", word) for word in ("earliest", "latest", "max-timestamp")),
        *(
            ("--topic", "kt-.*", "--time", word)
            for word in ("earliest-local", "latest-tiered", "earliest-pending-upload")
        ),
        *(("--topic", "kt-orders", "--time", str(OLD + late)) for late in (-1, 0, 7, 30, 65, 69, 70)),
    ],
    ids=" ".join,
)
def test_offsets(both: Both, arguments: tuple[str, ...]) -> None:
    expected = both.kafka("kafka-get-offsets", *arguments)
    assert (expected.status, expected.err) == (0, "")
    assert both.ours("offsets", *arguments) == expected
    of_directory = run_in_process(cli.main, ["lakelog", "offsets", *arguments, "--kafka-dir", str(both.broker.data)])
    assert (of_directory.status, of_directory.out) == (0, expected.out)


def test_offsets_without_options_are_those_of_all_topics(both: Both) -> None:
    lines = both.kafka("kafka-get-offsets").out.splitlines(keepends=True)
    assert both.ours("offsets").out == "".join(line for line in lines if line.startswith("kt"))


@pytest.mark.parametrize(
    "arguments",
    [
        ("--topic", "kt-nothing.*"), ("--topic", "kt-orders", "--partitions", "12"), ("--partitions", "x"),
        ("--topic-partitions", "kt-orders:x"), ("--topic-partitions", "a", "--topic", "b"), ("--topic", "["),
        ("--time", "soon"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_offsets_that_both_refuse(both: Both, arguments: tuple[str, ...]) -> None:
    for ended in (both.kafka("kafka-get-offsets", *arguments), both.ours("offsets", *arguments)):
        assert ended.status != 0
        assert ended.out == ""
        assert ended.err


# --- kafka-configs ----------------------------------------------------------------------------------------------------


def test_configs(both: Both, tmp_path: Path) -> None:
    topic = ("--entity-type", "topics", "--entity-name", "kt-dot")
    properties = tmp_path / "topic.properties"
    properties.write_text("# a comment\nsegment.ms = 86400000\n")
    for arguments in (
        ("--describe", *topic),
        ("--alter", *topic, "--add-config", "cleanup.policy=[compact,delete],segment.bytes = 2000000"),
        ("--alter", "--topic", "kt-dot", "--add-config-file", str(properties)),
        ("--describe", "--topic", "kt-dot"),
        (
            "--alter",
            *topic,
            "--add-config",
            "min.cleanable.dirty.ratio=0.25",
            "--delete-config",
            "segment.bytes,segment.ms",
        ),
        ("--describe", *topic),
        ("--alter", *topic, "--delete-config", "segment.ms,min.compaction.lag.ms"),
        ("--describe", *topic),
    ):
        expected = both.kafka("kafka-configs", *arguments)
        assert (expected.status, expected.err) == (0, "")
        assert both.ours("configs", *arguments) == expected


def test_all_configs_have_the_values_and_synonyms_of_kafka(both: Both) -> None:
    arguments = ("--describe", "--topic", "kt.dot", "--all")
    theirs, ours = (
        {line.partition("=")[0]: line for line in ended.out.splitlines()}
        for ended in (both.kafka("kafka-configs", *arguments), both.ours("configs", *arguments))
    )
    assert "All configs for topic kt.dot are:" in ours
    shared = theirs.keys() & ours.keys()
    assert {key: ours[key] for key in shared} == {key: theirs[key] for key in shared}
    assert len(shared) > 20


def test_configs_of_all_topics(both: Both) -> None:
    theirs = re.split("(?m)^(?=Dynamic)", both.kafka("kafka-configs", "--describe", "--entity-type", "topics").out)
    described = [part for part in theirs if part.startswith("Dynamic configs for topic kt")]
    assert both.ours("configs", "--describe", "--entity-type", "topics").out == "".join(
        sorted(described, key=lambda part: part.split()[4])
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("--describe", "--alter", "--topic", "kt-dot"),
        ("--alter", "--topic", "kt-dot", "--add-config", "nothing=3"),
        ("--alter", "--topic", "kt-dot", "--add-config", "retention.ms"),
        ("--alter", "--topic", "kt-dot", "--add-config", "retention.ms=soon"),
        ("--alter", "--topic", "kt-nothing", "--add-config", "retention.ms=3"),
        ("--alter", "--topic", "kt-dot"),
        ("--alter", "--entity-type", "topics", "--add-config", "retention.ms=3"),
    ],
    ids=" ".join,
)
def test_configs_that_both_refuse(both: Both, arguments: tuple[str, ...]) -> None:
    for ended in (both.kafka("kafka-configs", *arguments), both.ours("configs", *arguments)):
        assert ended.status != 0
        assert ended.out == ""
        assert ended.err


# --- kafka-log-dirs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topics", ["kt-orders,kt.dot", "kt-dot", "kt-nothing"])
def test_log_dirs(both: Both, topics: str) -> None:
    expected = both.kafka("kafka-log-dirs", "--describe", "--topic-list", topics, "--broker-list", "1")
    words = [
        "log-dirs",
        "--describe",
        "--topic-list",
        topics,
        "--broker-list",
        "1",
        "--kafka-dir",
        str(both.broker.data),
    ]
    assert run_in_process(cli.main, ["lakelog", *words]) == expected
    assert (topics == "kt-nothing") == ('"partitions":[]' in expected.out)


def test_log_dirs_of_all_topics(both: Both) -> None:
    def partitions(text: str) -> dict[str, object]:
        (broker,) = json.loads(text.splitlines()[-1])["brokers"]
        return {each["partition"]: each for each in broker["logDirs"][0]["partitions"]}

    words = ["log-dirs", "--describe", "--kafka-dir", str(both.broker.data)]
    found = partitions(run_in_process(cli.main, ["lakelog", *words]).out)
    assert found == partitions(both.kafka("kafka-log-dirs", "--describe").out)
    assert len(found) >= sum(TOPICS.values())


# --- kafka-delete-records ---------------------------------------------------------------------------------------------


def test_delete_records_and_the_offsets_after_it(both: Both, tmp_path: Path) -> None:
    topic = "kt-deleted"
    log = lakelog.open(both.root)
    both.broker.create_topic(topic, 3, SETTINGS)
    log.create_topic(topic, partitions=3, config=SETTINGS)
    for partition in range(3):
        producer = KafkaProducer(bootstrap_servers=both.broker.bootstrap_servers)
        for number in range(4):
            producer.send(topic, b"v", partition=partition, timestamp_ms=OLD - number)
            log.topic(topic).append([{"value": b"v", "timestamp": OLD - number}], partition=partition)
        producer.close()

    def deleted(*entries: tuple[int, int]) -> tuple[Ended, Ended]:
        file = tmp_path / "offsets.json"
        partitions = [{"topic": topic, "partition": partition, "offset": offset} for partition, offset in entries]
        file.write_text(json.dumps({"partitions": partitions, "version": 1}))
        arguments = ("--offset-json-file", str(file))
        return both.kafka("kafka-delete-records", *arguments), both.ours("delete-records", *arguments)

    for entry in ((0, 2), (0, 1), (1, -1)):
        expected, found = deleted(entry)
        assert (expected.status, found) == (0, expected)
    expected, found = deleted((2, 9), (0, 3))
    assert sorted(form(re.sub("error: .*", "error: ...", each)) for each in found.out.splitlines()) == sorted(
        form(re.sub("error: .*", "error: ...", each)) for each in expected.out.splitlines()
    )
    assert "partition: kt-deleted-0\tlow_watermark: 3\n" in found.out
    assert found.status == 4
    for time in ("earliest", "latest"):
        arguments = ("--topic", topic, "--time", time)
        assert both.ours("offsets", *arguments) == both.kafka("kafka-get-offsets", *arguments)
    largest = ("--topic", topic, "--time", "max-timestamp")
    assert both.kafka("kafka-get-offsets", *largest).out == KAFKAS_LARGEST
    assert both.ours("offsets", *largest).out == "kt-deleted:0:3\nkt-deleted:2:0\n"


KAFKAS_LARGEST = "kt-deleted:0:0\nkt-deleted:1:0\nkt-deleted:2:0\n"
"""A broker names deleted offsets until its next retention: partition 0 begins at 3, and partition 1 is empty."""


def test_files_of_offsets_that_both_refuse(both: Both, tmp_path: Path) -> None:
    file = tmp_path / "offsets.json"
    entry = {"topic": "kt-orders", "partition": 0, "offset": 1}
    contents: list[dict[str, object]] = [
        {},
        {"partitions": [entry, entry]},
        {"partitions": [entry], "version": 2},
        {"partitions": [{}]},
    ]
    for content in contents:
        file.write_text(json.dumps(content))
        arguments = ("--offset-json-file", str(file))
        for ended in (both.kafka("kafka-delete-records", *arguments), both.ours("delete-records", *arguments)):
            assert ended.status != 0
            assert ended.out == ""
            assert ended.err


# --- kafka-dump-log ---------------------------------------------------------------------------------------------------

DECODERS = "org.apache.kafka.tools.api"


def dumps(both: Both, *arguments: str) -> tuple[Ended, Ended]:
    """Kafka's dump and ours. Ours runs first, because Kafka's tool trims indexes."""
    ours = run_in_process(cli.main, ["lakelog", "dump", *arguments])
    return both.tools.run("kafka-dump-log", *arguments), ours


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--deep-iteration",),
        ("--print-data-log", "--skip-record-metadata"),
        ("--deep-iteration", "--skip-record-metadata"),
        ("--max-bytes", "400"),
        ("--max-bytes", "2147483647", "--print-data-log"),
        ("--verify-index-only",),
        ("--index-sanity-check",),
        ("--max-message-size", "100000"),
        ("--value-decoder-class", f"{DECODERS}.IntegerDecoder", "--key-decoder-class", f"{DECODERS}.IntegerDecoder"),
        ("--value-decoder-class", f"{DECODERS}.LongDecoder"),
        ("--value-decoder-class", f"{DECODERS}.StringDecoder", "--skip-record-metadata"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("folder", ["txn/data/txn-0", "kt-orders-0"])
def test_dump(both: Both, tmp_path: Path, folder: str, options: tuple[str, ...]) -> None:
    """The second folder is that of a running broker, so its indexes are preallocated."""
    place = tmp_path / "files"
    shutil.copytree(GOLDEN / folder if "/" in folder else both.broker.data / folder, place)
    files = ",".join(str(path) for path in sorted(place.iterdir()) if path.suffix in {".log", ".index", ".timeindex"})
    expected, found = dumps(both, *options, "--files", files)
    assert expected.status == 0
    assert found == expected


def test_dump_of_the_topics_of_the_broker_itself(both: Both) -> None:
    """The last file is the log of the cluster's metadata, which the broker extends all the time."""
    server = ("--command-property", f"bootstrap.servers={both.broker.bootstrap_servers}")
    words = ("--num-records", "5", "--record-size", "5", "--throughput", "-1", "--transactional-id", "kt-transaction")
    assert both.tools.run("kafka-producer-perf-test", "--topic", "kt.dot", *words, *server).status == 0
    assert both.kafka("kafka-consumer-perf-test", "--topic", "kt.dot", "--num-records", "5").status == 0
    logs = {
        "--transaction-log-decoder": both.broker.data / "__transaction_state-0" / f"{BASE}.log",
        "--offsets-decoder": both.broker.data / "__consumer_offsets-0" / f"{BASE}.log",
        "--cluster-metadata-decoder": both.broker.data / "__cluster_metadata-0" / f"{BASE}.log",
    }
    for option, log in logs.items():
        shutil.copyfile(log, copy := Path(both.root).parent / log.name)
        for more in ((), ("--skip-record-metadata",)):
            expected, found = dumps(both, option, *more, "--files", str(copy))
            assert expected.status == 0
            assert found == expected
        assert "Error" not in expected.out
        assert "payload: {" in expected.out


def test_dump_of_a_snapshot_of_the_metadata(both: Both) -> None:
    files = sorted((GOLDEN / "metadata/__cluster_metadata-0").glob("*.checkpoint"))
    expected, found = dumps(both, "--cluster-metadata-decoder", "--files", ",".join(map(str, files)))
    assert "Snapshot end offset: 16, epoch: 1\n" in expected.out
    assert found == expected


def test_damaged_indexes_that_both_refuse(both: Both, tmp_path: Path) -> None:
    source = GOLDEN / "txn/data/txn-0"
    for name in (f"{BASE}.log", f"{BASE}.index", f"{BASE}.timeindex"):
        shutil.copyfile(source / name, tmp_path / name)
    index, times = (tmp_path / f"{BASE}.{suffix}" for suffix in ("index", "timeindex"))
    with index.open("ab") as file:
        file.write(b"123")
    with times.open("ab") as file:
        file.write(bytes(8) + b"\0\0\1\0")
    for path in (index, times):
        for ended in dumps(both, "--index-sanity-check", "--files", str(path)):
            assert ended.status == 1
            assert "passed" not in ended.out
            assert str(path) in ended.err
    (refused, ours) = dumps(both, "--max-message-size", "100", "--files", str(source / f"{BASE}.index"))
    assert refused.status == ours.status == 1
    assert "expected a batch of at most 100 bytes (--max-message-size), found 718 bytes" in ours.err


# --- The performance tests --------------------------------------------------------------------------------------------


def test_perf_produce(both: Both, tmp_path: Path) -> None:
    payloads = tmp_path / "payloads"
    payloads.write_text("one\ntwo\nthree\n")
    server = ("--command-property", f"bootstrap.servers={both.broker.bootstrap_servers}")
    for arguments in (
        ("--num-records", "2000", "--record-size", "20", "--throughput", "-1", "--warmup-records", "500"),
        ("--num-records", "30", "--payload-file", str(payloads), "--throughput", "1000"),
        ("--num-records", "30", "--payload-monotonic", "--throughput", "-1"),
        ("--num-records", "30", "--record-size", "9", "--throughput", "-1", "--transaction-duration-ms", "5"),
    ):
        expected = both.tools.run("kafka-producer-perf-test", "--topic", "kt.dot", *arguments, *server)
        assert expected.status == 0
        found = both.ours("perf", "produce", "--topic", "kt.dot", *arguments)
        assert (found.status, form(found.out)) == (0, form(expected.out))
        assert f"\n{arguments[1]} records sent" in f"\n{found.out}"


def test_perf_consume(both: Both) -> None:
    for arguments in (
        ("--num-records", "40"),
        ("--messages", "40", "--hide-header", "--date-format", "yyyy.MM.dd"),
        ("--num-records", "100", "--timeout", "300"),
        ("--num-records", "40", "--show-detailed-stats", "--reporting-interval", "100000"),
    ):
        expected = both.kafka("kafka-consumer-perf-test", "--topic", "kt-orders", *arguments)
        found = both.ours("perf", "consume", "--topic", "kt-orders", *arguments)
        assert (found.status, form(found.out)) == (0, form(expected.out))
        if "--show-detailed-stats" not in arguments and "--timeout" not in arguments:  # Kafka's consumer starts slowly
            consumed, ours = (ended.out.splitlines()[-1].split(", ") for ended in (expected, found))
            assert (ours[2], ours[4]) == (consumed[2], consumed[4])
