"""Gives the library deltalake access to the storage of a root, and describes deltalake's errors without secrets.

deltalake opens s3://, gs://, az://, abfss:// and hdfs:// by itself. It reads the same environment variables and profiles
as the engine's storages, and takes the same storage options (storage_engine.storage.storage_options). On an object store,
deltalake commits with conditional puts.

deltalake always reads the environment variables, too. So credentials in the options are refused if deltalake would use
them together with other credentials in the environment.
"""

from __future__ import annotations

import os
import re
from urllib.parse import quote

from storage_engine.errors import ConfigError
from storage_engine.storage.objects.object_errors import error_code
from storage_engine.storage.storage_options import (
    AZURE_ENDPOINTS,
    AZURE_KEYS,
    S3_ENDPOINTS,
    S3_REGIONS,
    S3_TOKENS,
    azure_credentials,
    azure_value,
    require_no_variable,
    s3_credentials,
    s3_value,
    storage_options,
)

_UNFIT = re.compile(r"%[0-9A-Fa-f]{2}|[\[\]|^\\]")
_STATUS = re.compile(r"\b([45][0-9]{2}) [A-Z]")


def delta_options(table: str) -> dict[str, str]:
    """The options for each call of deltalake that opens a table or creates one.

    Args:
        table: path or URI of the table.

    Raises:
        ConfigError: deltalake cannot open this path, or would combine credentials of the options with credentials of the
            environment.
    """
    unfit = unfit_for_deltalake(table)
    if unfit is not None:
        raise ConfigError(
            table, f"the path has {unfit!r}, and the library deltalake cannot open such tables",
            "Use a root and a table whose paths do not have it.",
        )  # fmt: skip
    options = storage_options()
    scheme = table.partition("://")[0]
    if scheme == "s3" and s3_credentials(options, {}):
        require_no_variable("deltalake", S3_TOKENS, options, os.environ)
    elif scheme in ("az", "abfss") and azure_credentials(options, {}):
        require_no_variable("deltalake", AZURE_KEYS, options, os.environ)
    endpoint, region = (s3_value(names, options, os.environ) for names in (S3_ENDPOINTS, S3_REGIONS))
    if endpoint:
        options = {name: value for name, value in options.items() if name not in S3_ENDPOINTS}
        # Without a region, deltalake would ask the metadata service of the host.
        options |= {"aws_endpoint_url": endpoint, "aws_region": region or "us-east-1"}
    endpoints = endpoint, azure_value(AZURE_ENDPOINTS, options, os.environ)
    if any(each and each.startswith("http://") for each in endpoints):
        options.setdefault("allow_http", "true")
    return options


def unfit_for_deltalake(table: str) -> str | None:
    """The first part of a table's path that deltalake 1.6.6 cannot handle; None if there is none.

    deltalake reads `%41` in a path as the letter A, but writes it as it is. It ends with a panic if a path has one of the
    characters `[ ] | ^`, and takes `\\` for `/`. In HDFS, deltalake writes some characters of a path in their
    percent-encoded form, and reads them in the other form.
    """
    if not table.startswith("hdfs://"):
        found = _UNFIT.search(table)
        return found[0] if found else None
    return next((each for each in table.partition("://")[2].partition("/")[2] if quote(each, safe="/") != each), None)


def answered(error: Exception) -> tuple[int, str] | None:
    """The HTTP status and the error code in an error of deltalake; None if no store answered. The rest of the error is
    the store's answer, and this answer can contain parts of the credentials."""
    text = str(error)
    status = _STATUS.search(text)
    return (int(status[1]), error_code(text)) if status else None


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
