"""Changes an exported table from outside, as a faulty program, a faulty disk or a person would do it.

Each tampering returns whether it could be made on this table. If it returns False, it has changed nothing.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.delta.chain.stamp_chain import seal_of
from pipeline.delta.export_plan import ExportMode
from pipeline.delta.proof.exported_table import open_exported_table
from pipeline.delta.proof.findings import Findings
from pipeline.delta.proof.stamp_order import compare_stamps
from pipeline.delta.rows.row_columns import UNDECODABLE
from pipeline.delta.table_stamp import NextLink
from storage_engine.record.partitioner import partition_keys
from tests.pipeline.delta.proof.tampering.histories import History
from tests.pipeline.delta.proof.tampering.models import goods
from tests.pipeline.delta.proof.tampering.writing import append_nothing, edit_commit, overwrite, path_of, write_rows
from tests.roots.delta_tables import is_table, table_at

Tampering = Callable[[History], bool]
_COORDINATES = ("_key", "_partition", "_offset", "_timestamp")


# --- Changed rows -----------------------------------------------------------------------------------------------


def places_in_log(history: History) -> set[tuple[int, int]]:
    """The partition and the offset of each record that the log still has."""
    ranges = history.topic.ranges()
    first = {number: each.log_start_offset for number, each in ranges.items()}
    end = {number: each.last_stable_offset for number, each in ranges.items()}
    waiting = [number for number in ranges if first[number] < end[number]]
    batches = history.topic.reader()({each: first[each] for each in waiting}, {each: end[each] for each in waiting}, {})
    return {
        place
        for batch in batches
        for place in zip(batch["partition"].to_pylist(), batch["offset"].to_pylist(), strict=True)
    }


def provable(history: History) -> list[int]:
    """The indices of the rows that the log, or the chain, can prove."""
    rows = history.rows()
    if history.stamp.chain is not None:
        return list(range(len(rows)))
    if "partitions" in history.steps:
        return []
    there = places_in_log(history)
    return [number for number, row in enumerate(rows) if (row["_partition"], row["_offset"]) in there]


def other_value(value: Any, chance: random.Random) -> Any:
    """A value of the same type that differs a little."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, float):
        if math.isnan(value) or value == 0.0:
            return chance.choice([-value, 1e-9]) if value == 0.0 else chance.choice([0.0, math.inf])
        return chance.choice([-value, math.nextafter(value, math.inf), math.nan])
    if isinstance(value, Decimal):
        return value + Decimal(1).scaleb(int(value.as_tuple().exponent))
    if isinstance(value, int):
        return value + chance.choice([1, -1])
    if isinstance(value, datetime):
        return value + timedelta(microseconds=1)
    if isinstance(value, date):
        return value + timedelta(days=1)
    if isinstance(value, str):
        return value + chance.choice([" ", "\0", "x"])
    if isinstance(value, bytes):
        return value + b"x"
    if isinstance(value, dict):
        name = chance.choice(sorted(value))
        return {**value, name: other_value(value[name], chance)} if value[name] is not None else None
    if isinstance(value, list):
        return _other_list(value, chance)
    raise AssertionError(f"a value of type {type(value)}")


def _other_list(value: list[Any], chance: random.Random) -> list[Any] | None:
    if not value:
        return None
    if value[0] is None or chance.random() < 0.4:
        return value[1:]
    return [other_value(value[0], chance), *value[1:]]


def change_value(history: History) -> bool:
    """Another value in one column of a row: a little different, null instead of a value, or a value instead of null.

    Without digests and without the older commits of Delta's log, a null can also mean that the row is older than the column.
    """
    rows, chosen = history.rows(), provable(history)
    null_is_shown = history.stamp.chain is not None or "clean-up of the log" not in history.steps
    if not chosen:
        return False
    row = rows[history.chance.choice(chosen)]
    names = [name for name in row if name not in ("_digest", "_stale_since", *_COORDINATES)]
    name = history.chance.choice(names)
    if row[name] is None:
        row[name] = {
            "price": Decimal("0.00"), "ratio": math.nan, "flag": False, "note": "", "tags": [], "parts": [],
            "part": {"weight": None, "made": None},
        }.get(name, rows[chosen[0]][name])  # fmt: skip
        if row[name] is None:
            return False
    else:
        becomes_null = null_is_shown and history.chance.random() < 0.3
        row[name] = None if becomes_null else other_value(row[name], history.chance)
        if row[name] is None and not null_is_shown:
            return False
    write_rows(history, rows)
    return True


