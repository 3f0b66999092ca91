"""Finds the object store of a URI, with its credentials and options.

    s3://bucket/prefix                                      s3a:// means the same
    gs://bucket/prefix
    az://container/prefix                                   the account comes from the options or the environment
    abfss://container@account.dfs.core.windows.net/prefix

The credentials come from the places that other programs of the same storage use:

    S3       AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION, AWS_ENDPOINT_URL; else the profile
             in ~/.aws (AWS_PROFILE), which needs boto3; else the role of the host, the pod or the container
    GCS      GOOGLE_SERVICE_ACCOUNT, GOOGLE_APPLICATION_CREDENTIALS; else the service account of the host
    Azure    AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY and the other AZURE_ variables

LAKELOG_STORAGE_OPTIONS (storage.storage_options) can contain the same options with obstore's names (aws_...,
google_..., azure_...). The options in this variable take precedence. If they contain credentials, no credentials of the
environment are used. obstore by itself would combine both, for example the keys of the options with AWS_SESSION_TOKEN.
No message of this module contains the value of an option.
"""

from __future__ import annotations

import os
import re
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from storage_engine.errors import ConfigError
from storage_engine.storage import missing_package
from storage_engine.storage.storage_options import (
    AZURE_KEYS,
    S3_ENDPOINTS,
    azure_credentials,
    require_no_variable,
    s3_credentials,
    s3_value,
    storage_options,
)

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_SCHEMES = {"s3": "s3", "s3a": "s3", "gs": "gs", "az": "az", "abfs": "abfss", "abfss": "abfss"}
"""By scheme: the scheme that `Storage.uri` has for it."""
_OPTIONS = {"s3": "aws_", "gs": "google_", "az": "azure_", "abfss": "azure_"}
_VARIABLES = ("AWS_", "GOOGLE_", "AZURE_")
_EXTRAS = {"s3": "s3", "gs": "gcs", "az": "azure", "abfss": "azure"}
_ENDPOINT = "aws_endpoint_url"
_OVERRIDING = "AWS_ENDPOINT_URL_S3"
"""obstore prefers this variable to an endpoint in the options, whatever the option's name."""
_ENDPOINTS = {
    "s3": (_ENDPOINT,),
    "gs": ("google_base_url",),
    "az": ("azure_endpoint", "azure_storage_endpoint"),
    "abfss": ("azure_endpoint", "azure_storage_endpoint"),
}
_PROVIDED = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "token",
    "azure_storage_token": "token",
    "azure_storage_sas_token": "sas_token",
}
"""By option: the name that a credential provider of obstore has for it."""
_CLIENT = frozenset(
    ("connect_timeout", "timeout", "proxy_url", "proxy_ca_certificate", "allow_http", "allow_invalid_certificates")
)
"""Options of the HTTP client. Their names have no prefix."""
_HADOOP = ("dfs.", "fs.", "hadoop.", "ipc.")
"""The first words of options that only HDFS has."""
_ENCODED = re.compile("%[0-9A-Fa-f]{2}")
"""A character as URLs encode it. obstore decodes it, and Hadoop does not."""
_BACKOFF = {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=2), "base": 2}
_RETRIES = {"backoff": _BACKOFF, "max_retries": 6, "retry_timeout": timedelta(seconds=30)}
_NO_RETRIES = {"max_retries": 0}


def is_object_store(scheme: str) -> bool:
    """Whether a URI with this scheme names an object store."""
    return scheme in _SCHEMES


def checked_uri(uri: str) -> str:
    """Return a URI in its usual form: one name for each scheme, and no `/` at its end.

    Raises:
        ConfigError: the URI has no bucket, or parts that no root has.
    """
    scheme, host, path, query, fragment = urlsplit(uri)
    if not host or query or fragment:
        raise ConfigError(f"root {uri!r}", "names no bucket", f"Write {scheme}://bucket/prefix.")
    prefix = path.removeprefix("/").rstrip("/")
    if prefix and not {"", ".", ".."}.isdisjoint(prefix.split("/")):
        raise ConfigError(f"root {uri!r}", "the prefix has an empty part, `.` or `..`", "Remove this part.")
    if (encoded := _ENCODED.search(prefix)) is not None:
        raise ConfigError(
            f"root {uri!r}", f"the prefix contains {encoded[0]!r}, which some programs decode and others do not",
            "Use a prefix without it. Write a space or another character as it is.",
        )  # fmt: skip
    return f"{_SCHEMES[scheme]}://{host}{path.rstrip('/')}"


def object_store(uri: str, *, retries: bool) -> ObjectStore:
    """Return the store of a root. The stores of one root share their connections within a process.

    Args:
        uri: as checked_uri returns it.
        retries: whether the store repeats a request that failed. Without repetitions, each error belongs to one request.

    Raises:
        ConfigError: a package is missing, or an option is wrong.
    """
    options = tuple(sorted(storage_options().items()))
    environment = tuple(sorted((name, value) for name, value in os.environ.items() if name.startswith(_VARIABLES)))
    return _store(uri, options, environment, retries)


