"""Names of files that belong to a segment.

Kafka's name of a segment is its base offset in 20 digits. In log/ files have that name; under data/ the name continues
with the state version of the plan that created the file and a random token, so that no name is ever used twice:

    00000000000000052110.log                  log/orders-0/
    00000000000000052110.42.9f3ac1d2.log      data/<topic id>/0/

In a plain Kafka directory, whose files change in place, a further suffix says what is about to become of a file:

    00000000000000052110.log.cleaned          half-made by cleaning or recovery
    00000000000000052110.log.swap             whole, and about to be put in its place
    00000000000000052110.log.deleted          about to be deleted
    00000000000000052110.4711.corrupt         what recovery cut out of the .log at byte 4711; ours, Kafka passes it over
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass

from storage_engine.config import LONG_MAX

_DIGITS = 20
LOG = ".log"
INDEX = ".index"
TIME_INDEX = ".timeindex"
SNAPSHOT = ".snapshot"
TRANSACTION_INDEX = ".txnindex"
CLEANED = ".cleaned"
SWAP = ".swap"
DELETED = ".deleted"
CORRUPT = ".corrupt"
INDEX_SUFFIXES = (INDEX, TIME_INDEX, TRANSACTION_INDEX)
"""Of the files that mean nothing without their .log."""
SEGMENT_SUFFIXES = (INDEX, TIME_INDEX, LOG)
"""Of the files that a segment has under data/; the .log, without which the others mean nothing, goes last."""
_PLANNED = re.compile(r"[0-9]{20}\.([0-9]+)\.[0-9a-f]{8,}\.(?:log|index|timeindex)")


def offset_name(offset: int) -> str:
    """Kafka's file name for an offset, without a suffix."""
    return f"{offset:0{_DIGITS}d}"


def is_offset_name(name: str) -> bool:
    """Whether this is what offset_name makes of some offset."""
    return len(name) == _DIGITS and name.isascii() and name.isdigit() and int(name) <= LONG_MAX


def new_segment_name(base_offset: int, version: int, word: str = "") -> str:
    """A name that is never used twice, without a suffix.

    Args:
        word: hexadecimal; the random token begins with it, so that names drawn for one purpose can be told.
    """
    return f"{offset_name(base_offset)}.{version}.{word}{secrets.token_hex(4)}"


def planned_version(file_name: str) -> int | None:
    """The state version in the name of a file under data/; None where it is not one of ours."""
    found = _PLANNED.fullmatch(file_name)
    return int(found[1]) if found else None


def data_folder(topic_id: str, partition: int) -> str:
    """Where a partition's files lie, ending in a slash."""
    return f"data/{topic_id}/{partition}/"


def data_key(topic_id: str, partition: int, name: str, suffix: str = LOG) -> str:
    """The storage key of one file of a segment."""
    return f"{data_folder(topic_id, partition)}{name}{suffix}"


@dataclass(frozen=True)
class SegmentFolder:
    """A partition's folder, and how the files of new segments are called in it. Small, and can be pickled.

    folder: storage key, ending in a slash. version: of the state that plans them; None in a plain Kafka directory, where
    a new segment has the name of the one whose place it is to take, and its files end in .cleaned until then.
    """

    folder: str
    version: int | None

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Of the files that a new segment can have here; the .log goes last."""
        return SEGMENT_SUFFIXES if self.version is not None else (*INDEX_SUFFIXES, LOG)

    def key(self, name: str, suffix: str = LOG) -> str:
        """The storage key of one file of a segment."""
        return f"{self.folder}{name}{suffix}"

    def new_name(self, base_offset: int) -> str:
        """The name of a new segment, without a suffix."""
        return offset_name(base_offset) if self.version is None else new_segment_name(base_offset, self.version)

    def new_key(self, name: str, suffix: str = LOG) -> str:
        """The storage key under which one file of a new segment is written."""
        return self.key(name, suffix if self.version is not None else suffix + CLEANED)
