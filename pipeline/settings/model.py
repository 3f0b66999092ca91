"""The settings of the jobs: what each section holds, what it means, and what is allowed.

docs/CONFIGURATION.md is made from these classes, so each field says in its description what it does. Sections are
frozen, and unknown keys are refused. The sections `broker` and `topics` hold Kafka's own keys, which
storage_engine/config declares.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    InstanceOf,
    PrivateAttr,
    model_validator,
)
from pydantic.fields import FieldInfo

from pipeline.settings.values import (
    AVAILABLE_NOW,
    Checkpoint,
    Location,
    Noun,
    Sql,
    Table,
    Text,
    TopicName,
    Trigger,
    by_key,
    distinct_options,
    listed,
    mistake,
)
from storage_engine.config import BrokerConfig, ConfigKey, nearest
from storage_engine.errors import ConfigError
from storage_engine.topic.broker_settings import BrokerSettings

DEFAULT_BATCH_BYTES: Final = 1_000_000
DEFAULT_PUBLISH_SPARK_BYTES: Final = 1024**3
DEFAULT_CODEC: Final = "uncompressed"
DEFAULT_STORAGE_RETRY_MS: Final = 120_000
DEFAULT_MAX_SHARE: Final = 0.05

BATCH_SIZE: Final = ConfigKey(
    key="batch.size",
    scope="producer",
    kind="int",
    unit="bytes",
    default=DEFAULT_BATCH_BYTES,
    minimum=1,
    doc="Bytes of records, before compression, after which ingest ends a record batch and begins the next.",
    cost="None for what is written. Larger batches pack and read better; max.message.bytes limits them too.",
)
PUBLISH_SPARK_BYTES: Final = ConfigKey(
    key="publish.spark.bytes",
    scope="producer",
    kind="long",
    unit="bytes",
    default=DEFAULT_PUBLISH_SPARK_BYTES,
    minimum=0,
    doc="From this many staged bytes on, a Spark job of one task per partition copies a micro-batch into the topic's"
    " files, instead of threads of the driver. Each such batch begins new segments.",
    cost="None for what is written. A small value makes many small segments.",
)
COMPRESSION_TYPE: Final = ConfigKey(
    key="compression.type",
    scope="producer",
    kind="choice",
    default=DEFAULT_CODEC,
    choices=("uncompressed", "gzip", "snappy", "lz4", "zstd"),
    doc="Codec of the batches, if the topic's compression.type is producer. Otherwise the topic's codec is used.",
    cost="None for what is written.",
)
STORAGE_RETRY_TIMEOUT: Final = ConfigKey(
    key="storage.retry.timeout.ms",
    scope="producer",
    kind="long",
    unit="ms",
    default=DEFAULT_STORAGE_RETRY_MS,
    minimum=0,
    doc="How long a micro-batch waits, in pauses that grow from 1 to 30 seconds, for a storage that is full or away. Then"
    " the ingest ends with the storage's error; 0 does not wait.",
    cost="None for what is written.",
)

MAX_DEAD_LETTER_SHARE: Final = ConfigKey(
    key="max.dead.letter.share",
    scope="producer",
    kind="double",
    default=DEFAULT_MAX_SHARE,
    minimum=0,
    maximum=1,
    doc="An export stops before it commits anything if more than this share of its records does not decode. Counted are"
    " the records to export and the thousand before them, without tombstones. 1 never stops.",
    cost="None for what is written.",
)


class Section(BaseModel):
    """Keys with values; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _leave_out_empty(cls, values: object) -> object:
        """A key with nothing behind it counts as left out, unless it may not be."""
        if not isinstance(values, Mapping):
            return values
        fields = cls.fields_by_key()
        optional = {key for key, field in fields.items() if not field.is_required()}
        return {key: value for key, value in values.items() if value is not None or key not in optional}

    @classmethod
    def fields_by_key(cls) -> dict[str, FieldInfo]:
        """The fields by the key as it is written."""
        return {found.alias or name: found for name, found in cls.model_fields.items()}


