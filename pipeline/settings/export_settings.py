"""Declares the settings of exports: the section `export`, and the entries of the section `exports`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from pipeline.settings.jdbc_settings import DatabaseKind, JdbcSettings
from pipeline.settings.job_keys import (
    DEFAULT_MAX_SHARE,
    DEFAULT_SPARK_RECORDS,
    MAX_DEAD_LETTER_SHARE,
    SPARK_RECORDS,
)
from pipeline.settings.section import Section
from pipeline.settings.values import AVAILABLE_NOW, Noun, Table, TopicName, Trigger, by_key, listed, mistake

_Reader = Literal["spark", "duckdb", "polars", "deltalake"]
_READERS: Final = "spark, duckdb, polars and deltalake"
MOST_CLUSTERED: Final = 4
"""The largest number of columns by which Delta clusters a table."""
_CATALOG_NAME: Final = re.compile(r"\w{1,255}(\.\w{1,255}){1,2}", re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")


def _catalog_name(name: str) -> str:
    if not _CATALOG_NAME.fullmatch(name):
        raise mistake(
            f"found the name {name!r}",
            "Write schema.table or catalog.schema.table, each part with letters, digits and `_`.",
        )
    return name


class ExportSettings(Section):
    """The job `export`: brings a table up to date with a topic, incrementally and exactly once. The table is a Delta
    table, or a table of a database."""

    topic: TopicName = Field(description="Topic to export.")
    table: Table = Field(
        default_factory=lambda fields: f"tables/{fields.get('topic', '')}",
        validate_default=True,
        description="Directory of the Delta table. Default: tables/ and the name of the topic.",
    )
    catalog_table: Annotated[str, Noun("a name"), AfterValidator(_catalog_name)] | None = Field(
        default=None,
        alias="catalog.table",
        description="The name under which the Delta table is registered in a catalog of Spark: schema.table in the catalog"
        " spark_catalog, or catalog.schema.table. The schema must exist. Without this setting, the table is not registered.",
    )
    jdbc: JdbcSettings | None = Field(
        default=None,
        description="A table of a database, to which the job exports instead of a Delta table. The mode is upsert.",
    )
    mode: Annotated[Literal["upsert", "append", "changelog"], Noun("upsert, append or changelog")] | None = Field(
        default=None,
        description="upsert: a row has the latest value of its key, and a tombstone deletes the row. append: every record"
        " becomes a row. changelog: every record becomes a row, also a tombstone; the column _change_type is upsert or"
        " delete. Default: upsert if the topic's cleanup.policy contains compact, otherwise append. To change the mode of a"
        " table that exists, run the export once with --rebuild.",
    )
    headers: Annotated[bool, Noun("true or false")] = Field(
        default=False,
        description="Whether the table has a column _headers with the records' headers. Only the modes append and"
        " changelog allow this column. Rows that were exported without this column contain null there.",
    )
    extra: Annotated[bool, Noun("true or false")] = Field(
        default=False,
        description="Whether the table has a column _extra with the fields of the values that the topic's schema does not"
        " have, as a JSON object. The column is null if there are none. Rows that were exported without this column contain"
        " null there. The topic needs a schema.",
    )
    digest: Annotated[bool, Noun("true or false")] = Field(
        default=True,
        description="Whether a new Delta table has a column _digest with a hash of each row, and each commit the sums of"
        " these hashes. The job prove uses them to check rows whose records are no longer in the log. A table that was"
        " created without this column gets it with --rebuild. false ends the use of the hashes in a table that has them.",
    )
    readers: Annotated[tuple[_Reader, ...], Noun(f"a list of {_READERS}"), BeforeValidator(listed)] | None = Field(
        default=None,
        description="The programs that read a Delta table in mode upsert. If all of them can read deletion vectors, the"
        " table has them: then an export does not write a whole file again because of a few changed rows. spark, polars, and"
        " duckdb with its extension delta can read them. polars cannot if texts partition the table. deltalake cannot, and"
        " neither can DuckDB and pandas through deltalake. Without this setting, a new table has no deletion vectors.",
    )
    partition_by: Annotated[tuple[str, ...], Noun("a list of columns"), BeforeValidator(listed)] | None = Field(
        default=None,
        alias="partition.by",
        description="The columns by which a new Delta table is partitioned: fields of the model with texts, whole numbers,"
        " booleans or dates, or _partition. In these columns, an empty text becomes null. To change the partitions of a"
        " table that exists, run the export once with --rebuild. Without this setting, a new table has no partitions, and"
        " any other table keeps its own.",
    )
    cluster_by: Annotated[tuple[str, ...], Noun("a list of columns"), BeforeValidator(listed)] | None = Field(
        default=None,
        alias="cluster.by",
        description=f"The columns, at most {MOST_CLUSTERED}, by which Spark's OPTIMIZE clusters the rows of a Delta table"
        " (liquid clustering). Only Spark writes such a table; spark, duckdb, polars and deltalake read it. A change of the"
        " setting changes no row. Without this setting, a new table has no such columns, and any other table keeps its own.",
    )
    max_dead_letter_share: Annotated[float, Noun("a number"), by_key(MAX_DEAD_LETTER_SHARE)] = Field(
        default=DEFAULT_MAX_SHARE, alias="max.dead.letter.share", description=MAX_DEAD_LETTER_SHARE.doc
    )
    trigger: Trigger = Field(
        default=AVAILABLE_NOW,
        description=f"{AVAILABLE_NOW}: export the new records, then end. An interval such as `1 minute`: look for new records"
        " after each interval (at least one second), until the job is asked to stop.",
    )
    spark_records: Annotated[int, Noun("a whole number"), by_key(SPARK_RECORDS)] = Field(
        default=DEFAULT_SPARK_RECORDS, alias="spark.records", description=SPARK_RECORDS.doc
    )

    @property
    def shown_table(self) -> str:
        """The name of the table in reports and messages."""
        return str(self.jdbc.target()) if self.jdbc is not None else self.table

    @model_validator(mode="after")
    def _has_one_layout(self) -> Self:
        if self.partition_by and self.cluster_by:
            raise mistake(
                "found both keys, partition.by and cluster.by, but Delta clusters only tables without partitions",
                "Remove one of them.",
            )
        for name, columns in (("partition.by", self.partition_by), ("cluster.by", self.cluster_by)):
            if columns is not None and len(set(columns)) < len(columns):
                raise mistake(f"found a column twice in {name}", "Name each column once.")
        if self.cluster_by is not None and len(self.cluster_by) > MOST_CLUSTERED:
            raise mistake(
                f"found {len(self.cluster_by)} columns in cluster.by", f"Name at most {MOST_CLUSTERED} columns."
            )
        return self

    @model_validator(mode="after")
    def _fits_a_database(self) -> Self:
        if self.jdbc is None:
            return self
        if "table" in self.model_fields_set:
            raise mistake("found both keys, table and jdbc", "Remove table, or use two exports in the section exports.")
        if self.mode not in (None, "upsert"):
            raise mistake(
                f"found the mode {self.mode}, but an export into a database has one row per key",
                "Remove mode, or export to a Delta table.",
            )
        if self.readers is not None:
            raise mistake("found readers, which are only for Delta tables", "Remove readers.")
        if self.partition_by is not None or self.cluster_by is not None:
            name = "partition.by" if self.partition_by is not None else "cluster.by"
            raise mistake(f"found {name}, which is only for Delta tables", f"Remove {name}.")
        if self.catalog_table is not None:
            raise mistake("found catalog.table, which is only for Delta tables", "Remove catalog.table.")
        if self.headers:
            raise mistake("found headers: true, but an export into a database has no headers", "Remove headers.")
        if self.jdbc.schema_ is not None and self.jdbc.target().kind is not DatabaseKind.POSTGRESQL:
            raise mistake(
                "found jdbc.schema, which only PostgreSQL has", "Remove jdbc.schema: the URL names the database."
            )
        return self


def _export_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise mistake(f"found the name {name!r}", "Use letters, digits, `-` and `_`.")
    return name


def _each_table_once(exports: Mapping[str, ExportSettings]) -> Mapping[str, ExportSettings]:
    """Refuse two exports with one table or one name in a catalog, or with a table inside the folder of another one."""
    for (name, export), (other_name, other) in itertools.permutations(exports.items(), 2):
        if export.shown_table == other.shown_table:
            raise mistake(
                f"the exports {name} and {other_name} have the same table, {export.shown_table}",
                "Give each export its own table.",
            )
        if export.catalog_table is not None and export.catalog_table.lower() == (other.catalog_table or "").lower():
            raise mistake(
                f"the exports {name} and {other_name} have the same catalog.table, {export.catalog_table}",
                "Give each table its own name.",
            )
        if export.jdbc is not None or other.jdbc is not None:
            continue
        if export.table.startswith(f"{other.table}/"):
            raise mistake(
                f"the table of the export {name}, {export.table}, is inside the table of {other_name}",
                "Give each export its own folder.",
            )
    return exports


Exports = Annotated[
    Mapping[Annotated[str, AfterValidator(_export_name)], ExportSettings],
    Noun("a section of exports"),
    AfterValidator(_each_table_once),
]
"""Exports by name."""