@lru_cache(maxsize=64)
def _store(
    uri: str, options: tuple[tuple[str, str], ...], environment: tuple[tuple[str, str], ...], retries: bool
) -> ObjectStore:
    scheme = urlsplit(uri).scheme
    try:
        from obstore.exceptions import BaseError
        from obstore.store import from_url
    except ImportError:
        raise missing_package(uri, "obstore", _EXTRAS[scheme]) from None
    config, client = _split(uri, dict(options), scheme)
    if scheme == "s3":
        config = _with_one_endpoint(uri, config, dict(environment))
    places = {**{name.lower(): value for name, value in environment}, **config}
    if any(places.get(name, "").startswith("http://") for name in _ENDPOINTS[scheme]):
        client.setdefault("allow_http", True)
    arguments: dict[str, Any] = {
        "config": config,
        "client_options": client,
        "retry_config": _RETRIES if retries else _NO_RETRIES,
    }
    given = _given_credentials(scheme, config, dict(environment))
    if given:
        arguments["credential_provider"] = lambda: {**given, "expires_at": None}
    elif scheme == "s3" and not places.keys() >= {"aws_access_key_id", "aws_secret_access_key"}:
        arguments |= _profile(uri, places)
    try:
        store: ObjectStore = from_url(uri, **arguments)
    except (BaseError, ValueError, TypeError):  # the message may contain values
        raise ConfigError(
            f"root {uri!r}", "the storage options are wrong",
            f"Check the names and values of the options {sorted(config)} and of the environment variables"
            f" that begin with {_OPTIONS[scheme].upper()}.",
        ) from None  # fmt: skip
    return store


def _split(uri: str, options: dict[str, str], scheme: str) -> tuple[dict[str, str], dict[str, Any]]:
    """The options of this kind of store, and the options of the HTTP client. Options of other kinds of stores are ignored."""
    config: dict[str, str] = {}
    client: dict[str, Any] = {"connect_timeout": "5s", "timeout": "60s"}
    for given, value in options.items():
        name = given.removeprefix(_OPTIONS[scheme])
        if name in _CLIENT:  # obstore does not accept these among the options of a store
            client[name] = value.lower() == "true" if name.startswith("allow_") else value
        elif given.startswith(_OPTIONS[scheme]):
            config[given] = value
        elif not given.startswith((*_OPTIONS.values(), *_HADOOP)):
            raise ConfigError(
                f"storage option {given!r}", "is unknown",
                f"The options of {uri} begin with {_OPTIONS[scheme]}, or are {', '.join(sorted(_CLIENT))}.",
            )  # fmt: skip
    return config, client


def _with_one_endpoint(uri: str, config: dict[str, str], environ: dict[str, str]) -> dict[str, str]:
    """The options with the endpoint under its usual name, so that the engine opens the same store as Spark.

    Raises:
        ConfigError: an option contradicts the variable that obstore prefers.
    """
    endpoint = s3_value(S3_ENDPOINTS, config, environ)
    if endpoint is None:
        return config
    if environ.get(_OVERRIDING) not in (None, "", endpoint):
        raise ConfigError(
            f"root {uri!r}", f"the storage options and the variable {_OVERRIDING} name different endpoints",
            f"Unset {_OVERRIDING}, or remove the endpoint from the options.",
        )  # fmt: skip
    return {name: value for name, value in config.items() if name not in S3_ENDPOINTS} | {_ENDPOINT: endpoint}


def _given_credentials(scheme: str, config: dict[str, str], environ: dict[str, str]) -> dict[str, str]:
    """The credentials of the options, as a credential provider of obstore returns them. Empty if obstore needs no provider:
    the options contain no credentials, or credentials that obstore prefers to those of the environment.

    Raises:
        ConfigError: the options contain a part of the credentials, or obstore prefers credentials of the environment.
    """
    if scheme == "s3":
        return {_PROVIDED[name]: value for name, value in s3_credentials(config, {}).items()}
    found = {} if scheme == "gs" else azure_credentials(config, {})
    if not found or "azure_storage_account_key" in found:
        return {}
    for name in ("azure_storage_token", "azure_storage_sas_token"):
        if name in found:
            return {_PROVIDED[name]: found[name]}
    for preferred in (AZURE_KEYS, ("azure_storage_token",), ("azure_federated_token_file",)):
        require_no_variable("obstore", preferred, config, environ)
    return {}


def _profile(uri: str, places: dict[str, str]) -> dict[str, Any]:
    """The arguments for credentials from a profile in ~/.aws. Empty if no profile is configured."""
    files = (
        os.environ.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
        os.environ.get("AWS_CONFIG_FILE", "~/.aws/config"),
    )
    if "aws_profile" not in places and not any(Path(file).expanduser().is_file() for file in files):
        return {}
    try:
        import boto3.session
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        raise missing_package(uri, "boto3", "s3") from None
    from botocore.exceptions import BotoCoreError

    try:
        session = boto3.session.Session(profile_name=places.get("aws_profile"))
        if session.get_credentials() is None:
            return {}
        return {"credential_provider": Boto3CredentialProvider(session)}
    except BotoCoreError as error:
        raise ConfigError(
            f"root {uri!r}", f"the AWS profile cannot be used: {type(error).__name__}",
            "Check AWS_PROFILE and the files in ~/.aws, for example with `aws sts get-caller-identity`.",
        ) from None  # fmt: skip
