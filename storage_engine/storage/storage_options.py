"""Reads the options of all storages except local directories. The options are in one environment variable.

    LAKELOG_STORAGE_OPTIONS='{"aws_endpoint_url": "https://store.example.com", "aws_region": "eu-central-1"}'

An environment variable reaches every process of a job, including the Python workers of Spark. The variable is not part
of a command line, a plan or a state. The options can contain keys and passwords, so no message of this module contains
a value. Credentials can also come from the places that the programs of each storage use
(storage.objects.object_store_access).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence

from storage_engine.errors import ConfigError

VARIABLE = "LAKELOG_STORAGE_OPTIONS"
S3_ENDPOINTS = ("aws_endpoint_url_s3", "aws_endpoint_url", "aws_endpoint")
S3_REGIONS = ("aws_region", "aws_default_region")
AZURE_ENDPOINTS = ("azure_storage_endpoint", "azure_endpoint")


def storage_options() -> dict[str, str]:
    """Return the options. Values are text. Names are in lower case, except for names with a `.`: those are for HDFS, and
    may contain the name of a service.

    Raises:
        ConfigError: the variable contains no JSON object of texts.
    """
    text = os.environ.get(VARIABLE, "")
    if not text:
        return {}
    try:
        found = json.loads(text)
    except ValueError as error:
        position = error.pos if isinstance(error, json.JSONDecodeError) else 0
        raise _wrong(f"is not JSON (position {position})") from None
    if not isinstance(found, dict):
        raise _wrong("is no JSON object")
    for name, value in found.items():
        if not isinstance(value, str):
            raise _wrong(f"has a value of type {type(value).__name__} for the name {name!r}, expected a text")
    return {name if "." in name else name.lower(): value for name, value in found.items()}


def s3_value(names: Sequence[str], options: Mapping[str, str], environ: Mapping[str, str]) -> str | None:
    """The value that S3's clients use: the engine, Spark and deltalake must open the same store.

    Args:
        names: names of one option, such as S3_ENDPOINTS. An earlier name takes precedence over a later name.
        options: the storage options. They take precedence over the environment.
        environ: the environment variables, of which those that begin with AWS_ count.
    """
    return _value("AWS_", names, options, environ)


def azure_value(names: Sequence[str], options: Mapping[str, str], environ: Mapping[str, str]) -> str | None:
    """The value that Azure's clients use. Like `s3_value`, with the environment variables that begin with AZURE_."""
    return _value("AZURE_", names, options, environ)


def _value(prefix: str, names: Sequence[str], options: Mapping[str, str], environ: Mapping[str, str]) -> str | None:
    variables = {name.lower(): value for name, value in environ.items() if name.startswith(prefix)}
    return next((given[name] for given in (options, variables) for name in names if given.get(name)), None)


def set_storage_options(options: Mapping[str, str]) -> None:
    """Set the options for this process, and for the processes that it starts after this call."""
    if options:
        os.environ[VARIABLE] = json.dumps(dict(options))


def _wrong(problem: str) -> ConfigError:
    return ConfigError(
        f"environment variable {VARIABLE}", problem, 'Write a JSON object, for example {"aws_region": "eu-central-1"}.'
    )
