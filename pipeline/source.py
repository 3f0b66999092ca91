"""The stream that an ingest reads: whatever Spark's readStream knows, as the settings describe it."""

from __future__ import annotations

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from pipeline.settings import Settings
from pipeline.spark_types import nullable, spark_schema
from schemas.registry import UnknownSchemaError, model, names
from storage_engine.errors import ConfigError


def source_rows(spark: SparkSession, settings: Settings) -> DataFrame:
    """The source's rows as a streaming DataFrame.

    Raises:
        ConfigError: Spark has no such source, refuses its options, or finds nothing at the path; names the setting.
    """
    source = settings.required_ingest().source
    reader = spark.readStream.format(source.format).options(**source.options)
    schema = _schema(settings)
    if schema is not None:
        reader = reader.schema(schema)
    try:
        return reader.load(source.path) if source.path else reader.load()
    except (PySparkException, Py4JJavaError) as error:
        place = settings.place_of("ingest.source")
        problem = f"Spark cannot read it: {_reason(error)}"
        raise ConfigError(place, problem, "Check format, path, schema and options.") from error


def _reason(error: PySparkException | Py4JJavaError) -> str:
    """The first line of what Spark says; some of its errors reach Python as they are in Java."""
    if isinstance(error, Py4JJavaError):
        text = str(error.java_exception.getMessage())
    else:
        text = error.getMessage() or str(error)
    return text.split(" SQLSTATE")[0].split("\n")[0]


def _schema(settings: Settings) -> StructType | None:
    """The columns that a model in schemas/ or a DDL string gives the source; None where it has its own."""
    named = settings.source_schema()
    if named is None:
        return None
    try:
        return nullable(spark_schema(model(named)))
    except UnknownSchemaError as error:
        columns = _ddl(named)
        if columns is None:
            raise ConfigError(
                settings.place_of("ingest.source.schema"),
                f"found {named!r}, which is neither a model in schemas/ nor columns in Spark's DDL",
                f"The models are {', '.join(names())}; DDL looks like `id BIGINT, name STRING`.",
            ) from error
        return columns


def _ddl(text: str) -> StructType | None:
    try:
        columns = StructType.fromDDL(text)
    except PySparkException:
        return None
    return columns if isinstance(columns, StructType) else None
