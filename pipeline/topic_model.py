"""Compares a topic's schema with the schema of the last ingest or export, before a run changes anything.

The topic's state stores the fields of that model (storage_engine.topic.chain.topic_state). At their start, ingest and
export compare the model of their settings with these stored fields. A change of a model is compatible if it breaks
neither older records nor the readers of these records. A compatible change is accepted. Any other change is refused
unless the operator accepts it (--accept-schema).

An ingest records the new model at its start. An export records the new model after its commit. In two cases, a new
model is recorded only if the operator accepted the changes of the model: in a replay, and in an export that has nothing
to read. If the model did not change, the run adds no version to the topic's state.
"""

from __future__ import annotations

from pipeline.model_changes import NO_SCHEMAS, TopicSchemas, breaking_changes, recordable_model
from pipeline.settings import Settings
from schemas.event_schema import EventSchema, writer_schemas
from schemas.key_decoder import is_of_key
from schemas.schema_errors import UnknownSchemaError
from schemas.writers.writer_schemas import WriterSchemas
from storage_engine.errors import ConfigError, ConflictError, StateError
from storage_engine.topic.chain.topic_state import RecordedModel, TopicState
from storage_engine.topic.topics import Topics


class SchemaChangedError(StateError):
    """The change of a topic's model would break older records or their readers."""


def event_schema(
    settings: Settings, setting: str, text: str, writers: WriterSchemas | None = None, *, of_key: bool = False
) -> EventSchema:
    """The schema that the text of a setting names. This function imports the model of the schema, or reads its file.

    Args:
        writers: the schemas with which the values were written, if the values name them.
        of_key: whether the schema decodes keys.

    Raises:
        ConfigError: the text names no schema, or a field has no column type. The error says what was searched for, and
            where.
    """
    try:
        return EventSchema(text, settings.schemas.path, writers, of_key=of_key).loaded()
    except UnknownSchemaError as error:
        raise ConfigError(settings.place_of(setting), error.problem, error.remedy) from error


def check_schemas(settings: Settings) -> None:
    """Import the models that the settings name for an ingest's topics and source. Needs no Spark.

    Raises:
        ConfigError: a setting names no schema that has columns.
        RegistryError: a schema registry does not answer, or refuses access.
    """
    for topic in settings.required_ingest().ingest_topics:
        topic_schemas(settings, topic)
    named = source_schema(settings)
    if named is not None and not EventSchema(named).is_ddl:
        event_schema(settings, settings.source_schema_setting, named)
    message_schema(settings)


def source_schema(settings: Settings) -> str | None:
    """The text of the schema of the rows of an ingest's source; None if the settings name no such schema. A schema in Avro
    or Protobuf describes no rows, but only the values of messages (`message_schema`).

    Raises:
        ConfigError: the setting of the source names a schema in Avro or Protobuf, but the rows are no messages.
    """
    named = settings.source_schema()
    if named is None or not EventSchema(named).is_binary:
        return named
    source = settings.required_ingest().source
    if source.schema_ is None or source.has_messages:
        return None
    raise ConfigError(
        settings.place_of(settings.source_schema_setting),
        f"found {named!r}, a schema in Avro or Protobuf, which decodes only the values of messages, but a source of format"
        f" {source.format} has rows",
        "Give a model, or columns such as `id BIGINT, name STRING`.",
    )


def message_schema(settings: Settings) -> EventSchema | None:
    """The schema in Avro or Protobuf that decodes the values of a source's messages; None if there is none, or if it is the
    schema of a topic.

    Raises:
        ConfigError: the settings of the source name no schema that has columns.
        RegistryError: a schema registry does not answer, or refuses access.
    """
    source = settings.required_ingest().source
    is_binary = source.schema_ is not None and EventSchema(source.schema_).is_binary
    if not is_binary and source.registry is None:
        return None
    return _schema(settings, "ingest.source.schema", source.schema_, source.registry)


