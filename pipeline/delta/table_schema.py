"""Creates, extends and widens the columns of an exported table, so that they fit the export's model.

    what the model says of a column     what happens
    the table has no such column        it is added after the others, in a commit without rows
    the type that the table has         nothing
    a wider number                      the table is rewritten with the wider type, in one commit
    any other type                      TableSchemaError, and the table stays

The same holds inside objects and lists. A column that the model does not have stays as it is. Which number is wider is
the rule of `schemas.comparing`: a bigint becomes a double, or a decimal with at least 19 digits before the point; a
decimal becomes one with no fewer digits on either side of the point. A bigint that a double cannot hold exactly is no
reason to change it in silence: the export is refused, and says how many rows there are. The rewriting query itself
fails at a row that came since.

**The rewrite.** Delta's own type widening is a feature that readers beside Spark refuse, so the rows are written again
with `overwriteSchema`. Delta reads them in the transaction that writes them: of another writer's commit, the rewrite
has either read it, or is a conflict, whether it is an INSERT, a DELETE, an UPDATE or an OPTIMIZE. The columns alone are
looked at before the transaction begins. So after the commit they are compared with those of the version before it.

The commit has the stamp of the positions that the table has already, under the guard of every export: of two exports at
once one passes. A run that is killed after the rewrite leaves a table from which the next run goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, DecimalType, DoubleType, LongType, StructField, StructType

from lakelog.spark.types import nullable, quoted, spark_struct
from pipeline.delta.delta_table import PLAIN_TABLE_PROPERTIES, check_committed, is_table
from pipeline.delta.export_plan import Export, ExportPlan, TableSchemaError
from pipeline.delta.export_rows import table_columns
from pipeline.delta.table_position import head_as_before, stamp_of
from pipeline.delta.table_stamp import Stamp, TableHead
from pipeline.spark.failures import SPARK_ERRORS, raised_in_query
from schemas.comparing import is_widened
from storage_engine.errors import ConflictError
from storage_engine.quantities import counted

Tell = Callable[[str], None]
"""Is given a line for the operator."""

_ITEM = "[]"
"""In a path: the elements of a list."""
_BEYOND_BIGINT = 2.0**63
"""What the largest bigints become as a double. Spark turns it back into the largest bigint, as if nothing were lost."""
_KEPT_FEATURES = {
    "appendOnly", "changeDataFeed", "checkConstraints", "deletionVectors", "inCommitTimestamp", "invariants",
    "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck",
}  # fmt: skip
"""Table features of which a rewrite loses nothing. It loses generated columns, clustering and identity columns."""
_ELSEWHERE = "Nothing was changed. Take the change back, or export to another table."


@dataclass(frozen=True)
class Widening:
    """A number that becomes wider. path: the names of the fields, from the outermost on."""

    path: tuple[str, ...]
    before: DataType
    after: DataType

    @property
    def column(self) -> str:
        """Such as legs[].distance."""
        return ".".join(self.path).replace(f".{_ITEM}", _ITEM)

    def __str__(self) -> str:
        return f"column {self.column} is widened from {self.before.simpleString()} to {self.after.simpleString()}"


@dataclass(frozen=True)
class ColumnChanges:
    """What becomes of a table's columns.

    extended: the columns as they are, and those that are missing.
    widened: the same, with the wider types.
    widenings: where the two differ.
    """

    extended: StructType
    widened: StructType
    widenings: tuple[Widening, ...]


def column_changes(table: str, found: StructType, wanted: StructType) -> ColumnChanges:
    """How the columns `found` become those that are `wanted`.

    Raises:
        TableSchemaError: a column has another type, and not a narrower one.
    """
    widenings: list[Widening] = []
    extended, widened = _fit_struct(table, found, wanted, (), widenings)
    return ColumnChanges(extended, widened, tuple(widenings))


def check_columns(spark: SparkSession, export: Export) -> None:
    """See, before anything is read, that the table's columns can become those of the export.

    Raises:
        TableSchemaError: one of them cannot.
    """
    if is_table(spark, export.table):
        column_changes(export.table, _columns(spark, export), _wanted(export))


def fit_table(
    spark: SparkSession,
    export: Export,
    plan: ExportPlan,
    tell: Tell,
) -> TableHead:
    """Give the table the columns of the model and of its mode.

    Args:
        plan: of the run; a rewrite leaves the table at the positions that it had before.
        tell: is told of a rewrite before it begins.

    Returns:
        The table's head after that.

    Raises:
        TableSchemaError: a column has another type, or cannot be widened.
        ConflictError: another export, or another writer, changed the table meanwhile.
    """
    head = plan.head
    found = _columns(spark, export) if is_table(spark, export.table) else StructType()
    changes = column_changes(export.table, found, _wanted(export))
    rewrite = None
    if changes.widenings:
        head = head_as_before(spark, export, head)
        rewrite = _plan_rewrite(spark, export.table, head.version, changes.widenings)
    is_extended = changes.extended != found
    if is_extended:
        empty = spark.createDataFrame([], changes.extended)
        writer = empty.write.format("delta").mode("append").option("mergeSchema", "true")
        writer.options(**PLAIN_TABLE_PROPERTIES).save(export.table)
    if is_extended or head is None:
        head = head_as_before(spark, export, head)
    if rewrite is None:
        return head
    tell(f"table {export.table}: {rewrite}, in one commit")
    stamp = stamp_of(spark, export, head, plan.before, plan.recent)
    version = _rewrite(spark, export, rewrite, head, stamp, last_known=rewrite.version + is_extended)
    return TableHead.of_stamp(version, stamp)


def _columns(spark: SparkSession, export: Export) -> StructType:
    return DeltaTable.forPath(spark, export.table).toDF().schema


def _wanted(export: Export) -> StructType:
    return nullable(spark_struct(table_columns(export)))


# --- What changes -------------------------------------------------------------------------------------------------


def _fit_struct(
    table: str, found: StructType, wanted: StructType, outer: tuple[str, ...], widenings: list[Widening]
) -> tuple[StructType, StructType]:
    new = {each.name.lower(): each for each in wanted.fields}  # Spark and Delta find columns whatever their case
    extended, widened = StructType(), StructType()
    for each in found.fields:
        kind = wider = each.dataType
        if (other := new.pop(each.name.lower(), None)) is not None:
            kind, wider = _fit_type(table, kind, other.dataType, (*outer, each.name), widenings)
        extended.add(StructField(each.name, kind, each.nullable, each.metadata))
        widened.add(StructField(each.name, wider, each.nullable, each.metadata))
    for each in new.values():
        extended.add(each)
        widened.add(each)
    return extended, widened


def _fit_type(
    table: str, found: DataType, wanted: DataType, path: tuple[str, ...], widenings: list[Widening]
) -> tuple[DataType, DataType]:
    """The type with what is missing inside, and the same with wider numbers."""
    if isinstance(found, StructType) and isinstance(wanted, StructType):
        return _fit_struct(table, found, wanted, path, widenings)
    if isinstance(found, ArrayType) and isinstance(wanted, ArrayType):
        kind, wider = _fit_type(table, found.elementType, wanted.elementType, (*path, _ITEM), widenings)
        return ArrayType(kind, found.containsNull), ArrayType(wider, found.containsNull)
    if found.simpleString() == wanted.simpleString():
        return found, found
    widening = Widening(path, found, wanted)
    old, new = _number(found), _number(wanted)
    if old is None or new is None or not is_widened(old, new):
        raise TableSchemaError(
            table,
            f"column {widening.column} is {found.simpleString()}, and the schema now says {wanted.simpleString()}",
            "Take the change back, give the field another name, or export to another table.",
        )
    widenings.append(widening)
    return found, wanted


def _number(kind: DataType) -> str | None:
    """A number's type in the words of `schemas.comparing`."""
    if isinstance(kind, DecimalType):
        return f"Decimal({kind.precision},{kind.scale})"
    if isinstance(kind, LongType):
        return "int"
    return "float" if isinstance(kind, DoubleType) else None


