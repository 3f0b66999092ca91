"""Creates, extends and widens the columns of an exported table, so that they fit the export's model.

    a field of the model                the change of the table
    has no column yet                   the column is added after the other columns, in a commit without rows
    has the type of the column          none
    is a wider number                   the table is rewritten with the wider type, in one commit
    has any other type                  none: the export is refused with a TableSchemaError
    has the column's name in another    none: the export is refused with a TableSchemaError
      case, such as price for Price

The same rules apply inside objects, lists and maps. A column that is not in the model is not changed. The rule of
`schemas.comparing` decides which type is wider. A bigint can become a double, or a decimal with at least 19 digits
before the point. A decimal can become another decimal that has at least as many digits on each side of the point. If
the table has bigints that a double cannot represent exactly, the export is refused, and the error gives the number of
rows with such bigints. If another writer adds such a row after this check, the query that rewrites the table fails.

**The rewrite.** Delta has its own type widening, but readers other than Spark refuse tables with this feature. So the
rows are written again with `overwriteSchema`. Delta reads and writes the rows in one transaction. If another writer
commits meanwhile (INSERT, DELETE, UPDATE or OPTIMIZE), the rewrite either contains that commit, or fails with a
conflict. Only the names and types of the columns are read earlier, before the transaction begins. So after the commit,
the rewrite compares these names and types with the names and types in the version before the commit. If the rows have
digests, and another writer changed rows just before the transaction, the export ends with an error after the rewrite.

The rewrite commits the table's current positions again, with the same guard as an export
(pipeline.delta.table_history). So if two exports run at the same time, only one of them can commit. If a run is killed
after the rewrite, the next run continues with the rewritten table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, DecimalType, DoubleType, LongType, MapType, StructField, StructType

from lakelog.spark.types import nullable, quoted, spark_struct
from pipeline.delta.delta_table import is_table
from pipeline.delta.export_plan import Export, ExportPlan, TableSchemaError
from pipeline.delta.files.table_commits import create_empty, new_properties
from pipeline.delta.rows.row_columns import table_columns
from pipeline.delta.table_history import check_committed, check_foreign, head_as_before, read_head
from pipeline.delta.table_layout import check_rewritable, fit_layout
from pipeline.delta.table_position import stamp_of
from pipeline.delta.table_stamp import NextLink, Stamp, TableHead, known_began
from pipeline.spark.failures import SPARK_ERRORS, raised_in_query
from schemas.comparing import is_widened
from storage_engine.errors import ConflictError
from storage_engine.quantities import counted

Notify = Callable[[str], None]
"""Receives a line for the operator."""

_ITEM, _ENTRY = "[]", "{}"
"""The names in a path for the elements of a list and for the values of a map."""
_BEYOND_BIGINT = 2.0**63
"""The double to which the largest bigints are converted. Spark casts this double back to the largest bigint, so the two
casts would not show that digits of the largest bigint are lost."""
_ELSEWHERE = "Nothing was changed. Undo the change of the model, make the table again with --rebuild, or export to another table."


def _as_text(path: tuple[str, ...]) -> str:
    """The path of a column as text, such as legs[].distance."""
    return ".".join(path).replace(f".{_ITEM}", _ITEM).replace(f".{_ENTRY}", _ENTRY)


@dataclass(frozen=True)
class Widening:
    """A number column that becomes wider. path: the names of the fields, the outermost first."""

    path: tuple[str, ...]
    before: DataType
    after: DataType

    @property
    def column(self) -> str:
        """The path as text."""
        return _as_text(self.path)

    def __str__(self) -> str:
        return f"column {self.column} is widened from {self.before.simpleString()} to {self.after.simpleString()}"


@dataclass(frozen=True)
class ColumnChanges:
    """The changes of a table's columns.

    extended: the columns of the table and the missing columns, without wider types.
    widened: the same columns, with the wider types.
    widenings: the differences between `extended` and `widened`.
    """

    extended: StructType
    widened: StructType
    widenings: tuple[Widening, ...]


def column_changes(table: str, found: StructType, wanted: StructType) -> ColumnChanges:
    """The changes that make the columns `found` fit the columns `wanted`.

    Raises:
        TableSchemaError: a column has another type, which cannot be widened, or its name in another case.
    """
    widenings: list[Widening] = []
    extended, widened = _fit_struct(table, found, wanted, (), widenings)
    return ColumnChanges(extended, widened, tuple(widenings))


def as_exported(table: DataFrame, export: Export) -> DataFrame:
    """The rows of a table, with the columns that the table has after the next export: with new columns and wider numbers. A
    query fails at a number that would lose digits.

    Raises:
        TableSchemaError: the columns cannot be changed to those of the export.
    """
    changes = column_changes(export.table, table.schema, _wanted(export))
    found = {each.name: each.dataType for each in table.schema.fields}
    columns = []
    for each in changes.widened.fields:
        before = found.get(each.name)
        if before is None or before == each.dataType:
            column = F.lit(None).cast(each.dataType) if before is None else F.col(quoted(each.name))
        else:
            column = _checked(
                each.name, _with_fields(F.col(quoted(each.name)), before, each.dataType), changes.widenings
            )
        columns.append(column.alias(each.name, metadata=each.metadata))
    return table.select(*columns)


def _with_fields(column: Column, found: DataType, wanted: DataType) -> Column:
    """The values with wider numbers, and with null in fields that they do not have yet."""
    if isinstance(found, StructType) and isinstance(wanted, StructType):
        there = {each.name: each.dataType for each in found.fields}
        fields = [
            (
                _with_fields(column.getField(each.name), there[each.name], each.dataType)
                if each.name in there
                else F.lit(None).cast(each.dataType)
            ).alias(each.name)
            for each in wanted.fields
        ]
        return F.when(column.isNotNull(), F.struct(*fields))
    if isinstance(found, ArrayType) and isinstance(wanted, ArrayType):
        return F.transform(column, lambda item: _with_fields(item, found.elementType, wanted.elementType))
    if isinstance(found, MapType) and isinstance(wanted, MapType):
        return F.transform_values(column, lambda _, value: _with_fields(value, found.valueType, wanted.valueType))
    return column.cast(wanted)


def check_columns(spark: SparkSession, export: Export) -> None:
    """Check, before any record is read, that the table's columns can be changed to those of the export.

    Raises:
        TableSchemaError: a column cannot be changed.
    """
    if is_table(spark, export.table):
        column_changes(export.table, _columns(spark, export), _wanted(export))


def fit_table(
    spark: SparkSession,
    export: Export,
    plan: ExportPlan,
    notify: Notify = lambda _: None,
) -> TableHead:
    """Give the table the columns of the model and of the mode. Create the table if there is none.

    Args:
        plan: the plan of the run. A rewrite does not change the positions.
        notify: receives a line before a rewrite.

    Returns:
        The table's head after the change.

    Raises:
        TableSchemaError: a column has another type, or cannot be widened.
        ConflictError: another export, or another writer, changed the table meanwhile.
        ForeignCommitError: the rows have digests, and another writer changed rows meanwhile.
    """
    head = plan.head
    layout = export.layout
    if head is None and not layout.cluster_by and create_empty(export):
        return head_as_before(export, None)
    found = _columns(spark, export) if is_table(spark, export.table) else StructType()
    changes = column_changes(export.table, found, _wanted(export))
    rewrite = None
    if changes.widenings:
        head = head_as_before(export, head)
        rewrite = _plan_rewrite(spark, export, head.version, changes.widenings)
    is_extended = changes.extended != found
    if is_extended:
        empty = spark.createDataFrame([], changes.extended)
        writer = empty.write.format("delta").mode("append").option("mergeSchema", "true")
        if not found:
            writer = writer.partitionBy(*layout.partitions)
        writer.options(**new_properties(export)).save(export.table)  # only a new table gets properties
    is_extended = fit_layout(spark, export) or is_extended
    if is_extended or head is None:
        head = head_as_before(export, head)
    if rewrite is None:
        return head
    notify(f"table {export.table}: {rewrite}, in one commit")
    began = known_began(plan.head) if plan.before else plan.began
    stamp = stamp_of(spark, export, head, plan.before, plan.recent, began)
    if export.digest:  # no digest changes: equal numbers have equal digests
        stamp = NextLink(head).add_to(stamp)
    version = _rewrite(spark, export, rewrite, head, stamp, last_known=rewrite.version + is_extended)
    head = TableHead(version, current=stamp, newest=stamp, next_guard=version + 1, table_id=stamp.table_id)
    return head_as_before(export, head) if fit_layout(spark, export) else head


def _columns(spark: SparkSession, export: Export) -> StructType:
    return DeltaTable.forPath(spark, export.table).toDF().schema


def _wanted(export: Export) -> StructType:
    return nullable(spark_struct(table_columns(export)))


# --- What changes -------------------------------------------------------------------------------------------------


def _fit_struct(
    table: str, found: StructType, wanted: StructType, outer: tuple[str, ...], widenings: list[Widening]
) -> tuple[StructType, StructType]:
    new = {each.name.lower(): each for each in wanted.fields}  # Spark and Delta ignore the case of column names
    extended, widened = StructType(), StructType()
    for each in found.fields:
        kind = wider = each.dataType
        if (other := new.pop(each.name.lower(), None)) is not None:
            if other.name != each.name:
                raise _renamed(table, (*outer, each.name), other.name)
            kind, wider = _fit_type(table, kind, other.dataType, (*outer, each.name), widenings)
        extended.add(StructField(each.name, kind, each.nullable, each.metadata))
        widened.add(StructField(each.name, wider, each.nullable, each.metadata))
    for each in new.values():
        extended.add(each)
        widened.add(each)
    return extended, widened


def _renamed(table: str, path: tuple[str, ...], name: str) -> TableSchemaError:
    return TableSchemaError(
        table,
        f"column {_as_text(path)} is called {name} in the schema, but Delta does not distinguish upper and lower case",
        f"Call the field {path[-1]}, make the table again with --rebuild, or export to another table.",
    )


def _fit_type(
    table: str, found: DataType, wanted: DataType, path: tuple[str, ...], widenings: list[Widening]
) -> tuple[DataType, DataType]:
    """The type with missing inner fields added, and the same type with wider numbers."""
    if isinstance(found, StructType) and isinstance(wanted, StructType):
        return _fit_struct(table, found, wanted, path, widenings)
    if isinstance(found, ArrayType) and isinstance(wanted, ArrayType):
        kind, wider = _fit_type(table, found.elementType, wanted.elementType, (*path, _ITEM), widenings)
        return ArrayType(kind, found.containsNull), ArrayType(wider, found.containsNull)
    if isinstance(found, MapType) and isinstance(wanted, MapType):
        kind, wider = _fit_type(table, found.valueType, wanted.valueType, (*path, _ENTRY), widenings)
        key, has_null = found.keyType, found.valueContainsNull
        return MapType(key, kind, has_null), MapType(key, wider, has_null)
    if found.simpleString() == wanted.simpleString():
        return found, found
    widening = Widening(path, found, wanted)
    old, new = _number(found), _number(wanted)
    if old is None or new is None or not is_widened(old, new):
        raise TableSchemaError(
            table,
            f"column {widening.column} is {found.simpleString()}, but the schema now says {wanted.simpleString()}",
            "Undo the change, give the field another name, make the table again with --rebuild, or export to another"
            " table.",
        )
    widenings.append(widening)
    return found, wanted


def _number(kind: DataType) -> str | None:
    """The name of a number's type in `schemas.comparing`."""
    if isinstance(kind, DecimalType):
        return f"Decimal({kind.precision},{kind.scale})"
    if isinstance(kind, LongType):
        return "int"
    return "float" if isinstance(kind, DoubleType) else None


