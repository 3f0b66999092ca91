"""An export of a topic in memory into a table of a database, and plain SQL that looks at the table from outside."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from pipeline.delta.export_plan import (
    NO_BOUNDS,
    Export,
    ExportBounds,
    ExportMode,
    ExportPlan,
    ExportResult,
    PartitionOffsets,
)
from pipeline.delta.reads.whole_reads import Newest, no_other_work
from pipeline.jdbc.connecting import connected
from pipeline.jdbc.database_export import FillTables, export_to_database
from pipeline.jdbc.staging import Filled, Staging, fill
from pipeline.settings.jdbc_settings import DatabaseKind, DatabaseTarget
from schemas.event_model import EventModel
from tests.pipeline.delta.order_log import Log
from tests.pipeline.delta.order_models import Order, schema_of

CONTEXT = ssl.create_default_context()
CONTEXT.check_hostname = False
CONTEXT.verify_mode = ssl.CERT_NONE


def sql(target: DatabaseTarget, statement: str) -> list[tuple[Any, ...]]:
    """Run a statement with the driver of the database, in a separate connection."""
    if target.kind is DatabaseKind.POSTGRESQL:
        import psycopg

        with psycopg.connect(
            host=target.host, port=target.port, dbname=target.database, user=target.user, password=target.password,
            autocommit=True, options="-c TimeZone=UTC",
        ) as connection:  # fmt: skip
            done = connection.execute(statement.encode())
            return done.fetchall() if done.description else []
    import pymysql

    other = pymysql.connect(
        host=target.host, port=target.port, database=target.database, user=target.user, password=target.password,
        autocommit=True, charset="utf8mb4", ssl=CONTEXT if target.tls == "on" else None,
        ssl_disabled=target.tls == "off",
    )  # fmt: skip
    with other, other.cursor() as cursor:
        cursor.execute(statement)
        return list(cursor.fetchall())


class Shop:
    """The topic `log`, the export, and its table."""

    def __init__(self, target: DatabaseTarget, model: type[EventModel] = Order) -> None:
        self.target = target
        self.log = Log(None)  # type: ignore[arg-type]  # only a test with Spark needs the session
        self.starts: dict[int, int] = {}
        self.export = Export(
            "orders", "AAAAAAAAAAAAAAAAAAAAAA", ExportMode.UPSERT, schema_of(model), str(target),
            f"{target.table}_dead_letters",
        )  # fmt: skip

    def with_model(self, model: type[EventModel]) -> None:
        self.export = replace(self.export, schema=schema_of(model))

    def ranges(self, up_to: Mapping[int, int] | None = None) -> dict[int, PartitionOffsets]:
        ends = {each: len(records) for each, records in self.log.records.items()} | dict(up_to or {})
        return {each: PartitionOffsets(self.starts.get(each, 0), end) for each, end in ends.items()}

    def run(
        self,
        *,
        up_to: Mapping[int, int] | None = None,
        bounds: ExportBounds = NO_BOUNDS,
        max_share: float = 1,
        ranges: Mapping[int, PartitionOffsets] | None = None,
        fill_tables: FillTables | None = None,
        meanwhile: Callable[[], object] = lambda: None,
        newest: Newest = no_other_work,
    ) -> ExportResult:
        """Run the export.

        Args:
            up_to: the end offsets; default: those of the log.
            meanwhile: is called after the staging tables were filled.
            newest: the offsets after that.
        """

        def filling(plan: ExportPlan, staging: Staging) -> Sequence[Filled]:
            filled = (fill_tables or self.fill_tables)(plan, staging)
            meanwhile()
            return filled

        with connected(self.target) as database:
            found = ranges if ranges is not None else self.ranges(up_to)
            return export_to_database(
                database, self.export, found, filling, bounds=bounds, max_share=max_share, newest=newest
            )

    def fill_tables(self, plan: ExportPlan, staging: Staging) -> Sequence[Filled]:
        """One task for each partition, with batches of three records."""
        start, end = plan.to_read
        return [fill(self.export, staging, self._batches(each, start[each], end[each])) for each in plan.waiting]

    def _batches(self, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        for batch in self.log.read_batches({partition: start}, {partition: end}, {}):
            for row in range(0, batch.num_rows, 3):
                yield batch.slice(row, 3)

    # --- What is in the database --------------------------------------------------------------------------------

    def name(self, text: str) -> str:
        quote = '"' if self.target.kind is DatabaseKind.POSTGRESQL else "`"
        return quote + text.replace(quote, quote * 2) + quote

    @property
    def table(self) -> str:
        return f"{self.name(self.target.schema)}.{self.name(self.target.table)}"

    def rows(self, *columns: str) -> list[tuple[Any, ...]]:
        """The rows, sorted by key; by default the fields of an order, the place, and the first stale place."""
        names = columns or (
            "_key", "number", "colour", "_partition", "_offset", "_timestamp",
            "_stale_partition", "_stale_offset", "_stale_since",
        )  # fmt: skip
        return sql(
            self.target, f"SELECT {', '.join(self.name(each) for each in names)} FROM {self.table} ORDER BY _key"
        )

    def letters(self, *columns: str) -> list[tuple[Any, ...]]:
        table = f"{self.name(self.target.schema)}.{self.name(f'{self.target.table}_dead_letters')}"
        names = columns or ("partition", "offset", "key", "value", "reason")
        order = f"{self.name('partition')}, {self.name('offset')}"
        return sql(self.target, f"SELECT {', '.join(self.name(each) for each in names)} FROM {table} ORDER BY {order}")

    def position(self) -> list[tuple[Any, ...]]:
        table = f"{self.name(self.target.schema)}.lakelog_positions"
        quoted = self.target.table.replace("'", "''")
        if self.target.kind is not DatabaseKind.POSTGRESQL:
            quoted = quoted.replace("\\", "\\\\")
        return sql(self.target, f"SELECT topic, version FROM {table} WHERE target = '{quoted}'")

    def staging_tables(self) -> list[str]:
        found = sql(
            self.target,
            "SELECT table_name FROM information_schema.tables WHERE table_schema ="
            f" '{self.target.schema}' AND table_name LIKE '{Staging(self.target, '').lock}%'".replace("%%", "%"),
        )
        return sorted(name for (name,) in found)
