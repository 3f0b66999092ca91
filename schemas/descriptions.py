"""Finds the descriptions of a schema's fields: what the author of the schema wrote about a field.

    a pydantic model   Field(description="...")
    DDL                COMMENT '...'
    Avro               "doc" of a record's field
    Protobuf           the comment before a field, if the file has it (`protoc --include_source_info`)

A field is named by its path: the names of the fields from the outermost to the innermost. The elements of a list and the
values of a map add nothing to the path. In Avro, a union of several types gives no path to the fields in its branches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel

from schemas.event_schema import EventSchema
from schemas.key_decoder import KEY_PREFIX
from schemas.schema_errors import required_package

FieldPath = tuple[str, ...]
_MESSAGES, _NESTED, _FIELDS = 4, 3, 2
"""The numbers of these lists in Protobuf's FileDescriptorProto and DescriptorProto."""


def descriptions_of(schema: EventSchema) -> dict[FieldPath, str]:
    """The descriptions by the path of their field, each in one line. The first name of a path is the name of a column.
    Fields without a description are missing.

    Raises:
        UnknownSchemaError: the text names no schema, or a field of the schema has no column type.
    """
    schema.decoder  # noqa: B018 - checks the schema: no field contains itself
    content = schema.file_content
    if content is None:
        found = _of_model(schema.model, ())
    elif schema.text.endswith(".avsc"):
        found = _of_record(content.decode())
    else:
        found = _of_message(content, schema.text.rpartition(":")[2])
    prefix = KEY_PREFIX if schema.of_key else ""
    lines = {(f"{prefix}{path[0]}", *path[1:]): " ".join(text.split()) for path, text in found}
    return {path: line for path, line in lines.items() if line}


def _of_model(model: type[BaseModel], outer: FieldPath) -> Iterator[tuple[FieldPath, str]]:
    for name, field in model.model_fields.items():
        yield (*outer, name), field.description or ""
        for inner in _models_in(field.annotation):
            yield from _of_model(inner, (*outer, name))


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for each in get_args(annotation):
        yield from _models_in(each)


# --- Avro ---------------------------------------------------------------------------------------------------------


def _of_record(text: str) -> Iterator[tuple[FieldPath, str]]:
    from schemas.avro.avro_schema import children, kind_of, parse

    schema = parse(text)

    def below(node: Any, outer: FieldPath) -> Iterator[tuple[FieldPath, str]]:
        node = schema.resolved(node)
        kind = kind_of(node)
        if kind == "record":
            for field in node["fields"]:
                doc = field.get("doc")
                yield (*outer, field["name"]), doc if isinstance(doc, str) else ""
                yield from below(field["type"], (*outer, field["name"]))
            return
        inner = [each for each in children(node) if kind_of(schema.resolved(each)) != "null"]
        if len(inner) == 1:
            yield from below(inner[0], outer)

    return below(schema.root, ())


# --- Protobuf -----------------------------------------------------------------------------------------------------


def _of_message(content: bytes, name: str) -> Iterator[tuple[FieldPath, str]]:
    from schemas.protobuf.message_types import message_class

    comments = _comments_of_fields(content)

    def below(message: Any, outer: FieldPath) -> Iterator[tuple[FieldPath, str]]:
        for field in message.fields:
            path = (*outer, field.name)
            yield path, comments.get(field.full_name, "")
            inner = field.message_type
            if inner is not None and inner.GetOptions().map_entry:
                inner = inner.fields_by_name["value"].message_type
            if inner is not None and not inner.full_name.startswith("google.protobuf."):
                yield from below(inner, path)

    return below(message_class(content, name).DESCRIPTOR, ())


def _comments_of_fields(content: bytes) -> Mapping[str, str]:
    """The comments before the fields of all messages, by the full name of the field."""
    descriptors = required_package("google.protobuf.descriptor_pb2", "protobuf", "protobuf")
    comments: dict[str, str] = {}
    for file in descriptors.FileDescriptorSet.FromString(content).file:
        by_place = {tuple(each.path): each.leading_comments for each in file.source_code_info.location}

        def add(messages: Sequence[Any], package: str, place: tuple[int, ...], by_place: Any = by_place) -> None:
            for number, message in enumerate(messages):
                full_name = f"{package}.{message.name}".removeprefix(".")
                for field_number, field in enumerate(message.field):
                    text = by_place.get((*place, number, _FIELDS, field_number), "")
                    comments[f"{full_name}.{field.name}"] = text
                add(message.nested_type, full_name, (*place, number, _NESTED))

        add(file.message_type, file.package, (_MESSAGES,))
    return comments
