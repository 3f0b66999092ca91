"""Reads the checkpoint of a streaming query: the query's id, the time when it began, and the offsets of each micro-batch.

    <checkpoint>/metadata              {"id": "<the query's id>"}
    <checkpoint>/lakelog-sink.json     {"id": "<the query's id>", "beganMs": <time of the query's first micro-batch>}
    <checkpoint>/offsets/<batch id>    what the micro-batch reads; Spark writes it once, before it runs the batch
    <checkpoint>/commits/<batch id>    Spark's record that the batch is done
    <checkpoint>/sources/<n>/<number>  the log of a source: a file source writes down which files it has seen

The id of the query, the number of the batch and the hash of its offsets identify a micro-batch.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from contextlib import suppress

from storage_engine.errors import CorruptionError, NotFoundError, StorageError
from storage_engine.storage import Storage, StoredFile
from storage_engine.topic.append.topic_writer import BatchIdentity

_BEGAN = "lakelog-sink.json"
_NUMBERED = re.compile(r"(offsets|commits|sources/[0-9]+)/([0-9]+)(?:\.compact)?")


def recorded_query_id(storage: Storage, checkpoint: str) -> str:
    """The query's id in a checkpoint. checkpoint: the folder's key.

    Raises:
        NotFoundError: the checkpoint has no id.
        CorruptionError: the checkpoint's metadata file contains no id.
    """
    key = f"{checkpoint}/metadata"
    try:
        return str(uuid.UUID(json.loads(storage.read(key))["id"]))
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptionError(
            key, 0, "a query's id in Spark's format", "other content", "Restore this file from a backup."
        ) from error


def began_ms(storage: Storage, checkpoint: str, query_id: str) -> int:
    """The time of a query's first micro-batch; -1 if the checkpoint no longer has it.

    Spark deletes the offsets of the first micro-batch after a hundred others, so the time is stored in a file of Lakelog.
    A copy of the checkpoint has this file, too. The time of a file would not be safe: in a copy, or after a restore, it
    can be later than the first commit, and then a batch could be committed twice.
    """
    key = f"{checkpoint}/{_BEGAN}"
    with suppress(NotFoundError, ValueError, KeyError, TypeError):
        stored = json.loads(storage.read(key))
        if stored["id"] == query_id:
            return int(stored["beganMs"])
    try:
        began = int(json.loads(batch_offsets(storage, checkpoint, 0).splitlines()[1])["batchTimestampMs"])
    except (NotFoundError, IndexError, ValueError, KeyError, TypeError):
        return -1
    with suppress(StorageError):  # if this process may only read the checkpoint, the sink works without the file
        storage.replace(key, json.dumps({"id": query_id, "beganMs": began}).encode())
    return began


def batch_identity(
    storage: Storage, checkpoint: str, query_id: str, batch_id: int, source: str | None = None
) -> BatchIdentity:
    """The identity of a micro-batch that Spark has begun.

    Args:
        source: the source whose positions are stored.
    """
    return BatchIdentity(query_id, batch_id, offsets_hash(batch_offsets(storage, checkpoint, batch_id)), source)


def batch_offsets(storage: Storage, checkpoint: str, batch_id: int) -> bytes:
    """The offsets file of a micro-batch, which Spark wrote.

    Raises:
        NotFoundError: Spark has not written the file, or has deleted it again.
    """
    return storage.read(_offsets_key(checkpoint, batch_id))


def offsets_hash(offsets: bytes) -> str:
    """The hash of an offsets file, as topics record it."""
    return hashlib.sha256(offsets).hexdigest()


def numbered_files(storage: Storage, checkpoint: str, prefix: str) -> dict[str, dict[int, StoredFile]]:
    """The numbered files in each of the checkpoint's folders, by the folder's name and the file's number."""
    found: dict[str, dict[int, StoredFile]] = {}
    for file in storage.list(f"{checkpoint}/{prefix}"):
        if numbered := _NUMBERED.fullmatch(file.key.removeprefix(f"{checkpoint}/")):
            found.setdefault(numbered[1], {})[int(numbered[2])] = file
    return found


def make_durable(storage: Storage, checkpoint: str, batch_id: int) -> None:
    """Make those checkpoint files of a micro-batch durable that Spark needs to continue with the next micro-batch.

    Raises:
        StorageError: the storage refused or failed.
    """
    if storage.is_durable_when_visible:
        return
    logs = numbered_files(storage, checkpoint, "sources/").values()
    for key in (_offsets_key(checkpoint, batch_id), *(log[max(log)].key for log in logs)):
        storage.sync_file(key)


def _offsets_key(checkpoint: str, batch_id: int) -> str:
    return f"{checkpoint}/offsets/{batch_id}"
