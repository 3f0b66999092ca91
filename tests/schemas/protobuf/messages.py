"""Builds files of Protobuf descriptors, and writes messages with protobuf's own encoder, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2, duration_pb2, empty_pb2, struct_pb2, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

from schemas.decoder import DecodedValues
from schemas.protobuf.message_decoder import MessageDecoder
from schemas.protobuf.message_types import message_class
from schemas.writers.writer_schemas import WriterSchemas

WELL_KNOWN = [each.DESCRIPTOR for each in (duration_pb2, empty_pb2, struct_pb2, timestamp_pb2, wrappers_pb2)]


def add_field(message: DescriptorProto, name: str, number: int, kind: str, **more: Any) -> FieldDescriptorProto:
    """Add a field.

    kind: the type of .proto files, or the full name of a message or enum with a dot before it. `repeated`, `optional`
        and `required` may come before it.
    """
    *label, kind = kind.split()
    field = message.field.add(name=name, number=number, **more)
    field.label = getattr(FieldDescriptorProto, f"LABEL_{(label or ['optional'])[0].upper()}")
    if kind.startswith("."):
        field.type_name = kind
    else:
        field.type = getattr(FieldDescriptorProto, f"TYPE_{kind.upper()}")
    if label == ["optional"]:  # optional of proto3 is a oneof with one member
        field.proto3_optional = True
        field.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{name}")
    return field


def add_map(message: DescriptorProto, name: str, number: int, key: str, value: str, package: str) -> None:
    """Add a field of the type map<key, value>, as protoc does."""
    entry = message.nested_type.add(name=f"{name.title()}Entry")
    entry.options.map_entry = True
    add_field(entry, "key", 1, key)
    add_field(entry, "value", 2, value)
    add_field(message, name, number, f"repeated .{package}.{message.name}.{entry.name}")


def file(package: str = "shop", syntax: str = "proto3") -> FileDescriptorProto:
    return FileDescriptorProto(
        name=f"{package}.proto", package=package, syntax=syntax, dependency=[each.name for each in WELL_KNOWN]
    )


def descriptors(*files: FileDescriptorProto, imports: bool = True) -> bytes:
    """The content of a file that protoc writes with --descriptor_set_out and --include_imports."""
    found = descriptor_pb2.FileDescriptorSet()
    for each in WELL_KNOWN if imports else ():
        each.CopyToProto(found.file.add())
    found.file.extend(files)
    content: bytes = found.SerializeToString()
    return content


def encoded(content: bytes, name: str, **fields: Any) -> bytes:
    value: bytes = message_class(content, name)(**fields).SerializeToString()
    return value


def framed(number: int, place: Sequence[int], value: bytes) -> bytes:
    """The value in Confluent's wire format. All numbers of a place must be below 64."""
    indexes = b"\0" if list(place) == [0] else bytes([len(place) * 2, *(each * 2 for each in place)])
    return b"\0" + number.to_bytes(4, "big") + indexes + value


def decode(content: bytes, name: str, *values: bytes | None, writers: WriterSchemas | None = None) -> DecodedValues:
    return MessageDecoder(content, name, writers).decode(pa.array(values, pa.binary()))
