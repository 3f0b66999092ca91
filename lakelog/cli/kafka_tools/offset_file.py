"""Reads the file of kafka-delete-records: for each partition, the offset below which all records are to be deleted.

    {"partitions": [{"topic": "orders", "partition": 0, "offset": 17}], "version": 1}

The offset -1 means all records. The field version may be missing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from storage_engine.errors import UsageError

_OPTION = "--offset-json-file"
_EXAMPLE = 'For example {"partitions": [{"topic": "orders", "partition": 0, "offset": 17}], "version": 1}.'
_VERSION = 1
_FIELDS = {"topic": str, "partition": int, "offset": int}


def read_offset_file(file: Path) -> dict[tuple[str, int], int]:
    """The offsets by topic and partition, in the order of the file.

    Raises:
        UsageError: the file cannot be read, or has another content.
    """
    try:
        content = json.loads(file.read_bytes())
    except OSError as error:
        raise UsageError(f"{_OPTION} {file}", f"cannot be read: {error.strerror}") from None
    except ValueError:
        raise _malformed(file, "the file is not JSON") from None
    except RecursionError:
        raise _malformed(file, "the file has lists or objects that are nested too deeply") from None
    if not isinstance(content, dict) or not isinstance(content.get("partitions"), list):
        raise _malformed(file, "the file has no list partitions")
    if content.get("version", _VERSION) != _VERSION:
        raise _malformed(file, f"expected version {_VERSION}, found {content['version']!r}")
    found: dict[tuple[str, int], int] = {}
    for number, entry in enumerate(content["partitions"]):
        topic, partition, offset = (_field(file, number, entry, name) for name in _FIELDS)
        if partition < 0 or offset < -1:
            raise _malformed(
                file, f"entry {number} of partitions has the partition {partition} and the offset {offset}"
            )
        if (topic, partition) in found:
            raise _malformed(file, f"{topic}-{partition} is there twice")
        found[topic, partition] = offset
    return found


def _field(file: Path, number: int, entry: object, name: str) -> Any:
    value = entry.get(name) if isinstance(entry, dict) else None
    if not isinstance(value, _FIELDS[name]) or isinstance(value, bool):
        raise _malformed(file, f"entry {number} of partitions has no {name}")
    return value


def _malformed(file: Path, problem: str) -> UsageError:
    return UsageError(f"{_OPTION} {file}", problem, _EXAMPLE)
