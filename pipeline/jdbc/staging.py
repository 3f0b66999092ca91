"""Contains the staging tables of a run, and fills them.

Each task of a run has its own connection and transactions. So no single transaction can contain the rows of all tasks.
Each task writes into staging tables, which no other program reads. Later, one transaction merges these tables into the
target:

    _lakelog_<8>_<run>_rows      records that can decide the row of a key: decoded records and tombstones
    _lakelog_<8>_<run>_letters   records that cannot be decoded or stored
    _lakelog_<8>_<run>_keys      for each key, the record of the increment that decides its row
    _lakelog_<8>_<run>_changes   what happens to the row of each key; filled in the last transaction

<8> stands for 8 digits that name the target, and <run> for 12 random digits. Spark may run a task twice. An attempt
that Spark no longer needs may continue to write. So each attempt writes a random number into its rows (`_task`). The
merge uses only the rows of attempts that succeeded.

A run holds a lock in the database, with the run's name, until its connection ends. If the next run finds tables of
another run, it tries to take the lock of that run. If the next run gets the lock, the other run is dead, and its tables
are dropped.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.delta.export_plan import Export
from pipeline.delta.rows.row_columns import decoded_fields, row_columns
from pipeline.delta.rows.row_decoding import decode_batches
from pipeline.jdbc.connecting import connected
from pipeline.jdbc.database import LONGEST_KEY, Database
from pipeline.jdbc.unfit_values import with_unfit_values
from pipeline.jdbc.value_text import within_moments
from pipeline.settings.jdbc_settings import DatabaseTarget
from storage_engine.errors import LogError

_PARTS = ("rows", "letters", "keys", "changes")
_RUN_DIGITS = 12


def _prefix(target: DatabaseTarget) -> str:
    digest = hashlib.sha256(f"{target.schema}\0{target.table}".encode()).hexdigest()
    return f"_lakelog_{digest[:8]}_"


@dataclass(frozen=True)
class Staging:
    """The names of the staging tables of one run, without the schema."""

    target: DatabaseTarget
    run: str = field(default_factory=lambda: secrets.token_hex(_RUN_DIGITS // 2))

    @property
    def lock(self) -> str:
        return f"{_prefix(self.target)}{self.run}"

    def name(self, part: str) -> str:
        return f"{self.lock}_{part}"

    @property
    def names(self) -> list[str]:
        return [self.name(part) for part in _PARTS]


def tidy_up(database: Database) -> None:
    """Drop the staging tables of dead runs. A table that is still locked, for example by a task that has not ended, is
    left for the next run."""
    prefix = _prefix(database.target)
    for run in sorted({name[len(prefix) :][:_RUN_DIGITS] for name in database.tables_like(prefix)}):
        dead = Staging(database.target, run)
        if not database.lock_run(dead.lock):
            continue
        try:
            for name in database.tables_like(f"{dead.lock}_"):
                database.run(f"DROP TABLE IF EXISTS {database.table(name)}")
        except LogError:
            continue
        finally:
            database.unlock_run(dead.lock)


def create_staging(database: Database, export: Export, staging: Staging) -> None:
    """Lock the run, and create its tables."""
    database.lock_run(staging.lock)
    flag, key, moment = database.flag_type, database.key_type, database.moment_type
    place = f"_partition integer NOT NULL, _offset bigint NOT NULL, _timestamp {moment} NOT NULL"
    fields = "".join(f"{database.name(each.name)} {database.type_of(each.type)}, " for each in decoded_fields(export))
    letters = (
        f"_task bigint NOT NULL, _reason {database.text_type}, _detail {database.text_type}, _key {key}, {place},"
        f" _whole_key {database.bytes_type}, _value {database.bytes_type}, _headers {database.text_type}"
    )
    definitions = {
        "rows": f"_task bigint NOT NULL, {fields}_key {key} NOT NULL, {place}, _tombstone {flag} NOT NULL",
        "letters": letters,
        "keys": f"{fields}_key {key} NOT NULL PRIMARY KEY, {place}, _tombstone {flag} NOT NULL",
        "changes": f"_key {key} NOT NULL PRIMARY KEY, _action varchar(8) NOT NULL, _was_current integer NOT NULL,"
        f" _stale_since {moment}, _stale_partition integer, _stale_offset bigint",
    }
    for part, columns in definitions.items():
        database.run(f"CREATE TABLE {database.table(staging.name(part))} ({columns}){database.table_options}")


def drop_staging(database: Database, staging: Staging) -> None:
    for name in staging.names:
        database.run(f"DROP TABLE IF EXISTS {database.table(name)}")


@dataclass
class Filled:
    """What one task wrote.

    task: the random number of the attempt.
    null_values: number of dead letters that are tombstones.
    reasons: number of dead letters by reason and detail.
    places: by partition, the first and the last offset of the dead letters, and their number.
    """

    task: int
    records: int = 0
    tombstones: int = 0
    null_values: int = 0
    reasons: Counter[tuple[str, str | None]] = field(default_factory=Counter)
    places: dict[int, tuple[int, int, int]] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(
            {
                "numbers": [self.task, self.records, self.tombstones, self.null_values],
                "reasons": [[*why, count] for why, count in self.reasons.items()],
                "places": [[partition, *place] for partition, place in self.places.items()],
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Filled:
        document = json.loads(text)
        task, records, tombstones, null_values = document["numbers"]
        return cls(
            task=task,
            records=records,
            tombstones=tombstones,
            null_values=null_values,
            reasons=Counter({(reason, detail): count for reason, detail, count in document["reasons"]}),
            places={partition: (first, last, count) for partition, first, last, count in document["places"]},
        )

    def add(self, decoded: pa.RecordBatch) -> None:
        """Count decoded records."""
        self.records += decoded.num_rows
        self.tombstones += pc.sum(decoded["_tombstone"]).as_py() or 0
        bad = decoded.filter(decoded["_reason"].is_valid())
        self.null_values += pc.sum(bad["_tombstone"]).as_py() or 0
        # As in an export to Delta, the error names neither the reason nor the place of a tombstone.
        self.reasons.update(zip(bad["_reason"].to_pylist(), bad["_detail"].to_pylist(), strict=True))
        shown = bad.filter(pc.invert(bad["_tombstone"]))
        for partition, offset in zip(shown["_partition"].to_pylist(), shown["_offset"].to_pylist(), strict=True):
            first, last, count = self.places.get(partition, (offset, offset, 0))
            self.places[partition] = (min(first, offset), max(last, offset), count + 1)


def fill(export: Export, staging: Staging, batches: Iterable[pa.RecordBatch]) -> Filled:
    """Decode records and write them into the staging tables. Each batch is a transaction of its own.

    Args:
        batches: records with the columns of Spark's Kafka source.

    Raises:
        LogError: the database failed, or the tables are gone because this run counts as dead.
    """
    filled = Filled(secrets.randbits(62))
    with connected(staging.target) as database:
        for batch in batches:
            (decoded,) = decode_batches([batch], export)
            if not decoded.num_rows:
                continue
            decoded = with_unfit_values(database, decoded, batch)
            decoded = decoded.set_column(
                decoded.schema.get_field_index("_timestamp"), "_timestamp", within_moments(decoded["_timestamp"])
            )
            filled.add(decoded)
            deciding = _deciding(decoded, export, filled.task)
            if deciding.num_rows:
                database.load(database.table(staging.name("rows")), deciding)
            letters = _letters(decoded.filter(decoded["_reason"].is_valid()), filled.task)
            if letters.num_rows:
                database.load(database.table(staging.name("letters")), letters)
    return filled


def _deciding(decoded: pa.RecordBatch, export: Export, task: int) -> pa.RecordBatch:
    """The rows to stage: for each key and partition, only the last record that can be decoded or is a tombstone."""
    good = decoded.filter(decoded["_reason"].is_null()).sort_by("_offset")
    numbered = pa.table(
        {"key": good["_key"], "partition": good["_partition"], "row": pa.array(range(good.num_rows), pa.int64())}
    )
    last = numbered.group_by(["key", "partition"]).aggregate([("row", "max")])["row_max"]
    rows = good.take(last.combine_chunks()).select([*row_columns(export).names, "_tombstone"])
    return rows.add_column(0, "_task", pa.repeat(pa.scalar(task), rows.num_rows))


def _letters(bad: pa.RecordBatch, task: int) -> pa.RecordBatch:
    fits = pc.less_equal(pc.binary_length(bad["_key"]), LONGEST_KEY)
    return pa.record_batch(
        {
            "_task": pa.repeat(pa.scalar(task), bad.num_rows),
            "_reason": bad["_reason"],
            "_detail": bad["_detail"],
            "_key": pc.if_else(fits, bad["_key"], pa.scalar(None, pa.binary())),
            "_partition": bad["_partition"],
            "_offset": bad["_offset"],
            "_timestamp": bad["_timestamp"],
            "_whole_key": bad["_key"],
            "_value": bad["_value"],
            "_headers": bad["_bad_headers"],
        }
    )
