"""Finds the name of a message in the text of a .proto file, by the place of the message in the file.

Confluent's wire format names a message by its place. This module reads only what it needs for the names: the package,
and which messages are inside which. It does not check the rest of the file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from schemas.protobuf.message_types import ProtobufSchemaError

_TOKEN = re.compile(
    r"//[^\n]*|/\*.*?\*/|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'|[A-Za-z_][\w.]*|[{};]|[^\s\w]|\w+", re.DOTALL
)
_NAME = re.compile(r"[A-Za-z_]\w*")


@dataclass
class _Message:
    """inner: in the order of the file, the messages inside it, and None for each field that is a map."""

    name: str
    inner: list[_Message | None] = field(default_factory=list)


@dataclass(frozen=True)
class ProtoFile:
    """The messages of a .proto file."""

    package: str
    messages: list[_Message | None]

    @classmethod
    def parse(cls, text: str) -> ProtoFile:
        """The messages of the text.

        Raises:
            ProtobufSchemaError: the text is no .proto file.
        """
        return cls(*_parsed(text))

    def name_at(self, place: Sequence[int]) -> str | None:
        """The full name of the message at a place; None if there is no message at this place.

        For each map, protoc adds a message of its own. Some clients count these messages, and others do not.

        Args:
            place: (1, 0) is the first message inside the second message of the file.

        Raises:
            ProtobufSchemaError: the place is one message with maps, and another message without them.
        """
        names = {self._name_at(place, with_maps=True), self._name_at(place, with_maps=False)} - {None}
        if len(names) > 1:
            raise ProtobufSchemaError("the place of the message is ambiguous, because clients count maps in two ways")
        return names.pop() if names else None

    def _name_at(self, place: Sequence[int], *, with_maps: bool) -> str | None:
        names, messages = [self.package] if self.package else [], self.messages
        for index in place:
            counted = messages if with_maps else [each for each in messages if each is not None]
            if not 0 <= index < len(counted) or (found := counted[index]) is None:
                return None
            names.append(found.name)
            messages = found.inner
        return ".".join(names)


def _parsed(text: str) -> tuple[str, list[_Message | None]]:
    """The package and the messages of a file."""
    found = [each for each in _TOKEN.findall(text) if not each.startswith(("//", "/*"))]
    package, outermost = "", list[_Message | None]()
    # Each open brace: the messages inside it; None inside an enum, a service, a oneof or a value of an option.
    open_braces: list[list[_Message | None] | None] = [outermost]
    statement: list[str] = []
    brackets = 0  # a brace in the options of a field or of a range is only a part of its statement
    for token in found:
        brackets += (token == "[") - (token == "]")
        if brackets > 0:
            statement.append(token)
        elif token == "{":
            open_braces.append(_opened(statement, open_braces))
            statement = []
        elif token == "}":
            open_braces.pop()
            if not open_braces:
                raise ProtobufSchemaError("it is no .proto file: a brace is closed that was not opened")
            statement = []
        elif token == ";":
            if len(open_braces) == 1 and statement[:1] == ["package"]:
                package = "".join(statement[1:])  # spaces around the dots are allowed
            if statement[:2] == ["map", "<"] and (around := open_braces[-1]) is not None:
                around.append(None)
            statement = []
        else:
            statement.append(token)
    if len(open_braces) > 1 or not outermost:
        raise ProtobufSchemaError("it is no .proto file with messages")
    return package, outermost


def _opened(
    statement: Sequence[str], open_braces: Sequence[list[_Message | None] | None]
) -> list[_Message | None] | None:
    """The messages inside a brace that a statement opens. A oneof belongs to the message around it."""
    around = open_braces[-1]
    if around is None:
        return None
    name = None
    if statement[-2:-1] == ["message"] and len(statement) <= 3:  # `export message A` in newer files
        name = statement[-1]
    elif "group" in statement[:2] and (at := statement.index("group") + 1) < len(statement):
        name = statement[at]
    if name is not None and _NAME.fullmatch(name) is not None:
        message = _Message(name)
        around.append(message)
        return message.inner
    is_part = statement[:1] in (["oneof"], ["extend"])
    return around if is_part else None
