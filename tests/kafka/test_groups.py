"""Compares `lakelog groups` with kafka-consumer-groups. The root and the broker have the same records, and their groups
have the same offsets.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.structs import OffsetAndMetadata

from lakelog import cli
from storage_engine.clock import SystemClock
from storage_engine.config import BrokerConfig
from storage_engine.storage.posix import PosixStorage
from storage_engine.topic.append.appending import append_records
from storage_engine.topic.kafka.broker_groups import OFFSETS_FILE, offsets_file
from storage_engine.topic.readers.consumer_files import GROUP_KIND, Consumer
from storage_engine.topic.readers.membership import join
from storage_engine.topic.topics import Topics
from tests.in_process import run_in_process
from tests.java_options import JAVA_FLAGS
from tests.kafka_broker import KafkaBroker
from tests.kafka_jvm import kafka_command
from tests.storage_engine.record_tables import Row, to_table

PEER = Path(__file__).with_name("KafkaGroupsPeer.java")
TIMES = [1_700_000_000_000 + step * 60_000 for step in range(6)]
GROUPS = {"billing": {0: 2, 1: 6}, "a-group-with-a-rather-long-name": {0: 0}}
GIVEN = "given,back"
"""A group of an export; its offsets are given to Kafka's tool."""
LONG = "a-group-with-a-rather-long-name"
SCOPE = "reset-offsets --group billing --topic orders"
COMMANDS = [
    "list",
    "describe --group billing",
    f"describe --group {LONG}",
    "describe --all-groups --offsets",
    "list --state",
    f"{SCOPE} --to-earliest",
    f"{SCOPE} --to-latest --dry-run",
    f"{SCOPE} --to-current",
    f"{SCOPE}:1 --to-offset 3",
    f"{SCOPE}:0,1 --to-offset 99",
    f"{SCOPE} --shift-by -1",
    f"{SCOPE} --shift-by -99",
    f"{SCOPE} --to-datetime 2023-11-14T22:15:00.000",
    f"{SCOPE} --to-datetime 2023-11-14T23:15:30.000+01:00",
    f"{SCOPE} --by-duration P1D",
    f"{SCOPE} --by-duration P9000DT1H2M3S",
    f"{SCOPE} --to-earliest --export",
    "reset-offsets --group billing --all-topics --shift-by 1",
    "reset-offsets --all-groups --all-topics --to-latest",
    "reset-offsets --all-groups --all-topics --to-latest --export",
    "reset-offsets --group new --topic orders --to-latest --execute",
    "describe --group new",
    f"{SCOPE} --to-offset 1 --execute",
    "describe --group billing",
    "delete --group new",
    "list",
    f"reset-offsets --group {GIVEN} --from-file {{file}} --execute",
    f"describe --group {GIVEN}",
]


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The commands, one with a file of an export."""
    exported = tmp_path_factory.mktemp("export") / OFFSETS_FILE
    group = Consumer(name=GIVEN, kind=GROUP_KIND, topic_id="", positions={0: 2, 1: 5}, registered_ms=0, updated_ms=0)
    exported.write_bytes(offsets_file([("orders", group)]))
    return [command.replace("{file}", str(exported)) for command in COMMANDS]


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaBroker]:
    with KafkaBroker() as broker:
        broker.create_topic("orders", 2, {"retention.ms": "-1"})  # the records have old timestamps
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
        for partition in (0, 1):
            for time in TIMES:
                producer.send("orders", b"v", partition=partition, timestamp_ms=time)
        producer.close()
        for group, positions in GROUPS.items():
            consumer = KafkaConsumer(
                bootstrap_servers=broker.bootstrap_servers, group_id=group, enable_auto_commit=False
            )
            consumer.assign([TopicPartition("orders", partition) for partition in positions])
            consumer.commit(
                {TopicPartition("orders", number): OffsetAndMetadata(at, "", -1) for number, at in positions.items()}
            )
            consumer.close()
        yield broker


def asked(broker: KafkaBroker, commands: list[str]) -> list[str]:
    """What Kafka's tool prints for each command."""
    lines = [f"--bootstrap-server {broker.bootstrap_servers} --{command}\n" for command in commands]
    ended = subprocess.run(
        kafka_command(PEER, JAVA_FLAGS), input="".join(lines), capture_output=True, text=True, check=True, timeout=300
    )
    return re.sub("\nWarn: .*\n", "", ended.stdout).replace('"', "").split("----\n")[:-1]


