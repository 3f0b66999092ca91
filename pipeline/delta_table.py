"""What a Delta table knows about the log that feeds it.

Each commit of ours carries a stamp in Delta's user metadata, so that rows and position change in one atomic step:

    {"lakelog": {"topic": "flights", "topic_id": "...", "table_id": "...", "mode": "upsert",
                 "positions": {"0": 52110, "1": 50932}, "version": 7, "id": "9f3ac1..."}}

`positions` is the next offset to read per partition. The table's position is that of its newest stamp, with one
exception: RESTORE goes back to older rows, and so the stamps after the version that it restored no longer count.

**The guard.** Delta skips a write whose txnVersion is at or below the one that it last saw from that txnAppId, and says
nothing. RESTORE brings back rows but not that number, so a version counted from the position would be skipped for ever
after. The guard here is the number of the commit about to be made, the table's version plus one. Table versions never
go back and no commit lands before its guard, so a new guard is above each that was used before; and two exports that
planned from the same version have the same guard, of which Delta lets one pass. `check_committed` notices the skip.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from delta.tables import DeltaTable
from pyspark.sql import Row, SparkSession

from storage_engine.errors import ConflictError

PLAIN_TABLE_PROPERTIES = {
    # Readers that are not Spark (deltalake, DuckDB, Polars) read version 1 of the protocol; these would raise it.
    "delta.enableDeletionVectors": "false",
    "delta.columnMapping.mode": "none",
    "delta.checkpointPolicy": "classic",
}
"""Set when a table is created, because a session's defaults may say otherwise."""

_KEY = "lakelog"


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

    @property
    def app_id(self) -> str:
        """Guards are counted per exported table; the dead letters of several tables may lie in one."""
        return f"{_KEY}:{self.topic_id}:{self.table_id}"

    def to_json(self) -> str:
        positions = {str(partition): offset for partition, offset in sorted(self.positions.items())}
        return json.dumps({_KEY: {**self.__dict__, "positions": positions}})

    @classmethod
    def from_json(cls, user_metadata: str | None) -> Stamp | None:
        """None if these metadata are not ours: everybody may write what they like there."""
        try:
            document = json.loads(user_metadata or "null")
        except ValueError:
            return None
        if not isinstance(document, dict) or _KEY not in document:
            return None
        fields: dict[str, Any] = document[_KEY]
        positions = {int(partition): offset for partition, offset in fields["positions"].items()}
        return cls(**{**fields, "positions": positions})


@dataclass(frozen=True)
class TableHead:
    """The newest version of a table, and the stamps that say how it came about."""

    version: int
    current: Stamp | None
    """The stamp of the rows that are there now; None if the history does not tell."""
    newest: Stamp | None
    """The last stamp written, whatever was restored since."""
    table_id: str | None = None
    """Delta's id of the table, where the newest version tells it."""

    @property
    def next_guard(self) -> int:
        return self.version + 1


def is_table(spark: SparkSession, path: str) -> bool:
    return DeltaTable.isDeltaTable(spark, path)


def read_head(spark: SparkSession, path: str, table_id: str | None = None) -> TableHead:
    """The head of the table at `path`; with a table id, only stamps of that table count."""

    def counts(stamp: Stamp) -> bool:
        return table_id is None or stamp.table_id == table_id

    [newest] = _history(spark, path, limit=1)
    stamp = Stamp.from_json(newest.userMetadata)
    if stamp is not None and counts(stamp):  # nearly always, and much cheaper than the whole history
        return TableHead(newest.version, stamp, stamp, stamp.table_id)
    return find_head(_history(spark, path), counts)


def read_table_id(spark: SparkSession, path: str) -> str:
    """Delta's id of the table at `path`, which takes a second."""
    details = DeltaTable.forPath(spark, path).detail().select("id").first()
    assert details is not None, "a table has exactly one row there"
    table_id: str = details["id"]
    return table_id


def find_head(history: Iterable[Row], counts: Callable[[Stamp], bool]) -> TableHead:
    """Decides on a history, newest entry first, with version, operation, operationParameters and userMetadata.

    A RESTORE to a timestamp does not record which version that was: the position of the rows is then unknown.
    """
    entries = list(history)
    newest = current = None
    counted_to: int | None = entries[0].version  # the newest version whose stamp counts; None: not known
    for entry in entries:
        stamp = Stamp.from_json(entry.userMetadata)
        if stamp is not None and counts(stamp):
            newest = newest or stamp
            if counted_to is not None and entry.version <= counted_to:
                current = stamp
                break
        elif entry.operation == "RESTORE" and counted_to is not None and entry.version <= counted_to:
            restored = entry.operationParameters.get("version")
            counted_to = None if restored is None else int(restored)
    return TableHead(entries[0].version, current, newest)


def check_committed(spark: SparkSession, path: str, planned_from: int, stamp: Stamp) -> Row:
    """The history entry of the commit that carries `stamp`.

    Args:
        planned_from: the table's version when the positions of the stamp were decided.

    Raises:
        ConflictError: if Delta skipped the write because another export came first, or if the table was restored
            between the decision and the commit.
    """
    since: list[Row] = []
    entries = _history(spark, path, limit=1)
    if Stamp.from_json(entries[0].userMetadata) != stamp or entries[0].version != planned_from + 1:
        entries = [entry for entry in _history(spark, path) if entry.version > planned_from]
    for entry in entries:
        if Stamp.from_json(entry.userMetadata) == stamp:
            since = [other for other in entries if planned_from < other.version < entry.version]
            break
    else:
        raise ConflictError(
            path,
            f"another export committed after version {planned_from}, and this one was not written",
            "Nothing is lost: start it again.",
        )
    for other in since:
        if other.operation == "RESTORE":
            raise ConflictError(
                path,
                f"the table was restored in version {other.version}, while an export that had been planned before "
                f"was on its way to version {entry.version}",
                f"Restore it to version {other.version} and start the export again.",
            )
    return entry


def _history(spark: SparkSession, path: str, limit: int | None = None) -> list[Row]:
    columns = ["version", "operation", "operationParameters", "operationMetrics", "userMetadata"]
    table = DeltaTable.forPath(spark, path)
    history = table.history() if limit is None else table.history(limit)
    return history.select(*columns).collect()
