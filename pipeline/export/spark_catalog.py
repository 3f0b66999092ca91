"""An entry of a catalog of Spark: a name, and the folder of a Delta table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import Row, SparkSession

from lakelog.spark.types import quoted
from pipeline.spark.failures import SPARK_ERRORS, planning_reason
from storage_engine.errors import LogError

SESSION_CATALOG = "spark_catalog"
"""Spark's name of the catalog of names with two parts."""
_IMPLEMENTATION = "spark.sql.catalogImplementation"


class CatalogError(LogError):
    """A table cannot be registered in a catalog under the name of the settings."""


@dataclass(frozen=True)
class Entry:
    """A name, and the table for which it stands or shall stand.

    name: schema and table, or catalog, schema and table, with a point between them.
    table: the path or URI of a Delta table.
    place: the setting with the name, for messages.
    """

    spark: SparkSession
    name: str
    table: str
    place: str

    def is_there(self) -> bool:
        """Whether the catalog has the name for this table. False: the name is free.

        Raises:
            CatalogError: the name stands for something else, there is no such schema, or the catalog lasts only as long as
                the session.
        """
        catalog, schema, _ = self._parts
        if catalog == SESSION_CATALOG and self.spark.conf.get(_IMPLEMENTATION) == "in-memory":
            raise CatalogError(
                self.place,
                f"the name {self.name} would be gone after the job, because {catalog} is only in the memory of Spark",
                f"Give Spark a metastore, for example -- --conf {_IMPLEMENTATION}=hive --conf"
                " spark.hadoop.hive.metastore.uris=thrift://HOST:9083, or name another catalog.",
            )
        try:
            has_schema = self.spark.catalog.databaseExists(f"{quoted(catalog)}.{quoted(schema)}")
            details = self._details() if has_schema and self.spark.catalog.tableExists(self._quoted_name) else None
            folder = self._folder()
        except SPARK_ERRORS as error:
            raise self._failed(error) from error
        if not has_schema:
            raise CatalogError(
                self.place,
                f"the table cannot be registered as {self.name}, because there is no schema {catalog}.{schema}",
                f"Create it in Spark: CREATE SCHEMA {catalog}.{schema}",
            )
        if details is not None and (details["format"] != "delta" or details["location"] != folder):
            raise CatalogError(
                self.place,
                f"the name {self.name} stands for a table of the format {details['format']} in {details['location']}, not"
                f" for {folder}",
                "Use another name, or remove the other table from the catalog.",
            )
        return details is not None

    def make(self) -> None:
        """Register the table, which must exist. Does nothing if it is registered.

        Raises:
            CatalogError: as in `is_there`, or the catalog refuses the table.
        """
        if self.is_there():
            return
        try:
            self.spark.sql(f"CREATE TABLE {self._quoted_name} USING delta LOCATION {_sql_text(self.table)}")
        except SPARK_ERRORS as error:
            if not self.is_there():  # otherwise another job was faster
                raise self._failed(error) from error

    def note(self, properties: Mapping[str, str]) -> None:
        """Set properties of the table.

        Raises:
            CatalogError: Delta refuses them.
        """
        pairs = ", ".join(f"{_sql_text(key)} = {_sql_text(value)}" for key, value in properties.items())
        try:
            self.spark.sql(f"ALTER TABLE delta.{quoted(self.table)} SET TBLPROPERTIES ({pairs})")
        except SPARK_ERRORS as error:
            raise self._failed(error) from error

    @property
    def _parts(self) -> tuple[str, str, str]:
        """Catalog, schema and table."""
        schema, table = self.name.split(".")[-2:]
        return self.name.split(".")[0] if self.name.count(".") == 2 else SESSION_CATALOG, schema, table

    @property
    def _quoted_name(self) -> str:
        return ".".join(map(quoted, self._parts))

    def _details(self) -> Row:
        found = self.spark.sql(f"DESCRIBE DETAIL {self._quoted_name}").first()
        assert found is not None, "a table has exactly one row there"
        return found

    def _folder(self) -> str:
        """The folder of the table as Delta shows it."""
        context = self.spark.sparkContext
        assert context._jvm is not None, "the context was not stopped"  # noqa: SLF001 - PySpark has no other access
        assert context._jsc is not None, "the context was not stopped"  # noqa: SLF001
        path = context._jvm.org.apache.hadoop.fs.Path(self.table)  # noqa: SLF001
        return str(path.getFileSystem(context._jsc.hadoopConfiguration()).makeQualified(path).toString())  # noqa: SLF001

    def _failed(self, error: Exception) -> CatalogError:
        return CatalogError(
            self.place,
            f"the table cannot be registered as {self.name}: {planning_reason(error)}",
            "No row is lost. Mend the cause, and start the job again.",
        )


def _sql_text(text: str) -> str:
    """A text as SQL writes it."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
