"""Declares the settings of the jobs, section by section: keys, meaning, defaults and allowed values.

docs/CONFIGURATION.md is generated from these classes, so each field has a description. Sections are immutable, and
unknown keys are refused. The keys of the sections `broker` and `topics` are Kafka's own, declared in
storage_engine/config.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    InstanceOf,
    PrivateAttr,
    model_validator,
)

from pipeline.settings.export_settings import Exports, ExportSettings
from pipeline.settings.job_keys import (
    BATCH_SIZE,
    COMPRESSION_TYPE,
    DEFAULT_BATCH_BYTES,
    DEFAULT_CODEC,
    DEFAULT_PUBLISH_SPARK_BYTES,
    DEFAULT_SMALL_BYTES,
    DEFAULT_SMALL_FILES,
    DEFAULT_STORAGE_RETRY_MS,
    PUBLISH_SPARK_BYTES,
    SMALL_BYTES,
    SMALL_FILES,
    STORAGE_RETRY_TIMEOUT,
)
from pipeline.settings.schema_settings import SchemaSettings
from pipeline.settings.section import Section
from pipeline.settings.source_settings import SourceSettings
from pipeline.settings.values import (
    AVAILABLE_NOW,
    Checkpoint,
    Location,
    Noun,
    Sql,
    Text,
    TopicName,
    Trigger,
    by_key,
    distinct_options,
    listed,
    mistake,
)
from storage_engine.config import BrokerConfig, nearest
from storage_engine.errors import ConfigError
from storage_engine.topic.broker_settings import BrokerSettings


class IngestSettings(Section):
    """The job `ingest`: appends a stream to one topic or to several, exactly once."""

    topic: TopicName | None = Field(
        default=None,
        description="Topic to append to. Give either this key or ingest.topics. If the topic does not exist, ingest"
        " creates the topic as the section topics describes it.",
    )
    topics: Annotated[tuple[TopicName, ...], Noun("a list of topics"), BeforeValidator(listed)] | None = Field(
        default=None,
        description="Topics to append to, as a list or separated by commas. ingest.topic.column gives the topic of each row."
        " A row whose topic is not in this list becomes a dead letter.",
    )
    topic_column: Sql | None = Field(
        default=None,
        alias="topic.column",
        description="An expression over the source's columns. The result of the expression is the name of the row's"
        " topic, which is one of ingest.topics.",
    )
    source: SourceSettings
    key: Sql | None = Field(
        default=None,
        description="The record's key, computed from the columns of the source. A compacted topic requires a key.",
    )
    value: Sql = Field(description="The record's value. NULL makes the record a tombstone.")
    headers: Sql | None = Field(
        default=None, description="The record's headers: an array of structs of key (string) and value (binary)."
    )
    timestamp: Sql | None = Field(
        default=None,
        description="The record's time, a timestamp. Default: the time at which the micro-batch is written.",
    )
    partition: Sql | None = Field(
        default=None, description="The number of the partition. Default: Kafka's partitioner, which hashes the key."
    )
    validates: Annotated[bool, Noun("true or false")] = Field(
        default=False,
        alias="validate",
        description="Whether each value and key is checked with the topic's `schema` and `key.schema`. A row that does not"
        " match becomes a dead letter, with the schema's reason. A value that is NULL, a tombstone, is accepted. On each"
        " core, Python checks about 140,000 values of twenty fields per second.",
    )
    position_columns: Annotated[tuple[Text, ...], Noun("a list of columns"), BeforeValidator(listed)] | None = Field(
        default=None,
        alias="position.columns",
        description="Columns that contain a row's position in the source. The last column is the position: a whole"
        " number that increases from row to row in its partition. The columns before the last column name the partition"
        " of the source. The set of these partitions must be fixed. For sources of the kinds kafka and lakelog, the"
        " columns are topic, partition, offset. If this key is set, the topic stores the highest committed position of"
        " each partition of the source. A row at or below the position of its partition is a duplicate. Ingest skips"
        " such a row, even if the checkpoint is lost. Default: none. Without this key, only the checkpoint shows which"
        " rows are committed.",
    )
    position_source: Text | None = Field(
        default=None,
        alias="position.source",
        description="Name under which the topic stores the positions of ingest.position.columns. Give each source its"
        " own name. If the positions of a source begin again from the start, give the source a new name. Default: the"
        " bootstrap servers of a kafka source, the path of a file source, or, for lakelog, one name that is the same"
        " for all topics.",
    )
    trigger: Trigger = Field(
        default=AVAILABLE_NOW,
        description=f"{AVAILABLE_NOW}: the ingest reads the existing data and ends. An interval: the ingest runs until you"
        " stop it.",
    )
    batch_size_bytes: Annotated[int, Noun("a whole number of bytes"), by_key(BATCH_SIZE)] = Field(
        default=DEFAULT_BATCH_BYTES, alias="batch.size", description=BATCH_SIZE.doc
    )
    publish_spark_bytes: Annotated[int, Noun("a whole number of bytes"), by_key(PUBLISH_SPARK_BYTES)] = Field(
        default=DEFAULT_PUBLISH_SPARK_BYTES, alias="publish.spark.bytes", description=PUBLISH_SPARK_BYTES.doc
    )
    compression_type: Annotated[
        Literal["uncompressed", "gzip", "snappy", "lz4", "zstd"], Noun(COMPRESSION_TYPE.bound), by_key(COMPRESSION_TYPE)
    ] = Field(default=DEFAULT_CODEC, alias="compression.type", description=COMPRESSION_TYPE.doc)
    storage_retry_timeout_ms: Annotated[int, Noun("a number of milliseconds"), by_key(STORAGE_RETRY_TIMEOUT)] = Field(
        default=DEFAULT_STORAGE_RETRY_MS, alias="storage.retry.timeout.ms", description=STORAGE_RETRY_TIMEOUT.doc
    )
    checkpoint: Checkpoint = Field(
        default_factory=lambda fields: f"checkpoints/ingest/{fields.get('topic', '')}",
        validate_default=True,
        description="Directory of Spark's checkpoint. Default: checkpoints/ingest/ and the name of ingest.topic. With"
        " ingest.topics there is no default. A checkpoint belongs to one source: another source needs another checkpoint.",
    )

    @model_validator(mode="after")
    def _one_topic_or_several(self) -> Self:
        if self.topic is None and self.topics is None:
            raise mistake(
                "the key ingest.topic is missing", "Give the topic to append to, or ingest.topics for several."
            )
        if self.topic is not None and (self.topics is not None or self.topic_column is not None):
            raise mistake(
                "ingest.topic is given together with ingest.topics or ingest.topic.column",
                "Give either ingest.topic, or both ingest.topics and ingest.topic.column.",
            )
        if self.topics is None:
            return self
        if not self.topics or len(set(self.topics)) < len(self.topics):
            raise mistake(
                f"ingest.topics contains {'a topic twice' if self.topics else 'no topic'}", "List each topic once."
            )
        if self.topic_column is None:
            raise mistake(
                "the key ingest.topic.column is missing",
                "Set the key to an expression that gives the topic of each row.",
            )
        if "checkpoint" not in self.model_fields_set:
            raise mistake(
                "the key ingest.checkpoint is missing, and it has no default if there are several topics",
                "Give a path, for example checkpoints/ingest/orders. Do not change the path if you add topics later.",
            )
        return self

    @property
    def ingest_topics(self) -> tuple[str, ...]:
        """The topics to append to, in the order of their names."""
        return (self.topic,) if self.topic is not None else tuple(sorted(self.topics or ()))

    @property
    def name(self) -> str:
        """The name of this ingest in messages: its topic, or for several topics the last part of the checkpoint's path."""
        return self.topic or self.checkpoint.rsplit("/", maxsplit=1)[-1]

    @property
    def processing_time(self) -> str | None:
        """The trigger's interval, or None for available-now."""
        return None if self.trigger == AVAILABLE_NOW else self.trigger


