"""Gives the library deltalake access to the storage of a root, and describes deltalake's errors without secrets.

deltalake opens s3://, gs://, az://, abfss:// and hdfs:// by itself. It reads the same environment variables and profiles
as the engine's storages, and takes the same storage options (storage_engine.storage.storage_options). On an object store,
deltalake commits with conditional puts.
"""

from __future__ import annotations

import os
import re

from storage_engine.storage.storage_options import storage_options

_ENDPOINTS = ("aws_endpoint_url_s3", "aws_endpoint_url", "aws_endpoint")
_STATUS = re.compile(r"\b([45][0-9]{2}) [A-Z]")
_CODE = re.compile(r"<Code>([A-Za-z0-9]{1,64})</Code>")


def delta_options() -> dict[str, str]:
    """The options for each call of deltalake that opens a table or creates one."""
    options = storage_options()
    places = {name.lower(): value for name, value in os.environ.items() if name.startswith("AWS_")} | options
    endpoint = next((places[name] for name in _ENDPOINTS if places.get(name)), "")
    if endpoint:
        options.setdefault("aws_endpoint_url", endpoint)
        # Without a region, deltalake would ask the metadata service of the host.
        options.setdefault("aws_region", places.get("aws_region") or places.get("aws_default_region") or "us-east-1")
    if endpoint.startswith("http://"):
        options.setdefault("allow_http", "true")
    return options


def answered(error: Exception) -> tuple[int, str] | None:
    """The HTTP status and the error code in an error of deltalake; None if no store answered. The rest of the error is
    the store's answer, which may contain parts of the credentials."""
    text = str(error)
    status, code = _STATUS.search(text), _CODE.search(text)
    return (int(status[1]), code[1] if code else "") if status else None


def shown_error(table: str, error: Exception) -> str:
    """A description of an error of deltalake.

    Args:
        table: path or URI of the table.
    """
    if "://" not in table:
        return f"{type(error).__name__}: {error}"
    found = answered(error)
    return (
        f"{type(error).__name__}: the storage answered {' '.join(map(str, found))}" if found else type(error).__name__
    )
