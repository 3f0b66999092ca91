"""Reads an exported table together with the newer records, which are in the log but not yet in the table.

These functions decode the values with the topic's model, as an export does. So these functions need the packages
`pipeline` and `schemas` of a checkout; the wheel does not contain them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from lakelog.opening import open_topics
from lakelog.optional import of_checkout
from lakelog.root import root_path
from lakelog.rows import ArrowRows
from lakelog.topic import warn
from storage_engine.arguments import refused
from storage_engine.errors import ConfigError
from storage_engine.topic.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pipeline.delta.fresh.fresh_rows import FreshRows
    from pipeline.delta.fresh.snapshot import FreshRequest


_PURPOSE = "reading a table together with the log"
SchemaTexts = tuple[str | None, str | None]
"""The texts of a schema and of its registry, as in the settings."""


class FreshTable(ArrowRows):
    """The rows of one version of an exported table, updated with the records that were not exported yet. Later appends
    and exports do not change the rows. Each iteration reads the rows of the table again. After VACUUM has deleted the
    files of this version, an iteration fails. The order of the rows is not defined.

    version: the version of the Delta table.
    positions: for each partition of the topic, the offset after the last record that was read.
    """

    def __init__(self, rows: FreshRows) -> None:
        self._rows = rows
        self.version: int = rows.version
        self.positions: Mapping[int, int] = rows.positions

    @property
    def schema(self) -> pa.Schema:
        """The columns that the table will have after the next export."""
        return self._rows.schema

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """The rows in Arrow record batches.

        Raises:
            StorageError: the table cannot be read.
        """
        return self._rows.batches()

    def __repr__(self) -> str:
        return f"<version {self.version} of a table, and the log up to {dict(self.positions)}>"


def table(
    spark: SparkSession,
    topic: str,
    *,
    root: str | os.PathLike[str],
    table: str | os.PathLike[str] | None = None,
    schema: str | None = None,
    registry: str | None = None,
    key_schema: str | None = None,
    key_registry: str | None = None,
) -> DataFrame:
    """A DataFrame with the current rows of an exported Delta table: the rows that the table would have after an export
    of all committed records. The DataFrame combines the rows of the table with the records that are not exported yet.
    Each committed record counts once, even if an export commits at the same time. Records that cannot be decoded are
    left out.

    The records that are not exported yet are read when `table` is called. The rows of the DataFrame do not change, so
    call `table` again to get newer records. Executors need the packages of a checkout of Lakelog. Without Spark, use
    `Topic.table`.

    Args:
        spark: a Spark session that can read Delta tables.
        topic: the name of the topic.
        root: a directory, or a URI, as in lakelog.open.
        table: the path of the table below the root, or a URI; by default tables/NAME, with the name of the topic.
        schema: the topic's schema, written as in the setting topics.NAME.schema. Leave this argument out if the topic
            has no schema.
        registry: the registry of the topic's schemas, written as in the setting topics.NAME.schema.registry. The user and
            the password are in LAKELOG_SCHEMAS_REGISTRY_USER and LAKELOG_SCHEMAS_REGISTRY_PASSWORD.
        key_schema: the schema of the topic's keys, written as in the setting topics.NAME.key.schema. Leave this argument
            out if the topic has no such setting.
        key_registry: the registry of the schemas of the keys, as in the setting topics.NAME.key.schema.registry.

    Raises:
        StateError: the table does not exist, the table belongs to another topic, the table's position in the topic is
            not known, or retention deleted records that no export had read. The error message says what to do.
        ConflictError: retention or compaction changed the log during each attempt to read it.
        ConfigError: the table needs a schema, or a schema or a registry cannot be used, or an argument has a wrong type.
        MissingPackageError: this is not a checkout of Lakelog.
        UnknownTopicError: there is no such topic.
        NoRootError: there is no root.
        LogError: a task of Spark failed, or the schema registry does not answer or refuses access.
    """
    topics = open_topics(root_path(root), None, warn)
    with of_checkout(_PURPOSE):
        from pipeline.delta.fresh.fresh_frame import fresh_frame

        request = _request(
            topics, topic, topics.state(topic).topic_id, table, (schema, registry), (key_schema, key_registry)
        )
        return fresh_frame(spark, request)


def fresh_table(
    topics: Topics,
    topic: str,
    topic_id: str,
    table: str | os.PathLike[str] | None,
    values: SchemaTexts,
    keys: SchemaTexts,
) -> FreshTable:
    """The result of Topic.table.

    Args:
        topic_id: the id that the topic must still have.
        table: as in Topic.table.
        values: the arguments `schema` and `registry` of Topic.table.
        keys: the arguments `key_schema` and `key_registry` of Topic.table.
    """
    with of_checkout(_PURPOSE):
        from pipeline.delta.fresh.fresh_rows import fresh_rows

        return FreshTable(fresh_rows(_request(topics, topic, topic_id, table, values, keys)))


def _request(
    topics: Topics,
    topic: str,
    topic_id: str,
    table: str | os.PathLike[str] | None,
    values: SchemaTexts,
    keys: SchemaTexts,
) -> FreshRequest:
    from pipeline.delta.fresh.snapshot import FreshRequest, table_uri

    if table is not None and not isinstance(table, str | os.PathLike):
        raise refused("table", "expected a path or a URI", table, "Give the path or the URI of the table.")
    texts: list[object] = [*values, *keys]
    for name, text in zip(("schema", "registry", "key_schema", "key_registry"), texts, strict=True):
        if text == "" or not isinstance(text, str | None):
            found = type(text).__name__ if text != "" else "an empty text"  # a registry's URL may contain a password
            raise ConfigError(name, f"found {found}", "Write the text of the setting, or leave out this argument.")
    path = table_uri(topics.storage, os.fspath(table) if table is not None else f"tables/{topic}")
    return FreshRequest(topics.storage, topics.chain(topic), topic, topic_id, path, *values, *keys)