def change_coordinate(history: History) -> bool:
    """Another key, partition, offset or timestamp of a row, or null."""
    rows, chosen = history.rows(), provable(history)
    if not chosen:
        return False
    row = rows[history.chance.choice(chosen)]
    name = history.chance.choice(_COORDINATES)
    if row[name] is None or not _is_proved(history):
        return False
    row[name] = None if history.chance.random() < 0.3 else other_value(row[name], history.chance)
    write_rows(history, rows)
    return True


def swap_values(history: History) -> bool:
    """The values of two rows are exchanged."""
    rows, chosen = history.rows(), provable(history)
    if len(chosen) < 2:
        return False
    one, other = history.chance.sample(chosen, 2)
    if rows[one]["number"] == rows[other]["number"] or None in (rows[one]["number"], rows[other]["number"]):
        return False
    names = [name for name in rows[one] if name not in ("_stale_since", "_change_type", *_COORDINATES)]
    rows[one], rows[other] = (
        {**rows[each], **{name: rows[source][name] for name in names}} for each, source in ((one, other), (other, one))
    )
    write_rows(history, rows)
    return True


# --- Lost and additional rows -----------------------------------------------------------------------------------


def _is_proved(history: History) -> bool:
    """Whether the chain or the log proves the whole table."""
    return history.stamp.chain is not None or history.has_whole_log


def lose(history: History) -> bool:
    """Rows are lost: one, those of a range of offsets, or those of a partition."""
    rows = history.rows()
    if not rows or not _is_proved(history):
        return False
    row = history.chance.choice(rows)
    last = row["_offset"] + history.chance.choice([0, 3, 10**9])
    first = history.chance.choice([row["_offset"], 0])
    gone = [
        number for number, each in enumerate(rows)
        if each["_partition"] == row["_partition"] and first <= each["_offset"] <= last
    ]  # fmt: skip
    if history.chance.random() < 0.3:
        history.table.delete(f"_partition = {row['_partition']} AND _offset BETWEEN {first} AND {last}")
    else:
        write_rows(history, [each for number, each in enumerate(rows) if number not in gone])
    return True


def double(history: History) -> bool:
    """A row is there two or three times."""
    rows = history.rows()
    if not rows:
        return False
    row = history.chance.choice(rows)
    write_rows(history, [*rows, *[row] * history.chance.choice([1, 2])])
    return True


def resurrect(history: History) -> bool:
    """A row that was deleted or replaced is there again."""
    if not _is_proved(history):
        return False
    rows = history.rows()
    names = set(history.table.to_pyarrow_table().schema.names)
    there = {(row["_partition"], row["_offset"]) for row in rows}
    older = [
        row for version in history.versions for row in version
        if (row["_partition"], row["_offset"]) not in there and set(row) == names
    ]  # fmt: skip
    if not older:
        return False
    row = history.chance.choice(older)
    others = [each for each in rows if each["_key"] != row["_key"]] if history.chance.random() < 0.5 else rows
    write_rows(history, [*others, row])
    return True


def other_key(history: History) -> bool:
    """A row of a key that was never in the topic."""
    rows = history.rows()
    if not rows or not _is_proved(history):
        return False
    write_rows(history, [*rows, {**history.chance.choice(rows), "_key": b"a key of nobody"}])
    return True


def change_staleness(history: History) -> bool:
    """A stale row looks current, or the other way round."""
    rows = history.rows()
    if not rows or not history.has_whole_log or history.topic.export.mode is not ExportMode.UPSERT:
        return False
    row = history.chance.choice(rows)
    place = {"partition": row["_partition"], "offset": row["_offset"], "timestamp": row["_timestamp"]}
    row["_stale_since"] = place if row["_stale_since"] is None else None
    write_rows(history, rows)
    return True