class JobTopics(Section):
    """The topics that a job works on."""

    topics: Annotated[tuple[TopicName, ...], Noun("a list of topics"), BeforeValidator(listed)] | None = Field(
        default=None,
        description="Topics to work on, as a list or separated by commas. Default: all topics of the root.",
    )


class MaintenanceSettings(JobTopics):
    """The job `maintenance`: all cleaning of topics, and the upkeep of their Delta tables."""

    tables_upkeep: Annotated[bool, Noun("true or false")] = Field(
        default=True,
        alias="tables.upkeep",
        description="Whether maintenance also does the upkeep of the exported tables and of the tables of dead letters. The"
        " upkeep joins small files, writes checkpoints of Delta's log, and deletes files and log entries whose retention"
        " has passed. The table's"
        " properties delta.deletedFileRetentionDuration (default: 7 days) and delta.logRetentionDuration (default: 30 days)"
        " set the retention.",
    )
    small_files: Annotated[int, Noun("a whole number"), by_key(SMALL_FILES)] = Field(
        default=DEFAULT_SMALL_FILES, alias="tables.small.files", description=SMALL_FILES.doc
    )
    small_bytes: Annotated[int, Noun("a whole number"), by_key(SMALL_BYTES)] = Field(
        default=DEFAULT_SMALL_BYTES, alias="tables.small.bytes", description=SMALL_BYTES.doc
    )