# --- The rewrite --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _TableRewrite:
    """A planned rewrite. version: the table's version when its rows were checked, or an older version. rows: the number
    of rows."""

    version: int
    widenings: tuple[Widening, ...]
    partitions: list[str]
    rows: int

    def __str__(self) -> str:
        return f"{_named(self.widenings)}: {counted(self.rows, 'row')} are rewritten"


def _named(widenings: tuple[Widening, ...]) -> str:
    return ", ".join(str(each) for each in widenings)


def _plan_rewrite(spark: SparkSession, export: Export, version: int, widenings: tuple[Widening, ...]) -> _TableRewrite:
    """Check, before anything is written, that the table may be rewritten and that no number loses digits.

    Raises:
        TableSchemaError: the table must not be rewritten, or a number would lose digits.
    """
    table = export.table
    now = spark.read.format("delta").load(table)
    partitions = check_rewritable(spark, export, now.schema, _named(widenings), _ELSEWHERE)
    for each in widenings:
        if each.path[0] in partitions:
            raise TableSchemaError(
                table,
                f"column {each.column} partitions the table, and the schema makes it {each.after.simpleString()}; only"
                " texts, whole numbers, booleans and dates can partition a table",
                f"Undo the change. Or name other columns in {export.section}.partition.by, and make the table again with"
                " --rebuild.",
            )
    rows, inexact = _count(now, widenings)
    for widening, count in inexact.items():
        raise _too_large(table, widening, f"{counted(count, 'row')} of {rows:,}")
    return _TableRewrite(version, widenings, partitions, rows)


