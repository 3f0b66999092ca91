"""Declares the settings of schemas: the section `schemas`."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from pipeline.settings.section import Section
from pipeline.settings.values import Location, Noun, listed


class SchemaSettings(Section):
    """The folders in which event models outside of schemas/ are found, and the access to a schema registry."""

    path: Annotated[tuple[Location, ...], Noun("a list of folders"), BeforeValidator(listed)] = Field(
        default=(),
        description="Folders that hold modules with event models, for a `schema:` of the form `module:Class`. Give a list, or"
        " paths separated by commas. A relative path begins at the current directory. Python searches these folders after"
        " PYTHONPATH and the installed packages. Each host that runs executors needs these folders, too.",
    )
    registry_user: Annotated[str, Noun("text")] = Field(
        default="",
        alias="registry.user",
        description="User of the schema registries that the keys `schema.registry` of the topics name. Default: none.",
    )
    registry_password: Annotated[str, Noun("text")] = Field(
        default="",
        alias="registry.password",
        repr=False,
        description="Password of this user. Set the password in the environment, with LAKELOG_SCHEMAS_REGISTRY_PASSWORD.",
    )
