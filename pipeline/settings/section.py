"""The base class of all sections of the settings."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic.fields import FieldInfo


class Section(BaseModel):
    """A section of the settings; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _leave_out_empty(cls, values: object) -> object:
        """Drop each optional key without a value, as if the key were missing."""
        if not isinstance(values, Mapping):
            return values
        fields = cls.fields_by_key()
        optional = {key for key, field in fields.items() if not field.is_required()}
        return {key: value for key, value in values.items() if value is not None or key not in optional}

    @classmethod
    def fields_by_key(cls) -> dict[str, FieldInfo]:
        """The fields, by the key in the settings file."""
        return {found.alias or name: found for name, found in cls.model_fields.items()}