def _rewrite(
    spark: SparkSession, export: Export, rewrite: _TableRewrite, head: TableHead, stamp: Stamp, last_known: int
) -> int:
    """Write all rows with the wider types, in one commit.

    Args:
        head: the head from which the stamp was made.
        last_known: the newest version that was read for `rewrite`.

    Returns:
        The version of the rewrite.

    Raises:
        ConflictError: another export committed, or another writer changed the columns.
        ForeignCommitError: another writer changed rows just before the rewrite, and the table has a chain.
        TableSchemaError: another writer added numbers that would lose digits. Nothing was committed.
    """
    now = spark.read.format("delta").load(export.table)
    changes = column_changes(export.table, now.schema, _wanted(export))
    wider = [
        _exactly(each, rewrite.widenings).alias(each.name, metadata=each.metadata) for each in changes.widened.fields
    ]
    writer = now.select(*wider).write.format("delta").mode("overwrite").partitionBy(*rewrite.partitions)
    writer = writer.option("overwriteSchema", "true").option("partitionOverwriteMode", "static")
    writer = writer.option("txnAppId", stamp.app_id).option("txnVersion", stamp.version)
    try:
        writer.option("userMetadata", stamp.to_json()).save(export.table)
    except SPARK_ERRORS as error:
        for widening in _lossy(rewrite.widenings):
            if raised_in_query(error, _mark(widening)):
                raise _too_large(export.table, widening, "rows of another writer") from error
        raise
    version: int = check_committed(export.table, head.version, stamp).version
    if version > last_known + 1:
        _check_version_before(spark, export, version, now.schema)
        check_foreign(export, read_head(export.table))
    return version