class SourceSettings(Section):
    """Where ingest reads from: anything that Spark's readStream knows. docs/SOURCES.md has a section for each kind."""

    format: Text = Field(
        description="Spark's name of the source: json, csv, parquet, rate, kafka, delta and so on, or lakelog for a topic."
    )
    path: Location | None = Field(
        default=None,
        description="Directory, glob or URI of a source that reads files; relative to the current directory.",
    )
    schema_: Text | None = Field(
        default=None,
        alias="schema",
        description="Name of a model in schemas/, or a Spark DDL string, for the rows of the source. Default: the schema of"
        " the topic. For kafka and lakelog it describes the JSON in the column value, and expressions can use the column"
        " event. Sources with columns of their own, such as rate and delta, need none.",
    )
    options: Annotated[
        Mapping[str, str], Noun("a section of names and values"), AfterValidator(distinct_options)
    ] = Field(default={}, repr=False, description="Options of the source, passed to Spark as they are.")  # fmt: skip


class IngestSettings(Section):
    """The job `ingest`: a stream goes into a topic, or several, exactly once."""

    topic: TopicName | None = Field(
        default=None,
        description="Topic to append to. Give either this or ingest.topics. If the topic does not exist yet, the section"
        " topics describes it.",
    )
    topics: Annotated[tuple[TopicName, ...], Noun("a list of topics"), BeforeValidator(listed)] | None = Field(
        default=None,
        description="Topics to append to, as a list or separated by commas. topic.column says which row goes where. A row that"
        " names none of them becomes a dead letter.",
    )
    topic_column: Sql | None = Field(
        default=None,
        alias="topic.column",
        description="The row's topic, from the columns of the source: one of topics.",
    )
    source: SourceSettings
    key: Sql | None = Field(
        default=None, description="The record's key, from the columns of the source. Compacted topics need one."
    )
    value: Sql = Field(description="The record's value. NULL writes a tombstone.")
    headers: Sql | None = Field(
        default=None, description="The record's headers: an array of structs of key (string) and value (binary)."
    )
    timestamp: Sql | None = Field(
        default=None,
        description="The record's time, a timestamp. Default: the time at which the micro-batch is written.",
    )
    partition: Sql | None = Field(
        default=None, description="The partition, a number. Default: Kafka's partitioner, which hashes the key."
    )
    validates: Annotated[bool, Noun("true or false")] = Field(
        default=False,
        alias="validate",
        description="Whether each value has to be an event of the topic's schema, a model in schemas/. A row with any other"
        " value becomes a dead letter, with the model's reason. NULL, a tombstone, passes. Python checks some 140,000 values of"
        " twenty fields a second on each core.",
    )
    position_columns: Annotated[tuple[Text, ...], Noun("a list of columns"), BeforeValidator(listed)] | None = Field(
        default=None,
        alias="position.columns",
        description="Columns of the source that say where a row is from. The last column is the position, a whole number that"
        " grows. Those before it name the partition of the source, one of a fixed set. For kafka and lakelog: topic,"
        " partition, offset. The topic's state then keeps the highest committed position of each partition, and rows at or"
        " below it are dropped, whatever happens to the checkpoint. Default: none, and the checkpoint alone says what is"
        " committed.",
    )
    position_source: Text | None = Field(
        default=None,
        alias="position.source",
        description="Name under which the topic keeps these positions. Give each source its own name, and a new name when"
        " the source counts anew. Default: for kafka its bootstrap servers, for lakelog one for all, for files their"
        " path.",
    )
    trigger: Trigger = Field(
        default=AVAILABLE_NOW,
        description=f"{AVAILABLE_NOW} takes what is there and ends. With an interval the ingest runs until it is stopped.",
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
        description="Directory of Spark's checkpoint. Default: checkpoints/ingest/ and the topic; with topics it has to be"
        " given. A checkpoint belongs to the stream: another source needs another checkpoint.",
    )

    @model_validator(mode="after")
    def _one_topic_or_several(self) -> Self:
        if self.topic is None and self.topics is None:
            raise mistake("the key ingest.topic is missing", "Topic to append to; or ingest.topics for several.")
        if self.topic is not None and (self.topics is not None or self.topic_column is not None):
            raise mistake("ingest.topic is one topic, ingest.topics and topic.column are for several", "Keep one way.")
        if self.topics is None:
            return self
        if not self.topics or len(set(self.topics)) < len(self.topics):
            raise mistake(f"ingest.topics names {'a topic twice' if self.topics else 'no topic'}", "Name each once.")
        if self.topic_column is None:
            raise mistake("the key ingest.topic.column is missing", "It says to which of ingest.topics a row goes.")
        if "checkpoint" not in self.model_fields_set:
            raise mistake(
                "the key ingest.checkpoint is missing, for which several topics give no default",
                "For example checkpoints/ingest/orders: it stays when topics are added.",
            )
        return self

    @property
    def fed_topics(self) -> tuple[str, ...]:
        """The topics to append to, in the order of their names."""
        return (self.topic,) if self.topic is not None else tuple(sorted(self.topics or ()))

    @property
    def name(self) -> str:
        """What messages call this ingest: its topic; of several topics the last part of the checkpoint's path."""
        return self.topic or self.checkpoint.rsplit("/", maxsplit=1)[-1]

    @property
    def processing_time(self) -> str | None:
        """The trigger's interval, or None for available-now."""
        return None if self.trigger == AVAILABLE_NOW else self.trigger


