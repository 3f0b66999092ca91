"""Streams that have a group: the group has the stream's position, and `lakelog groups` shows the position but
refuses to change it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import lakelog
from lakelog import cli
from lakelog.opening import open_topics
from storage_engine.topic.readers.consumer_files import read_consumers
from tests.in_process import Ended, run_in_process
from tests.stores import root_at

pytestmark = pytest.mark.spark


class Streams:
    """A topic `orders` with two partitions of three records each, and streams that read it to its end."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.root = root_at(folder / "root")
        self.checkpoints = root_at(folder / "checkpoints")
        self.orders = lakelog.open(self.root, create=True).create_topic("orders", 2)
        for partition in (0, 1):
            self.append(partition, 3)

    def append(self, partition: int, count: int) -> None:
        self.orders.append([{"value": "v"}] * count, partition=partition)

    def run(self, name: str, **options: str) -> list[dict[tuple[str, int], int | None]]:
        """Read what a query has not read. Returns the positions of all groups as they are during each micro-batch."""
        during = []

        def look(rows: DataFrame, batch_id: int) -> None:
            during.append(self.positions())

        stream = self.spark.readStream.format("lakelog").option("root", self.root).option("subscribe", "orders")
        rows = stream.options(startingOffsets="earliest", maxOffsetsPerTrigger="4", **options).load()
        writer = rows.writeStream.foreachBatch(look).option("checkpointLocation", f"{self.checkpoints}/{name}")
        writer.trigger(availableNow=True).start().awaitTermination()
        return during

    def positions(self) -> dict[tuple[str, int], int | None]:
        return {(each.group, each.partition): each.current_offset for each in self.orders.groups()}

    def groups(self, *arguments: str) -> Ended:
        return run_in_process(cli.main, ["lakelog", "groups", *arguments, "--root", self.root], b"")


@pytest.fixture
def streams(spark: SparkSession, tmp_path: Path) -> Streams:
    return Streams(spark, tmp_path)


def test_a_stream_with_a_group_records_what_is_done_and_is_not_reset(streams: Streams) -> None:
    billing = {"kafka.group.id": "billing"}
    assert streams.run("billing", **billing) == [
        {("billing", 0): 0, ("billing", 1): 0},
        {("billing", 0): 2, ("billing", 1): 2},
    ], "the position of a micro-batch is recorded after it"
    rows = [row.split() for row in streams.groups("describe", "--group", "billing", "--lag").out.splitlines()]
    assert [row[:9] for row in rows[2:]] == [
        ["billing", "orders", "0", "3", "3", "0", "0", "0", "0.0"],
        ["billing", "orders", "1", "3", "3", "0", "0", "0", "0.0"],
    ]

    streams.append(1, 2)
    assert [(each.lag, each.kind) for each in streams.orders.groups()] == [(0, "stream"), (2, "stream")]
    assert streams.run("billing", **billing) == [{("billing", 0): 3, ("billing", 1): 3}]
    assert [each.lag for each in streams.orders.groups()] == [0, 0]

    reset = streams.groups("reset-offsets", "--group", "billing", "--all-topics", "--to-earliest", "--execute")
    assert (reset.status, reset.out) == (1, "")
    assert reset.err == (
        "lakelog: group billing, topic orders: is of kind 'stream', not 'group'. The positions of this consumer cannot be"
        " changed here: the checkpoint of a Spark query decides where this stream continues. Change startingOffsets and"
        " use a new checkpoint.\n"
    )
    assert streams.positions() == {("billing", 0): 3, ("billing", 1): 5}


def test_only_streams_with_a_group_are_recorded_and_only_those_that_ask_hold_back_cleaning(streams: Streams) -> None:
    assert streams.run("nobody") == [{}, {}]
    assert streams.positions() == {}

    for holds_back in ("true", "false"):
        streams.run(holds_back, groupIdPrefix=f"prefix-{holds_back}", holdsBack=holds_back)
    names = streams.groups("list").out.splitlines()
    assert [name[: len(name) - 37] for name in names] == ["prefix-false", "prefix-true"]
    topics = open_topics(streams.root, None, print)
    consumers = read_consumers(topics.storage, topics.state("orders")).known
    assert {each.name: each.holds_back for each in consumers} == {names[0]: False, names[1]: True}

    list(streams.orders.follow("reader", stop_at_end=True))
    with pytest.raises(StreamingQueryException, match="group reader, topic orders: is of kind 'group', not 'stream'"):
        streams.run("reader", **{"kafka.group.id": "reader"})
