"""Defines the stamp: the metadata by which a commit to an exported Delta table names its log and position.

Each commit of an export carries a stamp in Delta's user metadata, so that rows and position change in one atomic step:

    {"lakelog": {"topic": "flights", "topic_id": "...", "table_id": "...", "mode": "upsert",
                 "positions": {"0": 52110, "1": 50932}, "version": 7, "id": "9f3ac1...", "format": 2,
                 "recent": {"records": 1000, "dead_letters": 12}}}

`positions` is the next offset to read per partition. The table's position is that of its newest stamp, with one
exception: RESTORE goes back to older rows, and so the stamps after the version that it restored no longer count.

`format` is 2 since rows can be stale (decision 0037). Stamps of format 1 have neither `format` nor `recent`, and the
Lakelog that wrote them stops with an error at a stamp that has these fields. So it can never delete rows of a new
table.

No Spark is needed here: Delta's own log is enough for an export to find that there are no new records.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from storage_engine.errors import StateError

STAMP_FORMAT = 2
"""Raised when an exporter of today could spoil a table of the new kind."""

_KEY = "lakelog"


class NewerTableError(StateError):
    """A newer Lakelog exported to the table, by rules that this one does not know."""


@dataclass(frozen=True)
class Recent:
    """The last records that were exported, up to a thousand: what the share of dead letters is also counted over.

    records: how many, tombstones left out.
    dead_letters: how many of these did not decode; a fraction where an earlier increment counts in part.
    """

    records: int = 0
    dead_letters: float = 0


@dataclass(frozen=True)
class Stamp:
    """What a commit of ours says about itself."""

    topic: str
    topic_id: str
    table_id: str
    """Delta's id of the exported table; it outlives a move of the directory, and a copy made by CLONE has another."""
    mode: str
    positions: Mapping[int, int]
    """Partition to next offset."""
    version: int
    """The guard."""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    format: int = STAMP_FORMAT
    recent: Recent = Recent()

    @property
    def app_id(self) -> str:
        """Guards are counted per exported table; the dead letters of several tables may lie in one."""
        return f"{_KEY}:{self.topic_id}:{self.table_id}"

    def to_json(self) -> str:
        positions = {str(partition): offset for partition, offset in sorted(self.positions.items())}
        return json.dumps({_KEY: {**asdict(self), "positions": positions}})

    @classmethod
    def from_json(cls, user_metadata: str | None) -> Stamp | None:
        """None if these metadata are not ours: everybody may write what they like there.

        Raises:
            NewerTableError: the stamp has a format of the future.
        """
        try:
            document = json.loads(user_metadata or "null")
        except ValueError:
            return None
        if not isinstance(document, dict) or _KEY not in document:
            return None
        fields: dict[str, Any] = document[_KEY]
        found = fields.get("format", 1)
        if found > STAMP_FORMAT:
            raise NewerTableError(
                f"the table of topic {fields.get('topic')}",
                f"a newer Lakelog exported to it (stamp of format {found}; this Lakelog knows {STAMP_FORMAT})",
                "Use that Lakelog. Nothing was changed.",
            )
        positions = {int(partition): offset for partition, offset in fields["positions"].items()}
        recent = Recent(**fields.get("recent", {}))
        return cls(**{**fields, "positions": positions, "format": found, "recent": recent})


@dataclass(frozen=True)
class TableHead:
    """The newest version of a table, and the stamps that say how it came about."""

    version: int
    current: Stamp | None
    """The stamp of the rows that are there now; None if the history does not tell."""
    newest: Stamp | None
    """The last stamp written, whatever was restored since."""
    next_guard: int
    """The guard of the next commit of an export: the same for all who know of no newer stamp."""
    table_id: str | None = None
    """Delta's id of the table, where the newest version tells it."""

    @classmethod
    def of_stamp(cls, version: int, stamp: Stamp) -> TableHead:
        """The head of a table whose newest version carries a stamp."""
        return cls(version, stamp, stamp, version + 1, stamp.table_id)


def known_positions(head: TableHead | None) -> Mapping[int, int] | None:
    """The table's positions, none if there is no table; None where its history does not tell them, and its rows may."""
    if head is None:
        return {}
    return head.current.positions if head.current is not None else None


class HistoryEntry(Protocol):
    """What is needed of an entry of Delta's history."""

    @property
    def version(self) -> int: ...
    @property
    def operation(self) -> str: ...
    @property
    def operationParameters(self) -> Mapping[str, Any]: ...  # noqa: N802 - Delta's name
    @property
    def userMetadata(self) -> str | None: ...  # noqa: N802 - Delta's name


def find_head(history: Iterable[HistoryEntry], counts: Callable[[Stamp], bool]) -> TableHead:
    """Decides on a history, newest entry first, with version, operation, operationParameters and userMetadata.

    A RESTORE to a timestamp does not record which version that was: the position of the rows is then unknown.
    """
    entries = list(history)
    newest = current = None
    # Where the history was cut off, a guard that was used before may be as high as the table's version.
    guard = 0 if entries[-1].version == 0 else entries[0].version + 1
    counted_to: int | None = entries[0].version  # the newest version whose stamp counts; None: not known
    for entry in entries:
        stamp = Stamp.from_json(entry.userMetadata)
        if stamp is not None and counts(stamp):
            if newest is None:
                newest, guard = stamp, entry.version + 1
            if counted_to is not None and entry.version <= counted_to:
                current = stamp
                break
        elif entry.operation == "RESTORE" and counted_to is not None and entry.version <= counted_to:
            restored = entry.operationParameters.get("version")
            counted_to = None if restored is None else int(restored)
    return TableHead(entries[0].version, current, newest, guard)