class StorageSettings(Section):
    """The storage of the root, if the root is not a local directory."""

    options: Annotated[
        Mapping[str, str], Noun("a section of names and values"), AfterValidator(distinct_options)
    ] = Field(
        default={},
        repr=False,
        description="Options of the storage. For object stores, use obstore's names, such as aws_endpoint_url and"
        " aws_region. For hdfs://, use Hadoop's names. These options override the environment variables of the storage."
        " Messages, plans and states never contain the values of these options.",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDefinition:
    """A topic as the settings describe it. Ingest uses the description when it creates the topic.

    Attributes:
        partitions: the number in the settings, or else the broker's num.partitions.
        partitions_given: whether the settings contain the number. If so, a different number in the state is reported.
        overrides: Kafka's topic keys in the canonical text that the topic's state stores.
        schema: names the schema that decodes the values, if any.
        registry: names the folder or the registry of the schemas with which the values were written, if any.
        key_schema: names the schema that decodes the keys, if any.
        key_registry: names the folder or the registry of the schemas with which the keys were written, if any.
    """

    partitions: int
    partitions_given: bool
    overrides: Mapping[str, str]
    schema: str | None
    registry: str | None = None
    key_schema: str | None = None
    key_registry: str | None = None


class Settings(Section):
    """All settings of a run."""

    root: Location = Field(
        description="Directory of all topics, checkpoints and tables: a path, or a URI such as s3://bucket/prefix. A relative"
        " path begins at the current directory."
    )
    broker: InstanceOf[BrokerConfig] = Field(description="Kafka's broker keys: settings of all topics.")
    topics: Mapping[str, InstanceOf[TopicDefinition]] = Field(description="Topics by name, with Kafka's topic keys.")
    schemas: SchemaSettings = Field(
        default=SchemaSettings(), description="Your own event models. A topic refers to a model as `module:Class`."
    )
    storage: StorageSettings = Field(
        default=StorageSettings(), description="Access to a root that is not a local directory."
    )
    ingest: IngestSettings | None = Field(
        default=None,
        description="Appends a stream to one topic or to several, exactly once. Expressions use the source's columns.",
    )
    export: ExportSettings | None = Field(
        default=None,
        description="Updates a Delta table, or a table of a database, from a topic, incrementally and exactly once.",
    )
    exports: Exports = Field(
        default={},
        description="Several exports of one job, by name. Each export has the same keys as the section `export`. An"
        " export that fails does not stop the others.",
    )
    retention: JobTopics = Field(
        default=JobTopics(),
        description="Deletes old segments by age, size and start offset. The limits are settings of each topic.",
    )
    compaction: JobTopics = Field(
        default=JobTopics(),
        description="Compacts topics: keeps the latest record of each key. The settings of each topic apply.",
    )
    maintenance: MaintenanceSettings = Field(
        default=MaintenanceSettings(),
        description="Runs retention, compaction and the merging of small segments in one job. The job also keeps the topics'"
        " Delta tables small.",
    )
    _name: str = PrivateAttr(default="settings")
    _places: dict[str, str] = PrivateAttr(default_factory=dict)
    _broker_settings: BrokerSettings = PrivateAttr(default_factory=BrokerSettings)
    _export_section: str = PrivateAttr(default="export")

    @model_validator(mode="after")
    def _export_once(self) -> Self:
        if self.export is not None and self.exports:
            raise mistake("found both sections, export and exports", "Move the export into the section exports.")
        return self

    @property
    def broker_settings(self) -> BrokerSettings:
        """The origin of `broker`: the broker settings that the root stores, and those given to this run."""
        return self._broker_settings

    def remember_broker_settings(self, settings: BrokerSettings) -> None:
        """Store the origin of `broker`; loading calls this once."""
        self._broker_settings = settings

    def place_of(self, path: str) -> str:
        """Where a setting was given, for messages: `conf/flights.yaml, line 12, ingest.key`.

        For a setting that is not given, the place is the name of the settings and the path.
        """
        if path.startswith("export."):
            path = path.replace("export", self._export_section, 1)
        return self._places.get(path, f"{self._name}, {path}")

    def remember_places(self, name: str, places: Iterator[tuple[str, str]]) -> None:
        """Store the places of the settings; loading calls this once."""
        self._name = name
        self._places.update(places)

    def topic_definition(self, name: str) -> TopicDefinition:
        """The description of a topic in the settings.

        Raises:
            ConfigError: the settings do not describe the topic.
        """
        if name in self.topics:
            return self.topics[name]
        remedy = f"Did you mean {nearest(name, self.topics)}?" if self.topics else "Describe the topic there."
        raise ConfigError(self.place_of("topics"), f"the settings do not describe the topic {name}", remedy)

    def required_ingest(self) -> IngestSettings:
        """The section `ingest`.

        Raises:
            ConfigError: the section is missing.
        """
        if self.ingest is None:
            raise self._no_section("ingest", "the keys topic, source and value")
        return self.ingest

    def with_export(self, name: str) -> Settings:
        """The settings with one of the exports of the section `exports` as their only export."""
        chosen = self.model_copy(update={"export": self.exports[name], "exports": {}})
        chosen._export_section = f"exports.{name}"  # noqa: SLF001 - a copy of this object
        return chosen

    @property
    def export_section(self) -> str:
        """The section that declares `export`: export, or exports and a name."""
        return self._export_section

    def required_export(self) -> ExportSettings:
        """The section `export`.

        Raises:
            ConfigError: the section is missing.
        """
        if self.export is None:
            raise self._no_section("export", "topic, or add exports by name in the section exports")
        return self.export

    def source_schema(self) -> str | None:
        """The model's name or the Spark DDL for the rows of the ingest's source. Default: the schema of the ingest's
        topic, if the ingest has only one topic."""
        ingest = self.required_ingest()
        topic = self.topics.get(ingest.topic) if ingest.topic else None
        return ingest.source.schema_ or (topic.schema if topic else None)

    @property
    def source_schema_setting(self) -> str:
        """The path of the setting that gives source_schema."""
        ingest = self.required_ingest()
        topic = self.topics.get(ingest.topic) if ingest.topic else None
        from_topic = ingest.source.schema_ is None and topic is not None and topic.schema is not None
        return f"topics.{ingest.topic}.schema" if from_topic else "ingest.source.schema"

    def _no_section(self, section: str, keys: str) -> ConfigError:
        return ConfigError(
            self._name, f"the section {section}, which this job needs, is missing", f"Add the section with {keys}."
        )


SECTIONS: Final[Mapping[str, type[Section]]] = {
    "schemas": SchemaSettings,
    "storage": StorageSettings,
    "ingest": IngestSettings,
    "export": ExportSettings,
    "retention": JobTopics,
    "compaction": JobTopics,
    "maintenance": MaintenanceSettings,
}
"""The sections that this module declares, by key."""

TOPIC_ENTRY: Final[Mapping[str, str]] = {
    "partitions": "Number of partitions. Default: the broker's num.partitions.",
    "schema": "The schema that decodes the values. For JSON, give the name of a model in schemas/, or `module:Class` for"
    " your own pydantic model, or columns in Spark's DDL such as `id BIGINT NOT NULL, name STRING`. For Avro, give a file,"
    " such as `events/order.avsc`. For Protobuf, give a file with descriptors and the name of a message, such as"
    " `events/shop.desc:shop.Order`. A relative path begins at the current directory. Default: none.",
    "schema.registry": "Where the schemas are with which the values in Avro or Protobuf were written. Give the URL of a"
    " schema registry with the REST API of Confluent's Schema Registry, or a folder with files such as `7.avsc` or"
    " `7.proto`, named after the ids or the GUIDs of the schemas. With this key, each value has the id of its schema, in"
    " Confluent's wire format or in a header. Without it, values are plain. Default: none.",
    "key.schema": "The schema that decodes the keys of records, in the same forms as `schema`. Exported tables then have a"
    " column for each field of the key: `_key_id` for the field `id`. An Avro schema may also be a single type such as"
    " `string`, which becomes the column `_key_value`. Default: none.",
    "key.schema.registry": "As `schema.registry`, but for the schemas with which the keys were written. Default: none.",
}
"""The keys of a topic that are not Kafka's."""


def section_in(annotation: object) -> type[Section] | None:
    """The section in a field's type, or None."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next((found for part in get_args(annotation) if (found := section_in(part))), None)
