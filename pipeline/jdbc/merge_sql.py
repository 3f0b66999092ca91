"""The SQL that turns staged records into rows of the target. All functions of this module are pure.

The first row of a window is `< 2` and not `= 1`, because MySQL 8.0.12 sometimes finds no row with `= 1` (decision 0054).

The rules are the same as in an export to Delta (`pipeline.delta.rows.export_rows`, `pipeline.delta.table_writing`). The
database applies these rules in two steps. `deciding_records` finds, for each key, the newest record of the increment
that can be decoded or is a tombstone. `changes` compares this record with the row of the target, and decides what
happens:

    write     the row gets the values of the record
    delete    the record is a tombstone
    stale     only the columns _stale_... change: a newer record of the key cannot be decoded
    no row    a record cannot be decoded, and the key has neither a row nor another record
    keep      nothing happens
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipeline.delta.export_plan import Export
from pipeline.delta.rows.newer_sql import is_newer, of_row
from pipeline.delta.rows.row_columns import row_columns
from pipeline.jdbc.database import Column, Database
from pipeline.jdbc.staging import Staging
from pipeline.jdbc.target_tables import STALE_COLUMNS, letters_table

_STALE = ("t._stale_partition", "t._stale_offset", "t._stale_since")


def deciding_records(database: Database, export: Export, staging: Staging, tasks: Sequence[int]) -> str:
    """Fills the table `keys`: the record of the increment that decides each key. Within a partition, the record with the
    higher offset is newer; between partitions, the record with the higher timestamp."""
    columns = _listed(database, [*row_columns(export).names, "_tombstone"])
    return (
        f"INSERT INTO {_name(database, staging, 'keys')} ({columns}) SELECT {columns} FROM ("
        "SELECT p.*, row_number() OVER (PARTITION BY _key ORDER BY _timestamp DESC, _partition DESC) AS _among FROM ("
        "SELECT r.*, row_number() OVER (PARTITION BY _key, _partition ORDER BY _offset DESC) AS _within"
        f" FROM {_name(database, staging, 'rows')} r WHERE {_of_tasks('r', tasks)}"
        ") p WHERE _within < 2) a WHERE _among < 2"
    )


def changes(database: Database, staging: Staging, tasks: Sequence[int]) -> str:
    """Fills the table `changes`, with each key that has a record."""
    keys, target = _name(database, staging, "keys"), database.table(database.target.table)
    letters = (
        f"SELECT * FROM {_name(database, staging, 'letters')} x WHERE _key IS NOT NULL AND {_of_tasks('x', tasks)}"
    )
    row, there, bad = of_row("d"), of_row("t"), of_row("b")
    stays = f"t._stale_since IS NOT NULL AND {is_newer(_STALE, row)} AND (b._key IS NULL OR {is_newer(bad, _STALE)})"
    kept = [
        f"CASE WHEN {stays} THEN t.{name} ELSE b.{of_bad} END"
        for name, of_bad in zip(STALE_COLUMNS.names, ("_timestamp", "_partition", "_offset"), strict=True)
    ]
    wins = f"d._key IS NOT NULL AND (t._key IS NULL OR {is_newer(row, there, '>=')})"
    is_deleted = f"d._tombstone = {database.true}"
    return (
        f"INSERT INTO {_name(database, staging, 'changes')}"
        f" (_key, _action, _was_current, {', '.join(STALE_COLUMNS.names)})"
        f" WITH met AS ({letters}), first_bad AS ({_first_bad(keys, target)})"
        f" SELECT k._key, CASE WHEN {wins} AND NOT ({is_deleted}) THEN 'write'"
        f" WHEN {wins} AND t._key IS NOT NULL THEN 'delete' WHEN {wins} THEN 'keep'"
        f" WHEN t._key IS NOT NULL AND b._key IS NOT NULL AND (t._stale_since IS NULL OR {is_newer(_STALE, bad)})"
        " THEN 'stale' WHEN t._key IS NULL AND b._key IS NOT NULL THEN 'no row' ELSE 'keep' END,"
        f" CASE WHEN t._key IS NOT NULL AND t._stale_since IS NULL THEN 1 ELSE 0 END, {', '.join(kept)}"
        f" FROM (SELECT _key FROM {keys} UNION SELECT _key FROM met) k LEFT JOIN {keys} d ON d._key = k._key"
        f" LEFT JOIN {target} t ON t._key = k._key LEFT JOIN first_bad b ON b._key = k._key"
    )


def _first_bad(keys: str, target: str) -> str:
    """For each key, the oldest record that cannot be decoded and is newer than the row that the key will have. This query
    takes the record with the lowest offset in each partition, and then the oldest of these records."""
    newer = (
        f"(d._key IS NULL OR {is_newer(of_row('m'), of_row('d'))}) AND"
        f" (t._key IS NULL OR {is_newer(of_row('m'), of_row('t'))})"
    )
    return (
        "SELECT _key, _partition, _offset, _timestamp FROM (SELECT w.*, row_number() OVER"
        " (PARTITION BY _key ORDER BY _timestamp, _partition) AS _among FROM (SELECT m._key, m._partition, m._offset,"
        " m._timestamp, row_number() OVER (PARTITION BY m._key, m._partition ORDER BY m._offset) AS _within FROM met m"
        f" LEFT JOIN {keys} d ON d._key = m._key LEFT JOIN {target} t ON t._key = m._key WHERE {newer}"
        ") w WHERE _within < 2) v WHERE _among < 2"
    )


def delete_rebuilt(database: Database, staging: Staging, rebuilt: Mapping[int, int]) -> str:
    """Deletes the rows at and above these offsets whose keys have no record.

    rebuilt: by partition, the first offset that is read again; not empty.
    """
    again = " OR ".join(f"(_partition = {partition} AND _offset >= {start})" for partition, start in rebuilt.items())
    table = database.table(database.target.table)
    # PostgreSQL would compare each row with each key if this were NOT IN.
    keys = f"SELECT 1 FROM {_name(database, staging, 'changes')} c WHERE c._key = {table}._key"
    return f"DELETE FROM {table} WHERE ({again}) AND NOT EXISTS ({keys})"


def delete_rows(database: Database, staging: Staging) -> str:
    return f"DELETE FROM {database.table(database.target.table)} WHERE _key IN ({_keys(database, staging, 'delete')})"


def write_rows(database: Database, export: Export, staging: Staging, columns: Mapping[str, Column]) -> str:
    """Inserts or replaces rows.

    columns: all columns of the target. A column that is not in the model becomes null. If such a column cannot be null,
        the database fills it in new rows, and an old row keeps its value.
    """
    names = row_columns(export).names
    written = {name: f"d.{database.name(name)}" for name in names} | {name: f"c.{name}" for name in STALE_COLUMNS.names}
    written |= {
        name: "NULL"
        for name, column in columns.items()
        if column.can_be_set_to_null and not any(database.same_name(name, each) for each in written)
    }
    changed = [name for name in written if name != "_key"]
    # Without WHERE, MariaDB and MySQL could take the ON of the last clause for the ON of the join.
    return (
        f"INSERT INTO {database.table(database.target.table)} ({_listed(database, written)}) SELECT"
        f" {', '.join(written.values())} FROM {_name(database, staging, 'changes')} c JOIN"
        f" {_name(database, staging, 'keys')} d ON d._key = c._key WHERE c._action = 'write' {database.upsert(changed)}"
    )


def mark_stale(database: Database, staging: Staging) -> str:
    target, found = database.table(database.target.table), _name(database, staging, "changes")
    values = ", ".join(
        f"{name} = (SELECT c.{name} FROM {found} c WHERE c._key = {target}._key)" for name in STALE_COLUMNS.names
    )
    return f"UPDATE {target} SET {values} WHERE _key IN ({_keys(database, staging, 'stale')})"


def keep_letters(database: Database, export: Export, staging: Staging, tasks: Sequence[int]) -> str:
    """Inserts the dead letters, except those that are there already because their offsets are read again."""
    table = database.table(letters_table(database.target))
    partition, offset = database.name("partition"), database.name("offset")
    topic_id = database.literal(export.topic_id)
    names = ("reason", "detail", "topic", "topic_id", "partition", "offset", "timestamp", "key", "value", "headers")
    return (
        f"INSERT INTO {table} ({_listed(database, names)}) SELECT l._reason, l._detail, {database.literal(export.topic)},"
        f" {topic_id}, l._partition, l._offset, l._timestamp, l._whole_key, l._value, l._headers"
        f" FROM {_name(database, staging, 'letters')} l WHERE {_of_tasks('l', tasks)} AND NOT EXISTS (SELECT 1 FROM"
        f" {table} x WHERE x.topic_id = {topic_id} AND x.{partition} = l._partition AND x.{offset} = l._offset)"
    )


def count_changes(database: Database, staging: Staging) -> str:
    """Counts the keys of each action, and those of them whose row was current."""
    table = _name(database, staging, "changes")
    return f"SELECT _action, count(*), sum(_was_current) FROM {table} GROUP BY _action"


def _keys(database: Database, staging: Staging, action: str) -> str:
    return f"SELECT _key FROM {_name(database, staging, 'changes')} WHERE _action = '{action}'"


def _name(database: Database, staging: Staging, part: str) -> str:
    return database.table(staging.name(part))


def _listed(database: Database, names: Sequence[str] | Mapping[str, str]) -> str:
    return ", ".join(database.name(each) for each in names)


def _of_tasks(alias: str, tasks: Sequence[int]) -> str:
    """SQL that is true for the rows of the attempts that succeeded."""
    return f"{alias}._task IN ({', '.join(str(each) for each in tasks)})" if tasks else "1 = 0"
