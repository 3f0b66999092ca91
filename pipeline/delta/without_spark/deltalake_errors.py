"""Turns the errors of the libraries deltalake and pyarrow into Lakelog's own errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
from deltalake.exceptions import CommitFailedError, DeltaError

from lakelog.delta_options import answered
from storage_engine.errors import NotFoundError, StorageAccessError, StorageError, StorageUnavailableError
from storage_engine.storage.objects.object_errors import kind_of
from storage_engine.storage.posix_errors import storage_error

_OS_ERROR = re.compile(r"\(os error (\d+)\)")
"""Finds the operating system's error number in deltalake's messages."""

_NOT_IN_A_REASON = re.compile(r"\x1b\[[0-9;]*m|↳|(?:stack )?backtrace:.*", re.DOTALL | re.IGNORECASE)
"""What deltalake's messages contain besides their reasons: colours, arrows, and the library's stack."""

_FILE = re.compile(r"[\w.=-]+\.parquet")
"""Finds the name of a file in Arrow's messages."""


@contextmanager
def deltalake_errors(path: str, remedy: str, failed: str = "cannot be written") -> Iterator[None]:
    """Turn each error of deltalake and of Arrow, except a conflict between two commits, into a StorageError.

    Args:
        path: path or URI of the table.
        remedy: the last sentence of the message.
        failed: what cannot be done.
    """
    try:
        yield
    except CommitFailedError:
        raise
    except (OSError, DeltaError) as error:
        if "://" in path:
            # The cause is not kept, because the store's answer may contain parts of the credentials.
            raise _store_error(path, error, remedy, failed) from None
        reasons = (line.strip() for line in _NOT_IN_A_REASON.sub("", str(error)).splitlines())
        reason = ": ".join(line for line in reasons if line)
        code = _OS_ERROR.search(reason)
        meaning = storage_error(path, f"{failed}: {reason}", int(code[1]) if code else None, "")
        if isinstance(meaning, NotFoundError):  # a file of the table, and not the table
            raise StorageError(path, meaning.problem, remedy) from error
        raise type(meaning)(path, meaning.problem, f"{remedy} {meaning.remedy}".rstrip()) from error
    except pa.ArrowException as error:
        # The cause is not kept, because Arrow's message may contain a value.
        file = _FILE.search(str(error))
        raise StorageError(path, f"{failed}: {file[0] if file else 'a file'} is damaged", remedy) from None
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        # Code in Rust panicked. The type of this exception cannot be imported, and is no subclass of Exception.
        problem = f"{failed}: deltalake had an internal error. It is unknown whether the change was committed"
        raise StorageError(path, problem, "Run the job again.") from None


def _store_error(path: str, error: Exception, remedy: str, failed: str) -> StorageError:
    found = answered(error)
    if found is None and isinstance(error, DeltaError):
        return StorageError(path, f"{failed}: {str(error).partition(chr(10))[0]}", remedy)
    if found is None:
        return StorageUnavailableError(path, f"{failed}: the storage did not answer", remedy)
    status, code = found
    problem = f"{failed}: the storage answered {status} {code}".rstrip()
    kind = kind_of(status, code)
    if kind is StorageAccessError:
        remedy = "Check the credentials and their permissions under this prefix."
    return kind(path, problem, remedy)
