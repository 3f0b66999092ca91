"""The options that name the schemas of a topic, and the settings that these options make.

A schema is written as in the settings of a job. With --conf, the command reads the settings file of a job, and takes the
schemas of the topic from its section `topics`. An option overrides the file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakelog.optional import of_checkout
from storage_engine.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from pipeline.settings import Settings

SchemaOption = Annotated[
    str | None,
    typer.Option(
        "--schema",
        metavar="TEXT",
        help="The schema of the values, as in the setting topics.NAME.schema: a model, a file, or columns in Spark's DDL.",
    ),
]
RegistryOption = Annotated[
    str | None,
    typer.Option("--registry", metavar="URL", help="The registry of these schemas, as in topics.NAME.schema.registry."),
]
KeySchemaOption = Annotated[
    str | None,
    typer.Option("--key-schema", metavar="TEXT", help="The schema of the keys, as in topics.NAME.key.schema."),
]
KeyRegistryOption = Annotated[
    str | None,
    typer.Option(
        "--key-registry", metavar="URL", help="The registry of these schemas, as in topics.NAME.key.schema.registry."
    ),
]
SettingsOption = Annotated[
    Path | None,
    typer.Option(
        "--conf",
        metavar="FILE",
        help="The settings file of a job. The command uses the root, the section broker, and the schemas of the topic.",
    ),
]


@dataclass(frozen=True)
class GivenSchemas:
    """The values of the options for the schemas of a topic; None: the option was not given."""

    schema: str | None = None
    registry: str | None = None
    key_schema: str | None = None
    key_registry: str | None = None


def settings_with_schemas(topic: str, texts: GivenSchemas, root: str | None, conf: Path | None) -> Settings:
    """The settings of the file, the environment and the options.

    Raises:
        UsageError: no root is named, or an option, the file or a variable is wrong.
    """
    from pipeline.settings import load_settings
    from storage_engine.storage.storage_opening import open_storage
    from storage_engine.topic.broker_settings import read_broker_settings

    values = {
        "schema": (texts.schema, "--schema"),
        "schema.registry": (texts.registry, "--registry"),
        "key.schema": (texts.key_schema, "--key-schema"),
        "key.schema.registry": (texts.key_registry, "--key-registry"),
    }
    options: dict[tuple[str, ...], tuple[object, str]] = {
        ("topics", topic, key): given for key, given in values.items() if given[0] is not None
    }
    return load_settings(
        conf, (), root, os.environ, lambda found: read_broker_settings(open_storage(found.root)), options=options
    )


@contextmanager
def in_checkout(command: str) -> Iterator[None]:
    """Do the work of a command that needs a checkout. A wrong schema is a wrong option.

    Raises:
        MissingPackageError: this is not a checkout.
        UsageError: an option or the file names no schema that can be used.
    """
    try:
        with of_checkout(command):
            yield
    except ConfigError as error:
        raise UsageError(error.place, error.problem, error.remedy) from error