class ExportSettings(Section):
    """The job `export`: a topic goes into a Delta table, incrementally and exactly once."""

    topic: TopicName = Field(description="Topic to export.")
    table: Table = Field(
        default_factory=lambda fields: f"tables/{fields.get('topic', '')}",
        validate_default=True,
        description="Directory of the Delta table. Default: tables/ and the topic.",
    )
    mode: Annotated[Literal["upsert", "append"], Noun("upsert or append")] | None = Field(
        default=None,
        description="upsert keeps the latest value of each key and lets tombstones delete; append adds every record."
        " Default: upsert where cleanup.policy has compact, else append.",
    )
    headers: Annotated[bool, Noun("true or false")] = Field(
        default=False,
        description="Whether the rows have the records' headers, in the column _headers. In append mode only. Rows that are"
        " in the table already have null there.",
    )
    max_dead_letter_share: Annotated[float, Noun("a number"), by_key(MAX_DEAD_LETTER_SHARE)] = Field(
        default=DEFAULT_MAX_SHARE, alias="max.dead.letter.share", description=MAX_DEAD_LETTER_SHARE.doc
    )


class JobTopics(Section):
    """Which topics a job works on."""

    topics: Annotated[tuple[TopicName, ...], Noun("a list of topics"), BeforeValidator(listed)] | None = Field(
        default=None,
        description="Topics to work on, as a list or separated by commas. Default: all topics of the root.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDefinition:
    """A topic as the settings describe it, for the day on which ingest creates it.

    Attributes:
        partitions: as given, else the broker's num.partitions.
        partitions_given: whether the settings name the number, so that another one in the state is worth a report.
        overrides: Kafka's topic keys in canonical text, as the topic's state keeps them.
        schema: the name of a model in schemas/ that decodes the values, if any.
    """

    partitions: int
    partitions_given: bool
    overrides: Mapping[str, str]
    schema: str | None


class Settings(Section):
    """All that a job is told."""

    root: Location = Field(
        description="Where everything is: topics, checkpoints and tables. Relative to the current directory."
    )
    broker: InstanceOf[BrokerConfig] = Field(description="Kafka's broker keys: what holds for all topics.")
    topics: Mapping[str, InstanceOf[TopicDefinition]] = Field(description="Topics by name, with Kafka's topic keys.")
    ingest: IngestSettings | None = Field(
        default=None,
        description="A stream goes into a topic, or several, exactly once. The rows' columns come from the source.",
    )
    export: ExportSettings | None = Field(
        default=None, description="A topic goes into a Delta table, incrementally and exactly once."
    )
    retention: JobTopics = Field(
        default=JobTopics(), description="Deletes old segments by age, size and start offset, as each topic's keys say."
    )
    compaction: JobTopics = Field(
        default=JobTopics(),
        description="Compacted topics keep the latest record of each key, as each topic's keys say.",
    )
    maintenance: JobTopics = Field(default=JobTopics(), description="Retention, compaction and merging in one job.")
    _name: str = PrivateAttr(default="settings")
    _places: dict[str, str] = PrivateAttr(default_factory=dict)
    _broker_settings: BrokerSettings = PrivateAttr(default_factory=BrokerSettings)

    @property
    def broker_settings(self) -> BrokerSettings:
        """Where `broker` comes from: what the root keeps, and what the run was told."""
        return self._broker_settings

    def remember_broker_settings(self, settings: BrokerSettings) -> None:
        """Keep where `broker` comes from; loading calls this once."""
        self._broker_settings = settings

    def place_of(self, path: str) -> str:
        """Where a setting was given, for messages: `conf/flights.yaml, line 12, ingest.key`.

        A setting that nobody gave is placed in the settings as a whole.
        """
        return self._places.get(path, f"{self._name}, {path}")

    def remember_places(self, name: str, places: Iterator[tuple[str, str]]) -> None:
        """Keep where the settings came from; loading calls this once."""
        self._name = name
        self._places.update(places)

    def topic_definition(self, name: str) -> TopicDefinition:
        """What the settings say about a topic.

        Raises:
            ConfigError: they do not mention it.
        """
        if name in self.topics:
            return self.topics[name]
        remedy = f"Did you mean {nearest(name, self.topics)}?" if self.topics else "Describe it there."
        raise ConfigError(self.place_of("topics"), f"the settings do not describe the topic {name}", remedy)

    def required_ingest(self) -> IngestSettings:
        """The section `ingest`.

        Raises:
            ConfigError: there is none.
        """
        if self.ingest is None:
            raise self._no_section("ingest", "topic, source and value")
        return self.ingest

    def required_export(self) -> ExportSettings:
        """The section `export`.

        Raises:
            ConfigError: there is none.
        """
        if self.export is None:
            raise self._no_section("export", "topic")
        return self.export

    def source_schema(self) -> str | None:
        """The name of a model or the Spark DDL for the rows of ingest's source; a single topic's schema by default."""
        ingest = self.required_ingest()
        topic = self.topics.get(ingest.topic) if ingest.topic else None
        return ingest.source.schema_ or (topic.schema if topic else None)

    @property
    def source_schema_setting(self) -> str:
        """The setting that source_schema comes from."""
        ingest = self.required_ingest()
        topic = self.topics.get(ingest.topic) if ingest.topic else None
        from_topic = ingest.source.schema_ is None and topic is not None and topic.schema is not None
        return f"topics.{ingest.topic}.schema" if from_topic else "ingest.source.schema"

    def _no_section(self, section: str, keys: str) -> ConfigError:
        return ConfigError(
            self._name, f"the section {section} is missing, which tells the job what to do", f"Give {keys}."
        )


SECTIONS: Final[Mapping[str, type[Section]]] = {
    "ingest": IngestSettings,
    "export": ExportSettings,
    "retention": JobTopics,
    "compaction": JobTopics,
    "maintenance": JobTopics,
}
"""The sections that are classes of this module, by key."""

TOPIC_ENTRY: Final[Mapping[str, str]] = {
    "partitions": "Number of partitions. Default: the broker's num.partitions.",
    "schema": "Name of the model in schemas/ that decodes the values, for export. Default: none.",
}
"""A topic's keys that are not Kafka's topic keys."""


def section_in(annotation: object) -> type[Section] | None:
    """The section that a field's type holds, if it is one."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next((found for part in get_args(annotation) if (found := section_in(part))), None)
