"""Registers an exported Delta table in a catalog of Spark, under the name of `export.catalog.table` (decision 0072).

A catalog keeps, for a name, the folder of the table. Columns, comments and rows come from the table itself, so the entry
of a table is written once and stays right. The table notes its name in its property `lakelog.catalog.table`. So an export
without Spark sees that the table is registered, and needs no catalog.

    the table's property       what an export does
    the name and the folder    nothing if it exports without Spark. Otherwise it registers the table again if the name is
                               gone from the catalog
    something else, or none    it starts Spark, registers the table, and then sets the property

Before an export writes rows, it checks that the table can be registered. After a clone or a move of the table, the
property names another folder, so the new table is registered, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakelog.spark.types import quoted
from pipeline.delta.table_properties import CATALOG_PROPERTY
from pipeline.delta.without_spark.deltalake_errors import deltalake_errors
from pipeline.delta.without_spark.table_opening import open_or_none
from pipeline.job import JobContext
from pipeline.spark.failures import SPARK_ERRORS, planning_reason
from storage_engine.errors import LogError

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

SESSION_CATALOG = "spark_catalog"
"""Spark's name of the catalog of names with two parts."""
_IMPLEMENTATION = "spark.sql.catalogImplementation"


class CatalogError(LogError):
    """A table cannot be registered in a catalog under the name of the settings."""


def prepare_name(context: JobContext, table: str) -> None:
    """Check, before rows are written, that the table can be registered. Does nothing if the settings have no name for it,
    or if the table is registered.

    Args:
        table: the path or URI of the table, which need not exist.

    Raises:
        CatalogError: the name cannot be used. Nothing was changed.
    """
    name = context.settings.required_export().catalog_table
    if name is not None and _noted(table) != _note(name, table):
        _is_registered(context.spark, name, table, context.settings.place_of("export.catalog.table"))


def register_name(context: JobContext, table: str) -> None:
    """Register the table if the settings have a name for it, and if it is not registered. Does nothing if there is no
    table.

    Raises:
        CatalogError: the table cannot be registered. All rows are exported.
    """
    name = context.settings.required_export().catalog_table
    if name is None:
        return
    noted, note = _noted(table), _note(name, table)
    if noted is None or (noted == note and not context.has_spark):
        return
    spark, place = context.spark, context.settings.place_of("export.catalog.table")
    if not _is_registered(spark, name, table, place):
        _create(spark, name, table, place)
    if noted != note:
        properties = f"('{CATALOG_PROPERTY}' = {_sql_text(note)})"
        try:
            spark.sql(f"ALTER TABLE delta.{quoted(table)} SET TBLPROPERTIES {properties}")
        except SPARK_ERRORS as error:
            raise _failed(place, name, error) from error


def _noted(table: str) -> str | None:
    """The property of the table; an empty text if it has none; None if there is no table.

    Raises:
        StorageError: the table cannot be read.
    """
    with deltalake_errors(table, "Nothing was registered.", "cannot be read"):
        opened = open_or_none(table)
    return None if opened is None else opened.metadata().configuration.get(CATALOG_PROPERTY, "")


def _note(name: str, table: str) -> str:
    return f"{name} at {table}"


def _create(spark: SparkSession, name: str, table: str, place: str) -> None:
    try:
        spark.sql(f"CREATE TABLE {_quoted_name(name)} USING delta LOCATION {_sql_text(table)}")
    except SPARK_ERRORS as error:
        if _is_registered(spark, name, table, place):
            return  # another job was faster
        raise _failed(place, name, error) from error


def _is_registered(spark: SparkSession, name: str, table: str, place: str) -> bool:
    """Whether the catalog has the name for this table. False: the name is free.

    Raises:
        CatalogError: the name stands for something else, there is no such schema, or the catalog lasts only as long as the
            session.
    """
    parts = _parts(name)
    if parts[0] == SESSION_CATALOG and spark.conf.get(_IMPLEMENTATION) == "in-memory":
        raise CatalogError(
            place,
            f"the name {name} would be gone after the job, because {SESSION_CATALOG} is only in the memory of Spark",
            f"Give Spark a metastore, for example -- --conf {_IMPLEMENTATION}=hive --conf"
            " spark.hadoop.hive.metastore.uris=thrift://HOST:9083, or name another catalog.",
        )
    try:
        has_schema = spark.catalog.databaseExists(".".join(map(quoted, parts[:-1])))
        entry = (
            _details(spark, _quoted_name(name))
            if has_schema and spark.catalog.tableExists(_quoted_name(name))
            else None
        )
        wanted = _location(spark, table)
    except SPARK_ERRORS as error:
        raise _failed(place, name, error) from error
    if not has_schema:
        schema = ".".join(parts[:-1])
        raise CatalogError(
            place,
            f"the table cannot be registered as {name}, because there is no schema {schema}",
            f"Create it in Spark: CREATE SCHEMA {schema}",
        )
    if entry is not None and (entry["format"] != "delta" or entry["location"] != wanted):
        raise CatalogError(
            place,
            f"the name {name} stands for a table of the format {entry['format']} in {entry['location']}, not for {wanted}",
            "Use another name, or remove the other table from the catalog.",
        )
    return entry is not None


def _details(spark: SparkSession, table: str) -> Row:
    found = spark.sql(f"DESCRIBE DETAIL {table}").first()
    assert found is not None, "a table has exactly one row there"
    return found


def _location(spark: SparkSession, table: str) -> str:
    """The folder of a table as Delta shows it."""
    context = spark.sparkContext
    assert context._jvm is not None, "the context was not stopped"  # noqa: SLF001 - PySpark has no other access
    assert context._jsc is not None, "the context was not stopped"  # noqa: SLF001
    path = context._jvm.org.apache.hadoop.fs.Path(table)  # noqa: SLF001
    return str(path.getFileSystem(context._jsc.hadoopConfiguration()).makeQualified(path).toString())  # noqa: SLF001


def _failed(place: str, name: str, error: Exception) -> CatalogError:
    return CatalogError(
        place,
        f"the table cannot be registered as {name}: {planning_reason(error)}",
        "No row is lost. Mend the cause, and start the job again.",
    )


def _parts(name: str) -> list[str]:
    """Catalog, schema and table."""
    parts = name.split(".")
    return parts if len(parts) == 3 else [SESSION_CATALOG, *parts]


def _quoted_name(name: str) -> str:
    return ".".join(map(quoted, _parts(name)))


def _sql_text(text: str) -> str:
    """A text as SQL writes it."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
