"""Makes documents with changed fields and a correct digest. A defect or a manual edit could produce such documents."""

from __future__ import annotations

import json
from typing import Any

from storage_engine.storage import Storage
from storage_engine.topic.chain.documents import encode_document


def signed(key: str, document: dict[str, Any]) -> bytes:
    """A document's bytes under this key."""
    fields = {name: value for name, value in document.items() if name != "digest"}
    return encode_document(key, json.dumps(fields, separators=(",", ":")).encode())


def change_fields(storage: Storage, key: str, **fields: Any) -> None:
    """Put other values into a document that is there."""
    storage.replace(key, signed(key, json.loads(storage.read(key)) | fields))
