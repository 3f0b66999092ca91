"""Translates errors of obstore into StorageErrors with a remedy, and repeats a request if its reply ended early.

The text of a store's answer can contain parts of the credentials. So no message contains this text.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from storage_engine.errors import NotFoundError, StorageAccessError, StorageError, StorageUnavailableError

_T = TypeVar("_T")
PAUSES = (0.05, 0.2, 0.5, 1.0, 2.0)
"""Seconds of pause before each further attempt of a conditional put, and of a request whose reply ended early."""
_CUT_REPLY = "response body"
"""The part of obstore's messages that says that a reply ended early."""
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([A-Za-z0-9]{1,64})</Code>")
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")
_CREDENTIAL_SERVICES = ("/latest/api/token", "/latest/meta-data", "metadata.google.internal", "/metadata/identity")
"""Parts of the addresses that obstore asks for credentials if it finds no credentials elsewhere."""
_DENIED = (401, 403)
_PASSING = frozenset((408, 409, 412, 429))
"""Statuses below 500 after which a repetition of the request may succeed."""


def storage_error(place: str, error: Exception) -> StorageError:
    """Return the StorageError for an error of obstore. Its message contains no text of the store's answer, but its
    status and its error code.
    """
    from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

    status = status_of(error)
    if any(code in str(error) for code in _NO_BUCKET):
        return StorageAccessError(place, "the bucket does not exist", "Create the bucket, or correct the root.")
    if isinstance(error, FileNotFoundError):
        return NotFoundError(place, "no such file", "Check the root and the name.")
    answer = answer_of(error)
    if any(word in str(error) for word in _CREDENTIAL_SERVICES):
        return StorageAccessError(
            place,
            "found no credentials",
            "Set the credentials in the environment, or in a profile (docs/STORAGE.md).",
        )
    kind = StorageUnavailableError if status is None else kind_of(status)
    if isinstance(error, PermissionDeniedError | UnauthenticatedError) or kind is StorageAccessError:
        return StorageAccessError(
            place, f"the store refused the credentials or the access ({answer})",
            "Check the credentials and their permissions: read, write, list and delete under this prefix.",
        )  # fmt: skip
    if status is None:
        return StorageUnavailableError(
            place,
            "the store did not answer",
            "Check the network and the endpoint of the store, then repeat the command.",
        )
    if kind is StorageError:
        return StorageError(
            place, f"the store refused the request ({answer})", "Check the endpoint, the region and the bucket."
        )
    return StorageUnavailableError(place, f"the store answered {answer}", "Repeat the command later.")


def answer_of(error: Exception) -> str:
    """The HTTP status and the error code in an error of obstore; empty if the store did not answer."""
    return " ".join(filter(None, (str(status_of(error) or ""), error_code(str(error)))))


def kind_of(status: int) -> type[StorageError]:
    """The kind of error that an HTTP status of 400 or more means, whichever program sent the request."""
    if status in _DENIED:
        return StorageAccessError
    return StorageError if status < 500 and status not in _PASSING else StorageUnavailableError


def error_code(text: str) -> str:
    """The error code in a store's answer; empty if there is none."""
    found = _CODE.search(text)
    return found[1] if found else ""


def repeated(work: Callable[[], _T]) -> _T:
    """Do the work, and repeat it if only the beginning of a reply arrived."""
    from obstore.exceptions import BaseError

    pauses = iter(PAUSES)
    while True:
        try:
            return work()
        except BaseError as error:
            pause_or_raise(error, pauses)


def pause_or_raise(error: Exception, pauses: Iterator[float]) -> None:
    """Wait before the next attempt if only the beginning of a reply arrived, until there is no pause left."""
    pause = next(pauses, None) if _CUT_REPLY in str(error) else None
    if pause is None:
        raise error
    time.sleep(pause)


def status_of(error: Exception) -> int | None:
    """The HTTP status in an error of obstore; None if the store did not answer."""
    found = _STATUS.search(str(error))
    return int(found[1]) if found else None


def is_refused(error: Exception) -> bool:
    """Whether the store certainly did not execute the request."""
    status = status_of(error)
    return isinstance(error, ValueError) or (status is not None and kind_of(status) is not StorageUnavailableError)
