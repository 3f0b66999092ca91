"""Puts an object with a condition and with a random mark in its metadata. The mark shows whether a put took effect whose
reply was lost (object_storage)."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from typing_extensions import Buffer

from storage_engine.storage.objects.object_errors import answer_of, is_refused, storage_error

if TYPE_CHECKING:
    from obstore import ObjectMeta, PutMode, PutResult, UpdateVersion
    from obstore.store import ObjectStore

MARK = "lakelogput"
"""The name of a put's mark in the metadata of an object. Azure allows only letters and digits."""


class MarkedPut:
    """A conditional put that may be attempted several times, always with the same bytes and the same mark.

    mark: is in the metadata of the object if one of the attempts took effect.
    is_unclear: whether an attempt may have taken effect, or may still take effect.
    last_answer: the status and the error code of the last unclear answer, as a part of a message; empty if there is none.
    """

    def __init__(self, store: ObjectStore, key: str, data: Buffer, place: str) -> None:
        self.mark = secrets.token_hex(16)
        self.is_unclear = False
        self.last_answer = ""
        self._store = store
        self._key = key
        self._data = memoryview(data).cast("B")
        self._place = place

    def attempt(self, mode: PutMode) -> PutResult | None:
        """Put once; None if the store did not confirm the put.

        Raises:
            StorageError: the store refused the put, and no earlier attempt can have taken effect.
        """
        from obstore.exceptions import AlreadyExistsError as Taken
        from obstore.exceptions import BaseError, PreconditionError

        try:
            return self._store.put(self._key, self._data, mode=mode, attributes={MARK: self.mark}, use_multipart=False)
        except (Taken, PreconditionError):
            return None  # a conflict, a lost reply, or another writer
        except (BaseError, OSError, ValueError) as error:
            if isinstance(error, FileNotFoundError) and mode != "create":
                return None  # the object that was to be replaced is gone
            if not self.is_unclear and is_refused(error):
                raise storage_error(self._place, error) from None
            self.is_unclear = True
            if answer := answer_of(error):
                self.last_answer = f" (it answered {answer})"
            return None


def version_of(known: ObjectMeta | PutResult) -> UpdateVersion:
    """What the store says about the content of an object, for the condition of a put. Some stores have no versions."""
    version: UpdateVersion = {}
    if known["e_tag"] is not None:
        version["e_tag"] = known["e_tag"]
    if known["version"] is not None:
        version["version"] = known["version"]
    return version