# --- The rewrite --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Rewrite:
    """version: the newest when the table was looked at, or an older one. rows: how many the table had then."""

    version: int
    widenings: tuple[Widening, ...]
    partitions: list[str]
    rows: int

    def __str__(self) -> str:
        return f"{_named(self.widenings)}: {counted(self.rows, 'row')} are rewritten"


def _named(widenings: tuple[Widening, ...]) -> str:
    return ", ".join(str(each) for each in widenings)


def _plan_rewrite(spark: SparkSession, table: str, version: int, widenings: tuple[Widening, ...]) -> _Rewrite:
    """See, before anything is written, that the table may be rewritten, and that no number loses digits.

    Raises:
        TableSchemaError: it may not, or one does.
    """
    now = spark.read.format("delta").load(table)
    partitions = _check_rewritable(spark, table, now.schema, _named(widenings))
    rows, inexact = _count(now, widenings)
    for widening, count in inexact.items():
        raise _too_large(table, widening, f"{counted(count, 'row')} of {rows:,}")
    return _Rewrite(version, widenings, partitions, rows)


def _rewrite(
    spark: SparkSession, export: Export, rewrite: _Rewrite, head: TableHead, stamp: Stamp, last_known: int
) -> int:
    """Write all rows with the wider types, in one commit.

    Args:
        head: from which the stamp was made.
        last_known: whatever was committed after this version, `rewrite` does not know.

    Returns:
        The version.

    Raises:
        ConflictError: another export committed, or the table was changed where that was not looked at.
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
    version: int = check_committed(spark, export.table, head.version, stamp).version
    if version > last_known + 1:
        _check_version_before(spark, export, version, now.schema)
    return version


def _check_rewritable(spark: SparkSession, table: str, columns: StructType, what: str) -> list[str]:
    """The columns by which a table is partitioned.

    Raises:
        TableSchemaError: a rewrite is forbidden, or would lose what somebody gave the table.
    """
    details = DeltaTable.forPath(spark, table).detail().first()
    assert details is not None, "a table has exactly one row there"
    problem = None
    if lost := sorted(set(details["tableFeatures"]) - _KEPT_FEATURES):
        problem = f"it has the Delta feature {', '.join(lost)}, which a rewrite may lose"
    elif details["properties"].get("delta.appendOnly", "false").lower() == "true":
        problem = "its property delta.appendOnly forbids that"
    elif columns != nullable(columns):
        problem = "it has a NOT NULL column, which a rewrite would lose"
    if problem is not None:
        raise TableSchemaError(table, f"is to be rewritten because {what}, but {problem}", _ELSEWHERE)
    partitions: list[str] = details["partitionColumns"]
    return partitions


def _count(table: DataFrame, widenings: tuple[Widening, ...]) -> tuple[int, dict[Widening, int]]:
    """How many rows there are, and by column how many would lose digits, where there are any."""
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
        f"column {widening.column} is {widening.before.simpleString()}, the schema now says"
        f" {widening.after.simpleString()}, and {what} would lose digits: a double holds whole numbers exactly up to 2^53",
        "Nothing was changed. Take the change back, make the field a Decimal with at least 19 digits before the"
        " point, or export to another table.",
    )


def _exactly(field: StructField, widenings: tuple[Widening, ...]) -> Column:
    """A column with its new type. A row that would lose digits fails the query: it may have come since rows were counted."""
    column = F.col(quoted(field.name)).cast(field.dataType)
    for each in _lossy(widenings):
        if each.path[0] == field.name:
            column = F.when(_row_loses_digits(each), F.raise_error(F.lit(_mark(each)))).otherwise(column)
    return column


def _mark(widening: Widening) -> str:
    """By which the failure of a query is known."""
    return f"lakelog: digits of column {widening.column}"


def _row_loses_digits(widening: Widening) -> Column:
    """Whether a bigint of the row is another number as a double."""
    name, *inside = widening.path
    return _loses_digits(F.col(quoted(name)), inside)


def _loses_digits(column: Column, path: Sequence[str]) -> Column:
    if not path:
        double = column.cast("double")
        return F.coalesce((double == _BEYOND_BIGINT) | (double.try_cast("bigint") != column), F.lit(False))
    if path[0] == _ITEM:
        return F.coalesce(F.exists(column, lambda item: _loses_digits(item, path[1:])), F.lit(False))
    return _loses_digits(column.getField(path[0]), path[1:])


def _check_version_before(spark: SparkSession, export: Export, version: int, columns: StructType) -> None:
    """See that a rewrite that another writer's commit came before had looked at the same columns.

    Raises:
        ConflictError: it had not, and may have lost a column.
    """
    before = spark.read.format("delta").option("versionAsOf", version - 1).load(export.table)
    if before.schema != columns:
        raise ConflictError(
            export.table,
            f"another writer changed its columns just before version {version} rewrote the table",
            f"Restore it to version {version - 1} and start the export again.",
        )
