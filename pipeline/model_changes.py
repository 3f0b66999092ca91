"""Compares the schemas of a topic with the model that is recorded in the topic's state."""

from __future__ import annotations

from dataclasses import dataclass

from schemas.comparing import ModelChanges, ModelField, compare, fingerprint
from schemas.event_schema import EventSchema
from schemas.key_decoder import is_of_key
from storage_engine.topic.chain.topic_state import RecordedField, RecordedModel


@dataclass(frozen=True)
class TopicSchemas:
    """The schemas that the settings name for the values and the keys of a topic; None: the settings name none."""

    values: EventSchema | None = None
    keys: EventSchema | None = None

    def fields(self) -> dict[str, ModelField]:
        """The fields by path, also of the keys."""
        named = [schema for schema in (self.values, self.keys) if schema is not None]
        return {path: each for schema in named for path, each in schema.decoder.fields.items()}


NO_SCHEMAS = TopicSchemas()


def breaking_changes(before: RecordedModel | None, schemas: TopicSchemas) -> tuple[str, ...]:
    """The changes from the recorded model to these schemas that break older records or their readers, one line each."""
    return model_changes(before, schemas).breaking


def model_changes(before: RecordedModel | None, schemas: TopicSchemas) -> ModelChanges:
    """The changes from the recorded model to these schemas."""
    recorded = before.fields if before is not None else {}
    known = {path: ModelField(each.type, each.required, each.nullable) for path, each in recorded.items()}
    # The first schema of the keys, or of the values, breaks nothing: readers of the table get more columns.
    kinds = set(map(is_of_key, known))
    return compare(known, {path: each for path, each in schemas.fields().items() if is_of_key(path) in kinds})


def recordable_model(schemas: TopicSchemas) -> RecordedModel:
    """The model of these schemas, as a topic's state records it."""
    fields = schemas.fields()
    named = schemas.values or schemas.keys
    return RecordedModel(
        name=named.decoder.name if named is not None else "none",
        fingerprint=fingerprint(fields),
        fields={
            path: RecordedField(type=each.type, required=each.required, nullable=each.nullable)
            for path, each in fields.items()
        },
    )