def lose_letter(history: History) -> bool:
    """A dead letter is lost. Only the log shows it, and only if each record must be a row or a dead letter."""
    path = history.topic.export.dead_letters
    if history.topic.export.mode is ExportMode.UPSERT or not is_table(path) or history.topic.prove().answer != "equal":
        return False
    there = places_in_log(history)
    letters = table_at(path).to_pyarrow_table(columns=["partition", "offset", "reason"]).to_pylist()
    letters = [
        each for each in letters
        if (each["partition"], each["offset"]) in there and each["reason"] == UNDECODABLE
        and each["offset"] < history.stamp.positions.get(each["partition"], 0)
    ]  # fmt: skip
    if not letters:
        return False
    lost = history.chance.choice(letters)
    table_at(path).delete(f"partition = {lost['partition']} AND offset = {lost['offset']}")
    return True


# --- Columns ----------------------------------------------------------------------------------------------------


def narrow(history: History) -> bool:
    """A column has another type, although no value is lost, or with fewer digits or as text."""
    if not history.rows() or not _is_proved(history):
        return False
    table = history.table.to_pyarrow_table()
    name, kind = history.chance.choice([
        ("number", pa.int32()), ("number", pa.string()), ("price", pa.decimal128(20, 1)), ("price", pa.float64()),
        ("moment", pa.date32()), ("day", pa.string()), ("_offset", pa.int32()), ("flag", pa.int32()),
        ("ratio", pa.float32()), ("_key", pa.string()),
    ])  # fmt: skip
    place = table.schema.get_field_index(name)
    overwrite(history, table.set_column(place, name, table[name].cast(kind, safe=False)), None)
    return True


def drop_column(history: History) -> bool:
    """A column with values is missing."""
    table = history.table.to_pyarrow_table()
    names = [name for name in table.column_names if table[name].null_count < len(table)]
    if not names or history.stamp.chain is None:
        return False
    overwrite(history, table.drop_columns([history.chance.choice(names)]), None)
    return True


# --- Files and commits ------------------------------------------------------------------------------------------


def older_file(history: History) -> bool:
    """The newest export's files are replaced by files that an earlier version had."""
    versions = [rows for rows in history.versions if rows and repr(rows) != repr(history.rows())]
    if not versions or not _is_proved(history) or not history.table.file_uris():
        return False
    before = history.chance.choice(versions)
    schema = history.table.to_pyarrow_table().schema
    if set(before[0]) != set(schema.names):
        return False
    files = history.table.file_uris()
    for file in files:
        path_of(file).unlink()
        pq.write_table(schema.empty_table(), path_of(file))
    pq.write_table(pa.Table.from_pylist(before, schema=schema), path_of(files[0]))
    return True


