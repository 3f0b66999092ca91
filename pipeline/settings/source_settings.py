"""Declares the settings of an ingest's source: the section `ingest.source`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, Field

from pipeline.settings.section import Section
from pipeline.settings.values import Location, Noun, Text, distinct_options


class SourceSettings(Section):
    """The source of an ingest: any source of Spark's readStream. docs/SOURCES.md has a section for each kind."""

    format: Text = Field(
        description="Spark's name of the source: json, csv, parquet, rate, kafka, delta and so on, or lakelog for a topic."
    )
    path: Location | None = Field(
        default=None,
        description="Directory, glob or URI of the files to read. A relative path begins at the current directory.",
    )
    schema_: Text | None = Field(
        default=None,
        alias="schema",
        description="Columns of the source's rows. Give the name of a model in schemas/, or `module:Class` for another"
        " pydantic model, or columns in Spark's DDL. Default: the schema of the topic. If the source is kafka or"
        " lakelog, the schema describes the column `value`, in JSON, Avro or Protobuf, in the same forms as the"
        " `schema` of a topic. Expressions can then use the decoded value as the column `event`. Sources with their own"
        " columns, such as rate and delta, need no schema.",
    )
    registry: Text | None = Field(
        default=None,
        alias="schema.registry",
        description="As `schema.registry` of a topic, but for the schema that `ingest.source.schema` names. Default: none.",
    )
    options: Annotated[
        Mapping[str, str], Noun("a section of names and values"), AfterValidator(distinct_options)
    ] = Field(default={}, repr=False, description="Options of the source, passed to Spark unchanged.")  # fmt: skip

    @property
    def has_messages(self) -> bool:
        """Whether the rows are messages, with the columns of Spark's Kafka source."""
        return self.format.lower() in ("kafka", "lakelog")

    @property
    def is_read_when_idle(self) -> bool:
        """Whether a stream that gets no new rows has read all records of the source. Only the sources with messages report
        how many records they have. With minOffsetsPerTrigger, they hold back new records until there are enough."""
        return self.has_messages and "minoffsetspertrigger" not in {name.lower() for name in self.options}
