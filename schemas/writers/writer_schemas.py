"""Looks up the schema with which a value was written, by the schema's id.

    a folder     the files 7.avsc and 7.proto are the schemas with the id 7, in Avro and in Protobuf; a file may also have
                 a GUID as its name
    a registry   any server with the REST API of Confluent's Schema Registry (`schemas.writers.registry`)

The files of a folder are read once, when a job starts. The job then takes them along to all executors, so executors do
not need the folder. A registry is asked by each process that decodes values, once for each id.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from uuid import UUID

from schemas.schema_errors import UnknownSchemaError

_FILE = re.compile(r"(0|[1-9][0-9]{0,9}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})\.(avsc|proto)")

SchemaId = int | UUID
"""What names a schema in a registry: its id, or its GUID."""


class UnusableSchemaError(Exception):
    """One schema cannot be had, but others can. The text is without secrets."""


@dataclass(frozen=True)
class WrittenSchema:
    """A schema as its writer registered it.

    kind: AVRO or PROTOBUF, or another word of the registry.
    text: the schema in the language of its kind.
    references: the schemas that this schema imports, each after those that it imports itself.
    """

    kind: str
    text: str
    references: tuple[str, ...] = ()


class WriterSchemas(Protocol):
    """The schemas with which values were written."""

    def check(self) -> None:
        """Check that schemas can be looked up.

        Raises:
            RegistryError: they cannot.
        """

    def find(self, schema_id: SchemaId) -> WrittenSchema | None:
        """The schema with an id; None if there is none.

        Raises:
            RegistryError: the schemas cannot be read.
            UnusableSchemaError: this schema cannot be read.
        """

    @property
    def shown(self) -> str:
        """Where the schemas are, for messages; without secrets."""


@dataclass(frozen=True)
class SchemaFolder:
    """The schemas of a folder. files: by name, the content of the files that are schemas."""

    path: str
    files: tuple[tuple[str, str], ...] = field(repr=False)

    @classmethod
    def read(cls, path: str) -> SchemaFolder:
        """Read all schemas of a folder.

        Raises:
            UnknownSchemaError: there is no such folder, it has no schemas, or a file cannot be read.
        """
        folder = Path(path).expanduser().resolve()
        try:
            found = sorted(each for each in folder.iterdir() if _FILE.fullmatch(each.name))
            files = tuple((each.name, each.read_text(encoding="utf-8")) for each in found)
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "a file is not text in UTF-8"
            raise UnknownSchemaError(
                f"the folder of schemas {folder} cannot be read: {why}", "Check the path and its permissions."
            ) from error
        if not files:
            raise UnknownSchemaError(
                f"the folder {folder} has no schemas", "Add files that are named after their ids, such as 7.avsc."
            )
        return cls(str(folder), files)

    def check(self) -> None:
        """The files are read already."""

    def find(self, schema_id: SchemaId) -> WrittenSchema | None:
        content = dict(self.files)
        for ending, kind in (("avsc", "AVRO"), ("proto", "PROTOBUF")):
            if (text := content.get(f"{schema_id}.{ending}")) is not None:
                return WrittenSchema(kind, text)
        return None

    @property
    def shown(self) -> str:
        return f"the folder {self.path}"
