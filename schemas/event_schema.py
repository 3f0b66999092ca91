"""Finds the schema that a `schema:` setting names.

A schema is named in one of five ways. The first three decode JSON:

    flight                        the class Flight in schemas/flight.py; `bike_trip` is BikeTrip in schemas/bike_trip.py
    shop.events:Order             the pydantic model Order of the module shop.events
    id STRING NOT NULL, n BIGINT  columns in Spark's DDL (schemas.ddl)
    events/order.avsc             a file with an Avro schema (schemas.avro)
    events/shop.desc:shop.Order   the message shop.Order of a file with Protobuf's descriptors (schemas.protobuf)

Python finds the module of the second form like any other module: it is installed, is on PYTHONPATH, or is in one of the
folders of the setting `schemas.path`. Python searches these folders last, so no file in these folders hides an
installed module.

If an `EventSchema` of a model is pickled, the pickle contains only the text of the setting and the folders. So each
executor imports the module again, from the same folders. A schema in Avro or Protobuf contains the content of its file,
so the executors need no file.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import json
import pkgutil
import re
import sys
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import TypeGuard

import pyarrow as pa
from pydantic import BaseModel, PydanticUserError, RootModel

import schemas
from schemas import ddl
from schemas.comparing import fingerprint
from schemas.decoder import DecodedValues, Decoder
from schemas.event_decoding import ModelDecoder
from schemas.event_model import EventModel
from schemas.key_decoder import KeyDecoder
from schemas.model_columns import UnsupportedFieldError, arrow_schema
from schemas.schema_errors import UnknownSchemaError
from schemas.unknown_fields.extra_column import EXTRA
from schemas.writers.registry import SchemaRegistry, is_url
from schemas.writers.wire_format import KEY_HEADER, VALUE_HEADER, with_ids_of_headers
from schemas.writers.writer_schemas import SchemaFolder, WriterSchemas

_NAME = re.compile(r"\w+")
_REFERENCE = re.compile(r"(?P<module>[A-Za-z_]\w*(?:\.\w+)*):(?P<model>[A-Za-z_]\w*(?:\.\w+)*)")
_AVRO = ".avsc"
_MESSAGE = re.compile(r"(?P<file>.+\.desc):(?P<message>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)", re.ASCII)


@dataclass(frozen=True)
class EventSchema:
    """A schema, named by the text of a setting.

    text: the text in the settings, in one of the five forms.
    folders: the absolute folders of the setting `schemas.path`.
    writers: the schemas with which values in Avro or Protobuf were written; None if the values are plain.
    content: the content of the file that the text names; None until `loaded` reads it.
    of_key: whether the schema decodes the keys of records, and not the values (`schemas.key_decoder`).
    has_extra: whether the columns include that of unknown fields (`schemas.unknown_fields`); not for keys.
    """

    text: str
    folders: tuple[str, ...] = ()
    writers: WriterSchemas | None = None
    content: bytes | None = field(default=None, repr=False)
    of_key: bool = False
    has_extra: bool = False

    @property
    def is_ddl(self) -> bool:
        """Whether the text is columns in DDL, and not the name of a model or file."""
        reference = _REFERENCE.fullmatch(self.text)
        is_other = self.is_binary or _NAME.fullmatch(self.text) is not None
        return not is_other and (reference is None or _is_type(reference["model"]))

    @property
    def is_binary(self) -> bool:
        """Whether the text names a file with a schema in Avro or Protobuf, so that the values are not JSON."""
        return _file_of(self.text) is not None

    def loaded(self) -> EventSchema:
        """The schema with the content of its file, after a check that it can decode values.

        Raises:
            UnknownSchemaError: the text names no schema, or a field of the schema has no column type.
        """
        file = _file_of(self.text)
        schema = self if file is None else replace(self, content=_read(file))
        schema.decoder  # noqa: B018 - finds the model, or says why there is none
        return schema

    @property
    def file_content(self) -> bytes | None:
        """The content of the file that the text names; None if it names none.

        Raises:
            UnknownSchemaError: the file cannot be read.
        """
        file = _file_of(self.text)
        return _read(file) if file is not None and self.content is None else self.content

    @property
    def definition(self) -> str:
        """A text. Schemas with equal texts decode each value alike.

        Raises:
            UnknownSchemaError: as for `decoder`.
        """
        if self.has_extra:
            return f"{EXTRA.name} and {replace(self, has_extra=False).definition}"
        if (content := self.file_content) is not None:
            message = _MESSAGE.fullmatch(self.text)
            return f"{message['message'] if message is not None else 'Avro'}: {content!r}"
        if self.is_ddl:
            return self.text
        try:
            return json.dumps(self.model.model_json_schema())
        except PydanticUserError:  # a field has no type in JSON Schema
            return fingerprint(self.decoder.fields)

    @property
    def decoder(self) -> Decoder:
        """What decodes the values. The first call in a process imports the module of a model.

        Raises:
            UnknownSchemaError: the text names no schema, or a field of the schema has no column type.
        """
        return _decoder(self)

    def decode(self, values: pa.BinaryArray, headers: pa.ListArray) -> DecodedValues:
        """Decode each value or key. A null value gives neither a row nor an error.

        Args:
            headers: the headers of the records, which may have the ids of the schemas with which the values were written.

        Raises:
            RegistryError: the schemas with which the values were written cannot be read.
            UnknownSchemaError: as for `decoder`.
        """
        if self.writers is not None:
            name = KEY_HEADER if self.of_key else VALUE_HEADER
            is_message = _MESSAGE.fullmatch(self.text) is not None
            values = with_ids_of_headers(values, headers, name, has_indexes=is_message)
        return self.decoder.decode(values)

    @property
    def columns(self) -> pa.Schema:
        """The columns that a value or a key has, without those of its record.

        Raises:
            UnknownSchemaError: as for `decoder`.
        """
        return self.decoder.columns

    @property
    def model(self) -> type[BaseModel]:
        """The model of a schema that decodes JSON. The first call in a process imports the module of the model.

        Raises:
            UnknownSchemaError: the text names no model, or a field of the model has no column type.
        """
        return _model(self.text, self.folders)


def model_hash(*given: EventSchema | None) -> str:
    """A hash of some schemas: if it is equal, they decode each record alike. None: no schema."""
    definitions = [None if each is None else each.definition for each in given]
    return hashlib.sha256(json.dumps(definitions).encode()).hexdigest()[:16]


def _is_type(word: str) -> bool:
    """Whether the word after a colon is a type of DDL, and not a class such as Date."""
    return ddl.is_type(word) and (word.isupper() or word.islower())


def writer_schemas(text: str, user: str, password: str) -> WriterSchemas:
    """The writers' schemas that the text of a setting names: a folder, or the URL of a registry. A registry is asked once
    in the life of a process whether it answers.

    Raises:
        UnknownSchemaError: the folder cannot be read, or the URL has the wrong form.
        RegistryError: the registry does not answer, or refuses access.
    """
    if not is_url(text):
        if "@" in text and not Path(text).expanduser().is_dir():
            raise UnknownSchemaError(
                "the text is neither a folder nor a URL such as https://host:port. It is not shown, because it may contain"
                " a password",
                "Correct the text. User and password are settings of their own.",
            )
        return SchemaFolder.read(text)
    registry = SchemaRegistry.at(text, user, password)
    _check_once(registry)
    return registry


@lru_cache
def _check_once(registry: SchemaRegistry) -> None:
    registry.check()


def _file_of(text: str) -> str | None:
    """The file that a text names; None if it names none."""
    if text.endswith(_AVRO):
        return text
    found = _MESSAGE.fullmatch(text)
    return found["file"] if found is not None else None


def _read(path: str) -> bytes:
    file = Path(path).expanduser().resolve()
    try:
        return file.read_bytes()
    except OSError as error:
        raise UnknownSchemaError(
            f"the schema's file {file} cannot be read: {error.strerror}",
            "Check the path; a relative path begins at the current directory.",
        ) from error


@lru_cache
def _decoder(schema: EventSchema) -> Decoder:
    decoder = _decoder_of_fields(schema)
    return KeyDecoder(decoder) if schema.of_key else decoder


def _decoder_of_fields(schema: EventSchema) -> Decoder:
    content = schema.file_content
    if content is None:
        return ModelDecoder(_model(schema.text, schema.folders), schema.has_extra)
    try:
        if (found := _MESSAGE.fullmatch(schema.text)) is not None:
            from schemas.protobuf.message_decoder import MessageDecoder

            return MessageDecoder(content, found["message"], schema.writers, has_extra=schema.has_extra)
        from schemas.avro.avro_decoder import AvroDecoder

        return AvroDecoder(content.decode(), schema.writers, may_be_single=schema.of_key, has_extra=schema.has_extra)
    except UnsupportedFieldError as error:
        raise UnknownSchemaError(
            f"schema {schema.text!r} cannot become columns: {error}", "Change the type or the name of this field."
        ) from error
    except ValueError as error:
        what = "not text in UTF-8" if isinstance(error, UnicodeDecodeError) else error
        raise UnknownSchemaError(f"schema {schema.text!r} cannot be used: {what}", "Correct the file.") from error


def names() -> list[str]:
    """The names of all event models in schemas/, sorted. The call imports the module of each model."""
    return sorted(name for name in _module_names() if _model_in_schemas(name) is not None)


@lru_cache
def _model(text: str, folders: tuple[str, ...]) -> type[BaseModel]:
    try:
        if EventSchema(text).is_ddl:
            found: type[BaseModel] = ddl.event_model(text)
        elif reference := _REFERENCE.fullmatch(text):
            found = _model_in_module(reference["module"], reference["model"], folders)
        else:
            found = _named_model(text)
        arrow_schema(found)
    except UnsupportedFieldError as error:
        raise UnknownSchemaError(
            f"schema {text!r} cannot become columns: {error}", "Change the type of this field in the model."
        ) from error
    except ddl.DdlError as error:
        raise UnknownSchemaError(
            f"schema {text!r} is neither a model nor columns in Spark's DDL: {error}",
            f"Name a model in schemas/ ({', '.join(names())}), module:Class, a file such as order.avsc, or columns such as"
            " `id BIGINT, name STRING`.",
        ) from error
    return found


def _named_model(name: str) -> type[EventModel]:
    found = _model_in_schemas(name) if name in _module_names() else None
    if found is None:
        known = names()
        near = difflib.get_close_matches(name, known, n=1)
        raise UnknownSchemaError(
            f"there is no model {name!r} in schemas/, which has only {', '.join(known)}",
            f"Did you mean {near[0]}?" if near else "Name a class of your own as module:Class.",
        )
    return found


def _module_names() -> set[str]:
    return {module.name for module in pkgutil.iter_modules(schemas.__path__)}


def _model_in_schemas(name: str) -> type[EventModel] | None:
    class_name = "".join(word.capitalize() for word in name.split("_"))
    found = getattr(importlib.import_module(f"{schemas.__name__}.{name}"), class_name, None)
    is_event = isinstance(found, type) and issubclass(found, EventModel) and found is not EventModel
    return found if is_event else None


def _model_in_module(module_name: str, class_name: str, folders: tuple[str, ...]) -> type[BaseModel]:
    module = _imported(module_name, folders)
    found: object = module
    for part in class_name.split("."):
        found = getattr(found, part, None)
    place = module.__file__ or module_name
    if found is None:
        own = (name for name, each in vars(module).items() if _is_model(each) and each.__module__ == module_name)
        models = sorted(own)
        near = difflib.get_close_matches(class_name, models, n=1)
        has = f"its models are {', '.join(models)}" if models else "it has no pydantic model"
        raise UnknownSchemaError(
            f"the module {module_name} ({place}) has no class {class_name}; {has}",
            f"Did you mean {module_name}:{near[0]}?" if near else "Name one of the module's pydantic models.",
        )
    if not _is_model(found):
        raise UnknownSchemaError(
            f"{class_name} of the module {module_name} ({place}) is not a pydantic model with fields",
            "Name a class that derives from pydantic.BaseModel but not from RootModel.",
        )
    return found


def _is_model(found: object) -> TypeGuard[type[BaseModel]]:
    return isinstance(found, type) and issubclass(found, BaseModel) and not issubclass(found, RootModel)


def _imported(name: str, folders: tuple[str, ...]) -> ModuleType:
    for folder in folders:
        if folder not in sys.path:
            sys.path.append(folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise UnknownSchemaError(
                f"there is no module {error.name}: it is not installed, and not in {_searched()}",
                "Add the folder that contains the module to PYTHONPATH or to the setting schemas.path.",
            ) from error
        raise _broken(name, error) from error
    except (Exception, SystemExit) as error:  # the module is the user's own code
        raise _broken(name, error) from error


def _broken(name: str, error: BaseException) -> UnknownSchemaError:
    problem = f"the module {name} cannot be imported: {type(error).__name__}: {error}"
    return UnknownSchemaError(problem, f"`python -c 'import {name}'` shows where the error is.")


def _searched() -> str:
    """The folders of Python's search path, without those of the installed packages and of Python itself."""
    installed = tuple(str(Path(prefix).resolve()) for prefix in (sys.prefix, sys.base_prefix))
    folders = dict.fromkeys(str(Path(folder).resolve()) for folder in sys.path if not folder.endswith(".zip"))
    return ", ".join(folder for folder in folders if not folder.startswith(installed))