def topic_schemas(settings: Settings, topic: str) -> TopicSchemas:
    """The schemas that the settings name for a topic.

    Raises:
        ConfigError: a setting names no schema that has columns.
        RegistryError: a schema registry does not answer, or refuses access.
    """
    found = settings.topics.get(topic)
    if found is None:
        return NO_SCHEMAS
    return TopicSchemas(
        _schema(settings, f"topics.{topic}.schema", found.schema, found.registry),
        _schema(settings, f"topics.{topic}.key.schema", found.key_schema, found.key_registry, of_key=True),
    )


def _schema(
    settings: Settings, setting: str, text: str | None, registry: str | None, *, of_key: bool = False
) -> EventSchema | None:
    """The schema that a setting names.

    Args:
        registry: the text of the setting `<setting>.registry`.
    """
    writers = _writers(settings, setting, text, registry) if registry is not None else None
    return event_schema(settings, setting, text, writers, of_key=of_key) if text is not None else None


def _writers(settings: Settings, setting: str, text: str | None, registry: str) -> WriterSchemas:
    """The schemas with which the values or the keys of a topic were written."""
    place = settings.place_of(f"{setting}.registry")
    if text is None or not EventSchema(text).is_binary:
        raise ConfigError(
            place,
            f"a registry is only for Avro and Protobuf, but {setting} is not in one of these formats",
            f"Set {setting} to a file such as order.avsc, or remove this key.",
        )
    try:
        return writer_schemas(registry, settings.schemas.registry_user, settings.schemas.registry_password)
    except UnknownSchemaError as error:
        raise ConfigError(place, error.problem, error.remedy) from error


def changed_model(
    settings: Settings, topic: str, before: RecordedModel | None, schemas: TopicSchemas, accepted: bool
) -> RecordedModel | None:
    """The model to record in a topic's state; None if the same model is recorded already.

    Args:
        before: the recorded model; None if there is none, or if the topic does not exist yet.
        schemas: the schemas of the settings. If the settings name no schema, nothing is recorded, unless the recorded
            model has fields of keys.
        accepted: the operator accepts every change of the model.

    Raises:
        SchemaChangedError: the change is not compatible. The message has the changes and the choices.
        UnknownSchemaError: the schema has no columns.
    """
    named = schemas.values or schemas.keys
    if named is None and not any(map(is_of_key, before.fields if before is not None else ())):
        return None
    wanted = recordable_model(schemas)
    if before is not None and before.fingerprint == wanted.fingerprint:
        return None
    if not accepted and (breaking := breaking_changes(before, schemas)):
        setting = "key.schema" if all(map(is_of_key, breaking)) else "schema"
        raise SchemaChangedError(
            settings.place_of(f"topics.{topic}.{setting}"),
            f"the new model is not compatible with the model that is recorded in topic {topic}: {'; '.join(breaking)}",
            "Nothing was changed. Choose one: (1) undo the change, for example keep the old field and add an optional new"
            " field; (2) accept the change once with --accept-schema. If the columns of an exported table do not fit the"
            " new model, also make the table again with `export --rebuild`, or choose another export.table.",
        )
    return wanted


def record_model(topics: Topics, state: TopicState, wanted: RecordedModel) -> TopicState:
    """Store the fields of a model in the topic's state, as one new version.

    Args:
        state: the state whose model was compared with `wanted`.

    Raises:
        ConflictError: another job has recorded a different model, which was not compared with `wanted`.
    """

    def change(newest: TopicState) -> TopicState | None:
        if newest.topic_id != state.topic_id or newest.deleted or newest.model == wanted:
            return None
        if newest.model is not None and newest.model != state.model:
            raise ConflictError(
                f"topic {state.topic}",
                f"another job recorded the model {newest.model.name} during this job, but this job used the model"
                f" {wanted.name}",
                "Use one version of the model in all jobs of the topic, and start this job again.",
            )
        return newest.model_copy(update={"model": wanted})

    return topics.chain(state.topic).commit(change, f"recorded the fields of model {wanted.name}")
