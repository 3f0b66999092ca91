"""Compares a topic's model with the model that the topic was last used with, before a run changes anything.

The topic's state stores the fields of the model (storage_engine.topic.chain.state). Ingest and export compare at their
start: a change that readers of older records can live with is accepted, any other change is refused unless the operator
accepts it. An ingest records the model then, an export after it has exported. A change that was accepted is recorded
also by an export that has nothing to read, and by a replay. A run whose model did not change commits nothing for it.
"""

from __future__ import annotations

from pipeline.settings import Settings
from schemas.comparing import ModelField, compare, fingerprint, model_fields
from schemas.event_model import EventModel
from schemas.registry import UnknownSchemaError, model, names
from storage_engine.errors import ConfigError, ConflictError, StateError
from storage_engine.topic.chain.state import RecordedField, RecordedModel, TopicState
from storage_engine.topic.topics import Topics


class SchemaChangedError(StateError):
    """The model of a topic changed so that readers of its older records cannot go on."""


def topic_model(settings: Settings, topic: str) -> type[EventModel] | None:
    """The model that the settings name for a topic; None if they name none.

    Raises:
        ConfigError: there is no model of that name.
    """
    definition = settings.topics.get(topic)
    if definition is None or definition.schema is None:
        return None
    try:
        return model(definition.schema)
    except UnknownSchemaError as error:
        raise ConfigError(
            settings.place_of(f"topics.{topic}.schema"),
            f"found {definition.schema!r}, no model in schemas/",
            f"The models are {', '.join(names())}.",
        ) from error


def changed_model(
    settings: Settings, topic: str, before: RecordedModel | None, model: type[EventModel] | None, accepted: bool
) -> RecordedModel | None:
    """What is to be recorded of a topic's model; None if that is recorded already.

    Args:
        before: what the topic has on record; None if that is nothing, or where there is no topic yet.
        model: None if the settings name none, which changes nothing.
        accepted: go on whatever changed.

    Raises:
        SchemaChangedError: with what changed, and the choices.
        UnsupportedFieldError: if the model has a field without a column type.
    """
    if model is None:
        return None
    fields = model_fields(model)
    wanted = RecordedModel(
        name=model.__name__,
        fingerprint=fingerprint(fields),
        fields={
            path: RecordedField(type=each.type, required=each.required, nullable=each.nullable)
            for path, each in fields.items()
        },
    )
    if before is not None and before.fingerprint == wanted.fingerprint:
        return None
    if before is not None and not accepted:
        known = {path: ModelField(each.type, each.required, each.nullable) for path, each in before.fields.items()}
        if breaking := compare(known, fields).breaking:
            raise SchemaChangedError(
                settings.place_of(f"topics.{topic}.schema"),
                f"model {model.__name__} is no longer what topic {topic} was used with, and older records, or"
                f" readers of theirs, could not go on: {'; '.join(breaking)}",
                "Nothing was changed. Choose: take the change back, for example by a new field that may be missing beside"
                " the old one; accept it, once, with --accept-schema; and of an export give it another table,"
                " export.table, if the table's columns do not fit either.",
            )
    return wanted


def record_model(topics: Topics, state: TopicState, wanted: RecordedModel) -> TopicState:
    """Keep the fields of a model in the topic's state: one version.

    Args:
        state: what the model was compared with.

    Raises:
        ConflictError: the topic has come to another model since. Nobody has compared that one with this one.
    """

    def change(newest: TopicState) -> TopicState | None:
        if newest.topic_id != state.topic_id or newest.deleted or newest.model == wanted:
            return None
        if newest.model is not None and newest.model != state.model:
            raise ConflictError(
                f"topic {state.topic}",
                f"another job recorded model {newest.model.name} while this job used model {wanted.name}",
                "Let all jobs of the topic use one version of the model, and start this one again.",
            )
        return newest.model_copy(update={"model": wanted})

    return topics.chain(state.topic).commit(change, f"recorded the fields of model {wanted.name}")