def damaged_file(history: History) -> bool:
    """A file of the table is cut, empty, missing or something else."""
    files = history.table.file_uris()
    if not files:
        return False
    file = path_of(history.chance.choice(files))
    content = file.read_bytes()
    kind = history.chance.choice(["cut", "empty", "missing", "other"])
    if kind == "missing":
        file.unlink()
    else:
        file.write_bytes({"cut": content[: len(content) // 2], "empty": b"", "other": b"PAR1" * 100}[kind])
    return True


def restored(history: History) -> bool:
    """An older version is restored."""
    version = history.some_version()
    if version is None:
        return False
    history.table.restore(version)
    return history.head.current != history.head.newest


def restored_with_newest_stamp(history: History) -> bool:
    """An older version is restored, and then a commit without rows says that all records are exported."""
    version = history.some_version()
    if version is None or not _is_proved(history):
        return False
    stamp, rows = history.stamp, repr(history.rows())
    history.table.restore(version)
    is_same = repr(history.rows()) == rows
    append_nothing(history, stamp)
    return not is_same


def skipped_records(history: History) -> bool:
    """An export without rows moves the position over records, of one partition or of all."""
    if not _shows_missing_rows(history):
        return False
    history.append(fits=True)
    before = history.stamp.positions
    ends = {number: each.last_stable_offset for number, each in history.topic.ranges().items()}
    waiting = [number for number, end in ends.items() if before.get(number, 0) < end]
    chosen = history.chance.choice([waiting[:1], waiting])
    history.topic.append((_new_key(history, chosen[0]), goods(history.chance)), partition=chosen[0])
    positions = {**before, **{each: history.topic.ranges()[each].last_stable_offset for each in chosen}}
    stamp = replace(history.next_stamp(), positions=positions)
    append_nothing(history, NextLink(history.head).add_to(stamp) if history.stamp.chain is not None else stamp)
    return True


def forge_stamp(history: History) -> bool:
    """A stamp is changed in its commit. Its seal fits only if the log has a newer stamp, which names the right seal."""
    has_chain = history.stamp.chain is not None
    versions = [version for version in _stamped(history) if version > 0]
    version = versions[0]
    if has_chain and len(versions) > 1 and history.chance.random() < 0.6:
        version = history.chance.choice(versions[1:])
    partition = str(history.chance.choice(sorted(history.stamp.positions)))

    def change(actions: list[dict[str, Any]]) -> None:
        (info,) = (action["commitInfo"] for action in actions if "commitInfo" in action)
        document = json.loads(info["userMetadata"])
        stamp = document["lakelog"]
        links = list(stamp["chain"]["partitions"].values()) if has_chain else []
        if links and history.chance.random() < 0.5:
            link = history.chance.choice(links)
            link["after"] = [link.get("after", [0])[0] + 1, f"{7:032x}"]
        else:
            stamp["positions"][partition] = stamp["positions"].get(partition, 0) + history.chance.choice([1, 1000])
        if has_chain and version != versions[0]:
            stamp["chain"]["seal"] = seal_of(stamp)
        info["userMetadata"] = json.dumps(document)

    if not has_chain and not (_shows_missing_rows(history) and _has_fitting_record(history, int(partition))):
        return False
    edit_commit(history, version, change)
    return True


def damage_stamp(history: History) -> bool:
    """A field of a stamp has another value, perhaps of another type, as after a fault of a disk."""
    if history.stamp.chain is None:
        return False

    def change(actions: list[dict[str, Any]]) -> None:
        (info,) = (action["commitInfo"] for action in actions if "commitInfo" in action)
        document = json.loads(info["userMetadata"])
        place = document["lakelog"]
        chosen = history.chance.choice(sorted(place))
        while chosen == "chain" or (
            place[chosen] and isinstance(place[chosen], dict) and history.chance.random() < 0.8
        ):
            place = place[chosen]
            chosen = history.chance.choice(sorted(place))
        values: list[Any] = [None, "x", [], {}, -1, 10**30, True]
        place[chosen] = history.chance.choice([each for each in values if each != place[chosen]])
        info["userMetadata"] = json.dumps(document)

    edit_commit(history, history.chance.choice([each for each in _stamped(history) if each > 0]), change)
    return True


def _shows_missing_rows(history: History) -> bool:
    """Whether the log, or the chain, shows that a record must have a row. If partitions were added, a tombstone in another
    partition may have deleted the row of an upsert."""
    is_upsert = history.topic.export.mode is ExportMode.UPSERT
    return history.stamp.chain is not None or not is_upsert or "partitions" not in history.steps


def _new_key(history: History, partition: int) -> bytes:
    """A key without records, which belongs to the partition. A key that is appended to another partition could have had a
    tombstone in its own partition."""
    keys = [b"no other key %d" % number for number in range(100)]
    partitions = partition_keys(pa.array(keys, pa.binary()), len(history.topic.ranges()), 0)
    numbers: list[int] = partitions.tolist()
    return keys[numbers.index(partition)]


def _has_fitting_record(history: History, partition: int) -> bool:
    """Append a record at the table's position, so that the log shows that a higher position is wrong."""
    end = history.topic.ranges()[partition].last_stable_offset
    if history.stamp.positions.get(partition, 0) < end:
        return False
    history.topic.append((_new_key(history, partition), goods(history.chance)), partition=partition)
    return True


def _stamped(history: History) -> list[int]:
    """The versions of the chain's stamps, the newest first."""
    table = open_exported_table(history.topic.export, None)
    return compare_stamps(table.commits, history.stamp, None, Findings())


TAMPERINGS: dict[str, Tampering] = {
    "value changed": change_value,
    "coordinate changed": change_coordinate,
    "values swapped": swap_values,
    "rows lost": lose,
    "row doubled": double,
    "row resurrected": resurrect,
    "row of another key": other_key,
    "staleness changed": change_staleness,
    "dead letter lost": lose_letter,
    "type narrowed": narrow,
    "column dropped": drop_column,
    "older files": older_file,
    "file damaged": damaged_file,
    "RESTORE": restored,
    "RESTORE, then newest stamp": restored_with_newest_stamp,
    "records skipped": skipped_records,
    "stamp forged": forge_stamp,
    "stamp damaged": damage_stamp,
}
