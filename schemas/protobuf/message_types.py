"""Finds a message in a file with Protobuf's descriptors.

protoc writes such a file: `protoc --descriptor_set_out=shop.desc --include_imports shop.proto`. It contains everything
that the .proto files say about messages. So Lakelog needs no compiler, and no generated module.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from schemas.schema_errors import required_package

_HOW = "`protoc --descriptor_set_out=FILE --include_imports` writes such a file"


class ProtobufSchemaError(ValueError):
    """The file has no descriptors, or not the message, or the text is no .proto file."""


def message_class(content: bytes, name: str) -> Any:
    """The class of a message.

    Args:
        content: a FileDescriptorSet.
        name: the full name of the message, with its package.

    Raises:
        ProtobufSchemaError: the content is no such set, or has no such message.
        MissingFormatError: protobuf is not installed.
    """
    descriptors = required_package("google.protobuf.descriptor_pb2", "protobuf", "protobuf")
    pool = required_package("google.protobuf.descriptor_pool", "protobuf", "protobuf").DescriptorPool()
    factory = required_package("google.protobuf.message_factory", "protobuf", "protobuf")
    message = required_package("google.protobuf.message", "protobuf", "protobuf")
    try:
        files = descriptors.FileDescriptorSet.FromString(content).file
        for each in files:
            _remove_extensions(each, each.message_type)
            pool.AddSerializedFile(each.SerializeToString())
    except message.DecodeError:
        raise ProtobufSchemaError(f"it is no set of descriptors; {_HOW}") from None
    except (TypeError, ValueError) as error:  # a file is missing or wrong
        raise ProtobufSchemaError(f"it has a file that cannot be used: {error}; {_HOW}") from None
    if not files:
        raise ProtobufSchemaError(f"it has no descriptors; {_HOW}")
    try:
        return factory.GetMessageClass(pool.FindMessageTypeByName(name))
    except KeyError:
        found = sorted(
            f"{each.package}.{message.name}".removeprefix(".") for each in files for message in each.message_type
        )
        raise ProtobufSchemaError(f"it has no message {name}; its messages are {', '.join(found)}") from None


def _remove_extensions(scope: Any, messages: Iterable[Any]) -> None:
    """Remove the extensions that a file or a message declares: they have no columns. So the parser keeps their bytes as
    those of unknown fields.

    Args:
        messages: the messages in it.
    """
    scope.ClearField("extension")
    for each in messages:
        _remove_extensions(each, each.nested_type)
