"""Builds and parses the names of a segment's files.

Kafka names a segment by its base offset, in 20 digits. Files in log/ have Kafka's name. In data/, the name has two
more parts, so that no name is ever used twice. The first additional part is a version of the topic's state: the file
was planned from this version. The second additional part is a random token.

    00000000000000052110.log                  log/orders-0/
    00000000000000052110.42.9f3ac1d2.log      data/<topic id>/0/

The files of a plain Kafka directory change in place. In such a directory, a further suffix shows an operation that is
not complete:

    00000000000000052110.log.cleaned          cleaning or recovery is writing the file
    00000000000000052110.log.swap             the file is complete, and will be renamed to replace older segments
    00000000000000052110.log.deleted          the file will be deleted
    00000000000000052110.4711.corrupt         bytes that recovery removed from the .log at byte 4711. Only Lakelog writes
                                              these files; Kafka ignores them

All functions are pure, except for the random tokens.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
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
"""The suffixes of the files that are useless without their .log."""
SEGMENT_SUFFIXES = (INDEX, TIME_INDEX, LOG)
"""The suffixes of a segment's files in data/, in the order in which a segment is deleted: the .log last, because the
others need it. A writer that deletes files of replaced segments has no order: a segment stays in the list of dropped
files until all its files are deleted."""
_PLANNED = re.compile(r"[0-9]{20}\.([0-9]+)\.[0-9a-f]{8,}\.(?:log|index|timeindex)")


def offset_name(offset: int) -> str:
    """Return Kafka's file name for an offset, without a suffix."""
    return f"{offset:0{_DIGITS}d}"


def is_offset_name(name: str) -> bool:
    """Whether offset_name returns this name for some offset."""
    return len(name) == _DIGITS and name.isascii() and name.isdigit() and int(name) <= LONG_MAX


def offsets_in(names: Iterable[str], suffix: str) -> list[int]:
    """The offsets of the files with this suffix, sorted. Other names are ignored."""
    stems = (name.removesuffix(suffix) for name in names if name.endswith(suffix))
    return sorted(int(stem) for stem in stems if is_offset_name(stem))


def new_segment_name(base_offset: int, version: int, word: str = "") -> str:
    """Return a new unique name, without a suffix.

    Args:
        word: hexadecimal digits at the start of the random token, so that the names of one purpose can be recognized.
    """
    return f"{offset_name(base_offset)}.{version}.{word}{secrets.token_hex(4)}"


def planned_version(file_name: str) -> int | None:
    """Return the state version in the name of a file in data/; None if the name does not have this form."""
    found = _PLANNED.fullmatch(file_name)
    return int(found[1]) if found else None


def data_folder(topic_id: str, partition: int) -> str:
    """Return the folder of a partition's files, with a slash at its end."""
    return f"data/{topic_id}/{partition}/"


def data_key(topic_id: str, partition: int, name: str, suffix: str = LOG) -> str:
    """Return the storage key of one file of a segment."""
    return f"{data_folder(topic_id, partition)}{name}{suffix}"


@dataclass(frozen=True)
class SegmentFolder:
    """A partition's folder, and the names of new segments in it. It is small and can be pickled.

    folder: storage key, with a slash at its end.
    version: the version of the state on which new segments are planned; None in a plain Kafka directory. There, a new
        segment has the name of the segment that it replaces, and the names of its files end in .cleaned until the
        replacement.
    """

    folder: str
    version: int | None

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The suffixes of the files that a new segment can have in this folder, the .log last."""
        return SEGMENT_SUFFIXES if self.version is not None else (*INDEX_SUFFIXES, LOG)

    def key(self, name: str, suffix: str = LOG) -> str:
        """Return the storage key of one file of a segment."""
        return f"{self.folder}{name}{suffix}"

    def new_name(self, base_offset: int) -> str:
        """Return the name of a new segment, without a suffix."""
        return offset_name(base_offset) if self.version is None else new_segment_name(base_offset, self.version)

    def new_key(self, name: str, suffix: str = LOG) -> str:
        """Return the storage key under which one file of a new segment is written."""
        return self.key(name, suffix if self.version is not None else suffix + CLEANED)
