"""Provides a topic in a root, and the table to which the topic is exported. A test can change the topic and the table."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import lakelog
from pipeline.delta.export_plan import NO_BOUNDS, Export, ExportBounds, ExportMode, PartitionOffsets, offset_ranges
from pipeline.delta.files.skipping_commit import fit_skipping
from pipeline.delta.proof.exported_table import open_exported_table
from pipeline.delta.proof.proving import Proof, prove_table
from pipeline.delta.rows.row_columns import table_columns
from pipeline.delta.table_history import plan_from_history
from pipeline.delta.without_spark.small_export import export_without_spark
from pipeline.delta.without_spark.topic_records import ReadBatches, batch_reader
from storage_engine.clock import ManualClock
from storage_engine.config import BrokerConfig
from storage_engine.progress import NO_PROGRESS
from storage_engine.storage.storage_opening import open_storage
from storage_engine.topic.chain.topic_state import TopicState
from storage_engine.topic.clean.topic_compaction import compact_topic
from storage_engine.topic.clean.topic_retention import delete_records
from storage_engine.topic.readers.consumer_files import EXPORT_KIND, export_consumer, put_positions
from storage_engine.topic.topics import Topics
from tests.pipeline.delta.order_models import Order, schema_of
from tests.stores import root_at

START_MS = 1_700_000_000_000
KEYS = tuple(b"key-%d" % number for number in range(12))


class ExportedTopic:
    """A compacted topic of orders, and the export of it. The clock moves on by a second with each append."""

    def __init__(
        self, folder: Path, mode: ExportMode = ExportMode.UPSERT, partitions: int = 2, *, digest: bool = False
    ) -> None:
        self.root = root_at(folder / "root")
        self.clock = ManualClock(START_MS)
        configs = {"cleanup.policy": "compact", "delete.retention.ms": "60000", "segment.bytes": "1024"}
        self.topic = lakelog.open(self.root, create=True).create_topic("orders", partitions=partitions, config=configs)
        self.storage = open_storage(self.root)
        tables = f"{self.root}/tables/orders", f"{self.root}/tables/dead_letters/export/orders"
        self.export = Export("orders", self.state().topic_id, mode, schema_of(Order), *tables, digest=digest)

    @property
    def topics(self) -> Topics:
        return Topics(self.storage, BrokerConfig(), self.clock)

    def state(self) -> TopicState:
        return self.topics.state("orders")

    def ranges(self) -> dict[int, PartitionOffsets]:
        return offset_ranges(self.state())

    def append(self, *records: tuple[bytes | None, int | bytes | None], partition: int | None = None) -> None:
        """Append records: keys, and numbers of orders, values, or None for tombstones."""
        self.clock.advance(1000)
        rows = [
            {"key": key, "value": b'{"number": %d}' % value if isinstance(value, int) else value,
             "timestamp": self.clock.now_ms() + number}
            for number, (key, value) in enumerate(records)
        ]  # fmt: skip
        self.topic.append(rows, partition=partition)

    def run_export(self, bounds: ExportBounds = NO_BOUNDS) -> None:
        fit_skipping(self.export.table, table_columns(self.export))
        plan = plan_from_history(self.export, self.ranges(), bounds)
        assert plan is not None
        if plan.waiting:
            assert export_without_spark(self.export, plan, self.reader(), self.register, max_share=1) is not None
            self.register(plan.positions)

    def register(self, positions: Mapping[int, int]) -> None:
        name = export_consumer("tables/orders")
        put_positions(self.storage, self.state(), name, EXPORT_KIND, positions, self.clock.now_ms(), holds_back=True)

    def prove(self, export: Export | None = None, version: int | None = None, since: int | None = None) -> Proof:
        export = export or self.export
        table = open_exported_table(export, version)
        return prove_table(export, table, self.ranges(), self.reader(), self.ranges, since)

    def reader(self) -> ReadBatches:
        return batch_reader(self.storage, self.topics.chain("orders"), self.state(), NO_PROGRESS)

    def compact(self) -> None:
        topics = self.topics
        chain = topics.chain("orders")
        compact_topic(self.storage, chain, topics.config(self.state()), BrokerConfig(), self.clock, force=True)

    def delete_records(self, partition: int, offset: int) -> None:
        delete_records(self.topics.chain("orders"), partition, offset)


def some_orders(topic: ExportedTopic, chance: random.Random, count: int = 12, keys: Sequence[bytes] = KEYS) -> None:
    """Append orders, tombstones and values that cannot be decoded."""
    for _ in range(chance.randrange(1, 4)):
        values = [chance.randrange(10**6), chance.randrange(10**6), None, b"{", b'{"number": "x"}']
        topic.append(*((chance.choice(keys), chance.choice(values)) for _ in range(chance.randrange(1, count))))


def whole(proof: Proof) -> Mapping[str, object]:
    """The result in a form that is easy to compare."""
    found = proof.findings
    return {
        "answer": proof.answer, "rows": proof.rows, "equal": found.equal, "unprovable": dict(found.unprovable),
        "differences": [tuple(each) for each in found.differences],
    }  # fmt: skip
