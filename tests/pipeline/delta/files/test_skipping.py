"""Readers that skip files of a table by the statistics in Delta's log find every row, whoever wrote the files."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from lakelog.delta_options import delta_options
from pipeline.delta.export_plan import Export, ExportMode, new_stamp
from pipeline.delta.files.row_files import RowFiles
from pipeline.delta.files.skipping_columns import named_columns, skipping_property
from pipeline.delta.files.skipping_commit import fit_skipping
from pipeline.delta.files.table_commits import open_table
from pipeline.delta.rows.row_columns import table_columns
from pipeline.delta.rows.row_decoding import decode_batches
from pipeline.delta.table_history import read_head
from pipeline.delta.table_properties import SKIPPING_PROPERTY, TableLayout
from pipeline.delta.table_stamp import Recent
from pipeline.delta.upkeep.small_files import SmallFileRule
from pipeline.delta.upkeep.table_upkeep import keep_table
from pipeline.delta.without_spark.metadata_commit import change_metadata
from pipeline.delta.without_spark.plain_table import PlainTable
from schemas.event_schema import EventSchema
from tests.pipeline.delta.files.edge_rows import Filter, filters, schema, sql, values, without_nan
from tests.pipeline.delta.order_log import Log, run_small
from tests.roots.delta_tables import commit_file, table_at

NAMED = ["id", "text", "whole", "moment", "day", "order", "_partition", "_offset", "_timestamp"]


@pytest.fixture
def log() -> Log:
    return Log(cast(SparkSession, None))  # no export here needs Spark


@pytest.fixture
def export(append: Export) -> Export:
    return replace(append, schema=schema(), digest=True)


def small_exports(log: Log, export: Export) -> None:
    for file in values():
        for number, value in file:
            log.add(b"%d" % number, value)
        assert run_small(log, export) is not None


def upserts(log: Log, export: Export) -> None:
    """Upserts that write all rows again."""
    small_exports(log, replace(export, mode=ExportMode.UPSERT))
    small_exports(log, replace(export, mode=ExportMode.UPSERT))


def upserts_in_partitions(log: Log, export: Export) -> None:
    upserts(log, replace(export, layout=TableLayout(partition_by=("flag",))))


def files_of_tasks(log: Log, export: Export) -> None:
    """Files that the tasks of an export by Spark write, after a small export."""
    first, *files = values()
    for number, value in first:
        log.add(b"%d" % number, value)
    assert run_small(log, export) is not None
    for file in files:
        start = len(log.records[0])
        for number, value in file:
            log.add(b"%d" % number, value)
        end = len(log.records[0])
        with RowFiles(export) as written:
            for batch in decode_batches([*log.read_batches({0: start}, {0: end}, {})], export):
                written.write(batch)
        head, table = read_head(export.table), open_table(export, None)
        assert head is not None
        assert head.current is not None
        assert isinstance(table, PlainTable)
        stamp = new_stamp(export, head, table.table_id, {0: end}, Recent(), head.current.began)
        table.change_files(written.written.files, stamp)


def joined(log: Log, export: Export) -> None:
    """Small exports, of which maintenance joins all files."""
    small_exports(log, export)
    done = keep_table(export.table, SmallFileRule(1, 32 << 20))
    assert done is not None
    assert (done.joined, done.made) == (len(values()), 1)


def of_older_lakelog(log: Log, export: Export) -> None:
    """Small exports into a table without the property, and then maintenance."""
    small_exports(log, export)
    forget_property(export.table)
    joined_again = keep_table(export.table, SmallFileRule(100, 1))
    assert joined_again is not None
    assert joined_again.joined == 0


def forget_property(table: str) -> None:
    """Let the first commit of a table be as an older Lakelog wrote it."""
    commit = commit_file(table, 0)
    actions = [json.loads(line) for line in commit.read_bytes().splitlines()]
    for action in actions:
        action.get("metaData", {}).get("configuration", {}).pop(SKIPPING_PROPERTY, None)
    commit.write_bytes(b"".join(json.dumps(action).encode() + b"\n" for action in actions))


class Readers:
    """Programs that skip files of a table."""

    def __init__(self, path: str) -> None:
        self.table = table_at(path)
        self.dataset = self.table.to_pyarrow_dataset()
        self.duck = duckdb.connect()
        self.duck.execute("SET TimeZone = 'UTC'")
        self.duck.register("rows", self.dataset)
        self.all = [self.duckdb, self.pandas, self.scan]
        if not path.startswith("hdfs:"):  # Polars does not read HDFS
            self.frame = pl.scan_delta(path, storage_options=delta_options(path))
            self.all.append(self.polars)

    def duckdb(self, each: Filter) -> list[int]:
        text = sql(each) if each.column != "raw" or not each.operation else (
            f"\"raw\" {each.operation} from_hex('{each.value.hex()}')"
        )  # fmt: skip
        return [found for (found,) in self.duck.execute(f"SELECT id FROM rows WHERE {text}").fetchall()]

    def scan(self, each: Filter) -> list[int]:
        predicate = sql(each, moment="arrow_cast('%s', 'Timestamp(Microsecond, Some(\"UTC\"))')")
        reader = pa.RecordBatchReader.from_stream(self.table.scan(columns=["id"], predicate=predicate))
        return cast(list[int], reader.read_all()["id"].to_pylist())

    def pandas(self, each: Filter) -> list[int]:
        field = ds.field(each.column)
        if not each.operation:
            return list(self.table.to_pandas(columns=["id"], filters=field.is_null())["id"])
        column = table_at_type(self.dataset, each.column)
        value: Any = pa.scalar(each.value, column) if isinstance(column, pa.Decimal128Type) else each.value
        return list(self.table.to_pandas(columns=["id"], filters=[(each.column, each.operation, value)])["id"])

    def polars(self, each: Filter) -> list[int]:
        column = pl.col(each.column)
        if not each.operation:
            wanted = column.is_null()
        else:
            value = pl.lit(each.value, dtype=self.frame.collect_schema()[each.column])
            compared: dict[str, Callable[[], pl.Expr]] = {
                "=": lambda: column == value, ">=": lambda: column >= value, "<=": lambda: column <= value,
            }  # fmt: skip
            wanted = compared[each.operation]()
        return cast(list[int], self.frame.filter(wanted).select("id").collect()["id"].to_list())


def table_at_type(dataset: ds.Dataset, column: str) -> pa.DataType:
    return dataset.schema.field(column).type


@pytest.mark.parametrize(
    "write", [small_exports, upserts, upserts_in_partitions, files_of_tasks, joined, of_older_lakelog]
)
def test_each_reader_finds_each_row(log: Log, export: Export, write: Callable[[Log, Export], None]) -> None:
    write(log, export)
    readers = Readers(export.table)
    lost = []
    for each in filters():
        for reader in readers.all:
            found = without_nan(each, reader(each))
            if found != each.found:
                lost.append((reader.__name__, each, found))
    assert lost == []


def configuration(export: Export) -> dict[str, str | None]:
    return dict(table_at(export.table).metadata().configuration)


def named(export: Export) -> list[str]:
    return named_columns(str(configuration(export)[SKIPPING_PROPERTY]))


def test_an_older_table_gets_the_property_in_one_commit_that_changes_nothing_else(log: Log, export: Export) -> None:
    small_exports(log, export)
    assert named(export) == NAMED
    forget_property(export.table)
    before = table_at(export.table)
    assert fit_skipping(export.table, table_columns(export)) == before.version() + 1
    after = table_at(export.table)
    assert configuration(export) == {**before.metadata().configuration, **skipping_property(NAMED)}
    assert (after.file_uris(), after.schema(), str(after.protocol())) == (
        before.file_uris(), before.schema(), str(before.protocol()),
    )  # fmt: skip
    assert fit_skipping(export.table, table_columns(export)) is None
    log.add(b"next", values()[0][0][1])
    assert run_small(log, export) is not None


def test_a_column_of_which_a_file_has_no_bounds_is_not_named(log: Log, export: Export) -> None:
    small_exports(log, export)
    forget_property(export.table)
    commit = commit_file(export.table, 1)
    actions = [json.loads(line) for line in commit.read_bytes().splitlines()]
    for action in actions:
        if "add" in action:
            stats = json.loads(action["add"]["stats"])
            del stats["maxValues"]["whole"], stats["nullCount"]["text"]
            stats["maxValues"]["moment"] = "+10000-01-01T04:59:59Z"
            action["add"]["stats"] = json.dumps(stats)
    commit.write_bytes(b"".join(json.dumps(action).encode() + b"\n" for action in actions))
    assert fit_skipping(export.table) is not None
    assert named(export) == [name for name in NAMED if name not in ("whole", "text", "moment")]
    readers = Readers(export.table)
    wanted = [each for each in filters() if each.column in ("whole", "text", "moment")]
    assert [without_nan(each, readers.pandas(each)) for each in wanted] == [each.found for each in wanted]


def test_columns_that_become_decimals_or_leave_the_table_are_not_named(log: Log, export: Export) -> None:
    small_exports(log, export)
    wider = replace(export, schema=EventSchema("id BIGINT, whole DECIMAL(38,0), text STRING, new STRING"))
    assert fit_skipping(export.table, table_columns(wider)) is not None
    assert named(export) == [name for name in NAMED if name != "whole"]
    assert fit_skipping(export.table, table_columns(wider), ["text"], rebuilt=True) is not None
    assert named(export) == ["id", "_partition", "_offset", "_timestamp"]


@pytest.mark.parametrize("names", ["id,price", "real", "inside.price", "flag", "nothing"])
def test_a_table_whose_owner_named_other_columns_is_exported_by_spark(log: Log, export: Export, names: str) -> None:
    """deltalake would write bounds of these columns that are wrong or missing."""
    small_exports(log, export)
    set_property(export.table, names)
    assert fit_skipping(export.table) is None
    log.add(b"next", values()[0][0][1])
    assert run_small(log, export) is None


@pytest.mark.parametrize("names", ["id", "`ID`, _offset", ""])
def test_the_columns_that_an_owner_named_stay(log: Log, export: Export, names: str) -> None:
    small_exports(log, export)
    set_property(export.table, names)
    assert fit_skipping(export.table, table_columns(export)) is None
    log.add(b"next", values()[0][0][1])
    assert run_small(log, export) is not None
    assert configuration(export)[SKIPPING_PROPERTY] == names


def set_property(table: str, names: str) -> None:
    change_metadata(
        table, "SET TBLPROPERTIES", "a property", "", "",
        properties=lambda there: {**there.metadata().configuration, SKIPPING_PROPERTY: names},
    )  # fmt: skip


def test_a_table_without_statistics_stays_without(log: Log, export: Export) -> None:
    small_exports(log, export)
    forget_property(export.table)
    table_at(export.table).alter.set_table_properties({"delta.dataSkippingNumIndexedCols": "0"})
    assert fit_skipping(export.table, table_columns(export)) is None


def test_there_is_no_table(export: Export) -> None:
    assert fit_skipping(export.table, table_columns(export)) is None
