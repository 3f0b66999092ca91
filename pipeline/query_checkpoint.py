"""What an ingest takes from Spark's checkpoint: the query's id, and what tells one micro-batch from another.

    <checkpoint>/metadata            {"id": "<the query's id>"}
    <checkpoint>/offsets/<batch id>  what the micro-batch reads; Spark writes it once, before it runs the batch

A query's id is put there before Spark looks, so that topics can be taken over in its name before the first batch.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from contextlib import suppress

from storage_engine.errors import AlreadyExistsError, CorruptionError, NotFoundError
from storage_engine.storage import Storage
from storage_engine.topic.publishing import BatchIdentity


def query_id_of(storage: Storage, checkpoint: str) -> str:
    """The query's id in a checkpoint, which is given one where it has none. Spark takes it from there.

    Raises:
        CorruptionError: the checkpoint's metadata file holds no id.
    """
    key = f"{checkpoint}/metadata"
    with suppress(AlreadyExistsError):
        try:
            return _query_id(storage, key)
        except NotFoundError:
            storage.put_new(key, json.dumps({"id": str(uuid.uuid4())}).encode())
    return _query_id(storage, key)


def batch_identity(storage: Storage, checkpoint: str, query_id: str, batch_id: int) -> BatchIdentity:
    """A micro-batch that Spark has begun."""
    offsets = storage.read(f"{checkpoint}/offsets/{batch_id}")
    return BatchIdentity(query_id, batch_id, hashlib.sha256(offsets).hexdigest())


def _query_id(storage: Storage, key: str) -> str:
    try:
        return str(uuid.UUID(json.loads(storage.read(key))["id"]))
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptionError(key, 0, "a query's id as Spark writes it", "something else", "Restore it.") from error