def _count(table: DataFrame, widenings: tuple[Widening, ...]) -> tuple[int, dict[Widening, int]]:
    """The number of rows, and by column the number of rows that would lose digits. A column that loses no digits is
    missing."""
    lossy = _lossy(widenings)
    found = table.agg(F.count("*"), *(F.count_if(_row_loses_digits(each)) for each in lossy)).first()
    assert found is not None, "an aggregation without grouping has one row"
    rows, *counts = found
    return rows, {each: count for each, count in zip(lossy, counts, strict=True) if count}


def _lossy(widenings: tuple[Widening, ...]) -> list[Widening]:
    return [each for each in widenings if isinstance(each.before, LongType) and isinstance(each.after, DoubleType)]


def _too_large(table: str, widening: Widening, what: str) -> TableSchemaError:
    return TableSchemaError(
        table,
        f"column {widening.column} is {widening.before.simpleString()}, and the schema now says"
        f" {widening.after.simpleString()}, but {what} would lose digits: a double is exact only for whole numbers up to 2^53",
        "Nothing was changed. Undo the change, make the field a Decimal with at least 19 digits before the"
        " point, or export to another table.",
    )


def _exactly(field: StructField, widenings: tuple[Widening, ...]) -> Column:
    """A column with its new type. The query fails at a row that would lose digits. Such a row may have been added after
    the check."""
    return _checked(field.name, F.col(quoted(field.name)).cast(field.dataType), widenings)


def _checked(name: str, column: Column, widenings: tuple[Widening, ...]) -> Column:
    """The new values of a column. The query fails at a row that would lose digits."""
    for each in _lossy(widenings):
        if each.path[0] == name:
            column = F.when(_row_loses_digits(each), F.raise_error(F.lit(_mark(each)))).otherwise(column)
    return column


def _mark(widening: Widening) -> str:
    """The text by which the failure of the query is recognized."""
    return f"lakelog: digits of column {widening.column}"


def _row_loses_digits(widening: Widening) -> Column:
    """Whether a bigint of the row would become a different number as a double."""
    name, *inside = widening.path
    return _loses_digits(F.col(quoted(name)), inside)


def _loses_digits(column: Column, path: Sequence[str]) -> Column:
    if not path:
        double = column.cast("double")
        return F.coalesce((double == _BEYOND_BIGINT) | (double.try_cast("bigint") != column), F.lit(False))
    if path[0] == _ITEM:
        return F.coalesce(F.exists(column, lambda item: _loses_digits(item, path[1:])), F.lit(False))
    if path[0] == _ENTRY:
        return _loses_digits(F.map_values(column), [_ITEM, *path[1:]])
    return _loses_digits(column.getField(path[0]), path[1:])


def _check_version_before(spark: SparkSession, export: Export, version: int, columns: StructType) -> None:
    """Check that the version before a rewrite has the columns for which the rewrite was planned. Another writer may
    have committed that version.

    Raises:
        ConflictError: that version has different columns, so the rewrite may have lost a column.
    """
    before = spark.read.format("delta").option("versionAsOf", version - 1).load(export.table)
    if before.schema != columns:
        raise ConflictError(
            export.table,
            f"another writer changed the table's columns just before the rewrite, which is version {version}",
            f"Restore the table to version {version - 1} and start the export again.",
        )
