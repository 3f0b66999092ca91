"""Translates errors of obstore into StorageErrors with a remedy, and repeats a request if its body or its reply was cut.

The text of a store's answer can contain parts of the credentials. So no message contains this text.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from storage_engine.errors import (
    NotFoundError,
    StorageAccessError,
    StorageError,
    StorageUnavailableError,
    UnsupportedError,
)

_T = TypeVar("_T")
PAUSES = (0.05, 0.2, 0.5, 1.0, 2.0)
"""Seconds of pause before each further attempt of a conditional put, and of a request whose body or reply was cut."""
_ALL_SETTINGS = "Check the credentials, the endpoint, the region and the bucket."
_CUT_REPLY = "response body"
"""The part of obstore's messages that says that a reply ended early."""
_BEYOND_END = "Wanted range starting at"
"""The part of obstore's messages that says that a store sent no bytes, because a range begins at the end of an object."""
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(
    r"<Code>([A-Za-z0-9]{1,64})</Code>|DeleteObjects request failed .*\(code: ([A-Za-z0-9]{1,64})\)", re.DOTALL
)
"""The code in a store's error document, or in obstore's message about a deletion. S3 answers a deletion with status 200 and,
for an object that it did not delete, with a code."""
_NO_KEY = "NoSuchKey"
_REDIRECT = "redirect without LOCATION"
"""The part of obstore's messages that says that S3 answered 301 or 307, because the bucket is in another region."""
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")
_CREDENTIAL_SERVICES = ("/latest/api/token", "/latest/meta-data", "metadata.google.internal", "/metadata/identity")
"""Parts of the addresses that obstore asks for credentials if it finds no credentials elsewhere."""
_DENIED = (401, 403)
_DENIED_CODES = ("AccessDenied", "ExpiredToken", "InvalidToken", "TokenRefreshRequired")
"""Error codes of S3 that refuse the access: in the answer to a deletion, with status 200, and for a session token, with
status 400."""
_SLOW_BODY = "RequestTimeout"
"""The error code of S3, with status 400, if the body of a request arrived too slowly."""
_PASSING = frozenset((408, 409, 412, 429))
"""Statuses below 500 after which a repetition of the request may succeed."""
_NO_ANSWERS = {
    "InvalidCertificate": "its certificate was not accepted",
    "dns error": "the name of its host was not found",
    "ConnectionRefused": "the connection was refused",
    "ConnectionReset": "the connection was interrupted",
    "IncompleteMessage": "the connection was interrupted",
    "TimedOut": "the time for the request was over",
}
"""By a part of obstore's messages, why the store did not answer."""
_NOT_SATISFIABLE = 416
_NOT_IMPLEMENTED = 501


def storage_error(place: str, error: Exception) -> StorageError:
    """Return the StorageError for an error of obstore. Its message contains no text of the store's answer, but its
    status and its error code.
    """
    from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

    status = status_of(error)
    if any(code in str(error) for code in _NO_BUCKET):
        return StorageAccessError(place, "the bucket does not exist", "Create the bucket, or correct the root.")
    code, answer = error_code(str(error)), answer_of(error)
    if isinstance(error, FileNotFoundError) or code == _NO_KEY:
        return NotFoundError(place, "no such file", "Check the root and the name.")
    if _REDIRECT in str(error):
        return StorageError(
            place, "the store answered with a redirect, because the bucket is in another region or the endpoint is wrong",
            "Set the region of the bucket (AWS_REGION, or aws_region in the storage options), or correct the endpoint.",
        )  # fmt: skip
    if any(word in str(error) for word in _CREDENTIAL_SERVICES):
        return StorageAccessError(
            place,
            "found no credentials",
            "Set the credentials in the environment, or in a profile (docs/STORAGE.md).",
        )
    kind = kind_of(status, code)
    if isinstance(error, PermissionDeniedError | UnauthenticatedError) or kind is StorageAccessError:
        return StorageAccessError(
            place, f"the store refused the credentials or the access ({answer})",
            "Check the credentials and their permissions: read, write, list and delete under this prefix.",
        )  # fmt: skip
    if not answer:
        reason = next((f" ({words})" for part, words in _NO_ANSWERS.items() if part in str(error)), "")
        return StorageUnavailableError(
            place, f"the store did not answer{reason}",
            "Check the network and the endpoint of the store, then repeat the command.",
        )  # fmt: skip
    if kind is UnsupportedError:
        return UnsupportedError(
            place, f"the store does not support the request ({answer})",
            "Use a store that supports all requests that Lakelog needs, for example conditional puts (docs/STORAGE.md).",
        )  # fmt: skip
    if kind is StorageError:
        remedy = "Check the endpoint, the region and the bucket." if code else _ALL_SETTINGS
        return StorageError(place, f"the store refused the request ({answer})", remedy)
    return StorageUnavailableError(place, f"the store answered {answer}", "Repeat the command later.")


def answer_of(error: Exception) -> str:
    """The HTTP status and the error code in an error of obstore; empty if the store did not answer."""
    return " ".join(filter(None, (str(status_of(error) or ""), error_code(str(error)))))


def kind_of(status: int | None, code: str) -> type[StorageError]:
    """The kind of error that an HTTP status of 400 or more means, whichever program sent the request.

    Args:
        status: None if there is no such status.
        code: the error code in the store's answer; empty if there is none.
    """
    if status in _DENIED or code in _DENIED_CODES:
        return StorageAccessError
    if status is None or code == _SLOW_BODY:
        return StorageUnavailableError
    if status == _NOT_IMPLEMENTED:
        return UnsupportedError
    return StorageError if status < 500 and status not in _PASSING else StorageUnavailableError


def error_code(text: str) -> str:
    """The error code in a store's answer; empty if there is none."""
    found = _CODE.search(text)
    return found[1] or found[2] if found else ""


def repeated(work: Callable[[], _T]) -> _T:
    """Do the work, and repeat it if only the beginning of a reply or of a request's body arrived."""
    from obstore.exceptions import BaseError

    pauses = iter(PAUSES)
    while True:
        try:
            return work()
        except BaseError as error:
            pause_or_raise(error, pauses)


def pause_or_raise(error: Exception, pauses: Iterator[float]) -> None:
    """Wait before the next attempt if only the beginning of a reply or of a request's body arrived, until there is no
    pause left.
    """
    is_cut = _CUT_REPLY in str(error) or error_code(str(error)) == _SLOW_BODY
    pause = next(pauses, None) if is_cut else None
    if pause is None:
        raise error
    time.sleep(pause)


def status_of(error: Exception) -> int | None:
    """The HTTP status in an error of obstore; None if it names none."""
    found = _STATUS.search(str(error))
    return int(found[1]) if found else None


def is_refused(error: Exception) -> bool:
    """Whether the store certainly did not execute the request."""
    status = status_of(error)
    if isinstance(error, ValueError) or _REDIRECT in str(error):
        return True
    return status is not None and kind_of(status, error_code(str(error))) is not StorageUnavailableError


def is_beyond_end(error: Exception) -> bool:
    """Whether a range was read that begins at or after the end of an object."""
    return status_of(error) == _NOT_SATISFIABLE or _BEYOND_END in str(error)
