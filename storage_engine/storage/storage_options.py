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
AZURE_KEYS = ("azure_storage_account_key", "azure_storage_access_key", "azure_storage_master_key")
S3_TOKENS = ("aws_session_token", "aws_token")
_S3_CREDENTIALS = (("aws_access_key_id",), ("aws_secret_access_key",), S3_TOKENS)
_AZURE_TOKENS = (("azure_storage_sas_token", "azure_storage_sas_key"), ("azure_storage_token",))
_AZURE_IDENTITIES = (
    ("azure_client_secret", "azure_storage_client_secret"),
    ("azure_federated_token_file",),
)
_AZURE_CREDENTIALS = (AZURE_KEYS, *_AZURE_TOKENS, *_AZURE_IDENTITIES)
"""For each kind of credentials, the names of the option. The first name is the name in the result of a function."""


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


def s3_credentials(options: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """The access key, the secret key and the session token. They all come from the options if the options contain one of
    them. Otherwise they come from the environment. Both keys are missing if the credentials come from another place.

    Raises:
        ConfigError: the options contain a part of the credentials, but not both keys.
    """
    found = _credentials("AWS_", _S3_CREDENTIALS, options, {})
    missing = [name for (name, *_) in _S3_CREDENTIALS[:2] if name not in found]
    if found and missing:
        raise ConfigError(
            "storage options", f"have {min(found)}, but not {' and '.join(missing)}",
            "Write all credentials of S3 into the options, or all into the environment.",
        )  # fmt: skip
    return found or _credentials("AWS_", _S3_CREDENTIALS, {}, environ)


def azure_credentials(options: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """The account key, the SAS token, the token, the client secret and the file with a federated token. They all come from
    the options if the options contain one of them. Otherwise they come from the environment.
    """
    found = _credentials("AZURE_", _AZURE_CREDENTIALS, options, {})
    return found or _credentials("AZURE_", _AZURE_CREDENTIALS, {}, environ)


def require_no_variable(
    program: str, names: Sequence[str], options: Mapping[str, str], environ: Mapping[str, str]
) -> None:
    """Refuse credentials of the environment that a program would use together with the credentials of the options.

    Args:
        program: which program would use them.
        names: names of options. The environment variables have the same names in upper case.

    Raises:
        ConfigError: a variable is set, and the options contain none of the names.
    """
    variable = next((name.upper() for name in names if environ.get(name.upper())), None)
    if variable is not None and not any(options.get(name) for name in names):
        raise ConfigError(
            "storage options", f"have other credentials than the variable {variable}, and {program} would use both",
            f"Unset {variable} for this process, or remove the credentials from the options.",
        )  # fmt: skip


def _credentials(
    prefix: str, kinds: Sequence[Sequence[str]], options: Mapping[str, str], environ: Mapping[str, str]
) -> dict[str, str]:
    values = {names[0]: _value(prefix, names, options, environ) for names in kinds}
    return {name: value for name, value in values.items() if value}


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
