"""Turns the errors of the deltalake library into Lakelog's own errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from deltalake.exceptions import CommitFailedError, DeltaError

from storage_engine.storage.posix_errors import storage_error

_OS_ERROR = re.compile(r"\(os error (\d+)\)")
"""Finds the operating system's error number in deltalake's messages."""


@contextmanager
def deltalake_errors(path: str, remedy: str) -> Iterator[None]:
    """Turn each error of deltalake, except a conflict between two commits, into a StorageError.

    Args:
        path: path or URI of the table.
        remedy: the last sentence of the message.
    """
    try:
        yield
    except CommitFailedError:
        raise
    except (OSError, DeltaError) as error:
        reason = str(error).partition("\n")[0]  # some errors continue with the library's stack
        code = _OS_ERROR.search(reason)
        raise storage_error(path, f"cannot be written: {reason}", int(code[1]) if code else None, remedy) from error