@pytest.fixture(scope="module")
def kafkas(broker: KafkaBroker, commands: list[str]) -> list[str]:
    return asked(broker, commands)


@pytest.fixture(scope="module")
def ours(commands: list[str], tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    root = tmp_path_factory.mktemp("root")
    topics = Topics(PosixStorage(root), BrokerConfig(), SystemClock())
    state = topics.create("orders", 2, {"message.timestamp.before.max.ms": 2**63 - 1})
    for partition in (0, 1):
        rows = [Row(None, b"v", (), time) for time in TIMES]
        chain = topics.chain("orders")
        append_records(topics.storage, chain, topics.config(state), topics.clock, to_table(rows), partition)
    for group, positions in GROUPS.items():
        member = join(topics.storage, topics.state("orders"), group, "m", "h", topics.clock.now_ms())
        member.commit(topics.state("orders"), positions, topics.clock.now_ms())
        member.leave()
    outputs = []
    for command in commands:
        words = [word for word in command.split() if word != "--offsets"]
        ended = run_in_process(cli.main, ["lakelog", "groups", *words, "--root", str(root)], b"")
        assert ended.status == 0, ended.err
        outputs.append(ended.out)
    return outputs


def test_what_is_printed_is_what_kafkas_tool_prints(kafkas: list[str], ours: list[str]) -> None:
    """Kafka lists groups and partitions of a reset in no order. Its warnings go to standard output, ours to standard error.
    Its CSV has quotes around long names."""
    theirs = [out.split("\n") for out in kafkas]
    mine = [out.split("\n") for out in ours]
    assert [(command, sorted(lines)) for command, lines in zip(COMMANDS, mine, strict=True)] == [
        (command, sorted(lines)) for command, lines in zip(COMMANDS, theirs, strict=True)
    ]
    described = [number for number, command in enumerate(COMMANDS) if command.startswith("describe")]
    assert [mine[number] for number in described] == [theirs[number] for number in described]


def test_a_brokers_offsets_come_along_and_are_given_back_to_a_broker_that_reads_the_export(
    broker: KafkaBroker, tmp_path: Path
) -> None:
    """The broker's own files are replaced by the exported files. The broker's groups are deleted before Lakelog writes
    them back."""
    everything = "describe --all-groups --offsets"
    before, listed = asked(broker, [everything, "list"])
    groups = listed.split()
    assert set(groups) >= GROUPS.keys()
    broker.stop()
    exported = tmp_path / "exported"
    ended = [
        run_in_process(cli.main, ["lakelog", *command.split(), "--root", str(tmp_path / "root")], b"")
        for command in (
            f"topics import {broker.data} --topic orders",
            "groups describe --all-groups",
            f"topics export {exported}",
        )
    ]
    assert [each.status for each in ended] == [0, 0, 0], ended
    broker.put(exported, cleanly_closed=False)
    broker.start()
    scope = " ".join(f"--group {group}" for group in groups)
    between, _, nothing, _, after = asked(
        broker,
        [
            everything,
            f"delete {scope}",
            "list",
            f"reset-offsets {scope} --from-file {exported / OFFSETS_FILE} --execute",
            everything,
        ],
    )
    assert nothing.strip() == ""
    described = sorted(ended[1].out.splitlines())
    assert [sorted(out.splitlines()) for out in (before, between, after)] == [described] * 3
