"""Decodes the keys of records into columns of a table.

The columns of a key have names of their own: the field `id` becomes the column `_key_id`. No column of a value begins
with an underscore, so a key and a value may have fields of the same name. In Avro, a key is often a single string or
number. It becomes the column `_key_value`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from schemas.comparing import ModelField
from schemas.decoder import DecodedValues, DecodeError, Decoder

KEY_PREFIX = "_key_"
_DESCRIPTION = "("


@dataclass(frozen=True)
class KeyDecoder:
    """Decodes keys. `schemas.decoder.Decoder` describes the methods.

    of_fields: decodes the fields of the keys.
    """

    of_fields: Decoder

    @property
    def name(self) -> str:
        return self.of_fields.name

    @property
    def columns(self) -> pa.Schema:
        return pa.schema([each.with_name(f"{KEY_PREFIX}{each.name}") for each in self.of_fields.columns])

    @property
    def fields(self) -> Mapping[str, ModelField]:
        return {_path(path): each for path, each in self.of_fields.fields.items()}

    def decode(self, values: pa.BinaryArray) -> DecodedValues:
        found = self.of_fields.decode(values)
        columns = found.columns.rename_columns(self.columns.names)
        return DecodedValues(columns, [DecodeError(each.row, f"key: {each.reason}") for each in found.errors])


def is_of_key(path: str) -> bool:
    """Whether the path of a field, or a text that begins with the path, is one of a key."""
    return path.removeprefix(_DESCRIPTION).startswith(KEY_PREFIX)


def _path(path: str) -> str:
    if path.startswith(_DESCRIPTION):
        return f"{_DESCRIPTION}{KEY_PREFIX} {path.removeprefix(_DESCRIPTION)}"
    return f"{KEY_PREFIX}{path}"
