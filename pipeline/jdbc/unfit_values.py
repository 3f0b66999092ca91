"""Turns records that a database cannot store into dead letters.

A database has limits that the model does not have: PostgreSQL stores no U+0000 in texts. MariaDB and MySQL store
neither NaN nor infinity. The key of a row must not be longer than a limit. A timestamp with a time zone can be in the
year 0 or 10000 in UTC, but an export stores only the years 1 to 9999. A record beyond these limits is treated like a
record that cannot be decoded. So one value does not stop the export, and the row of its key becomes stale.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.delta.rows.row_columns import COORDINATES, HANDLING
from pipeline.jdbc.database import LONGEST_KEY, Database

UNFIT = "does not fit"
"""The reason of such a dead letter."""
_NOT_FIELDS = {*COORDINATES.names, *HANDLING.names}


def with_unfit_values(database: Database, decoded: pa.RecordBatch, records: pa.RecordBatch) -> pa.RecordBatch:
    """The decoded records. Records that the database cannot store become dead letters.

    Args:
        records: the same records before they were decoded.
    """
    reasons, details = decoded["_reason"], decoded["_detail"]
    for detail, rows in _problems(database, decoded):
        is_new = pc.and_(rows, reasons.is_null())
        reasons = pc.if_else(is_new, UNFIT, reasons)
        details = pc.if_else(is_new, detail, details)
    changed = pc.and_(reasons.is_valid(), decoded["_reason"].is_null())
    if not pc.any(changed).as_py():
        return decoded
    # A tombstone has no value, and headers of a dead letter are taken from the record.
    chosen = pa.array([row if each else None for row, each in enumerate(changed.to_pylist())], pa.int64())
    values = pc.coalesce(decoded["_value"], records["value"].cast(pa.binary()).take(chosen))
    headers = records["headers"].cast(decoded["_bad_headers"].type)
    places = [row if each else None for row, each in enumerate(reasons.is_valid().to_pylist())]
    replaced = {
        "_reason": reasons,
        "_detail": details,
        "_value": values,
        "_bad_headers": headers.take(pa.array(places, pa.int64())),
    }
    columns = [replaced.get(name, decoded[name]) for name in decoded.schema.names]
    return pa.record_batch(columns, schema=decoded.schema)


def _problems(database: Database, decoded: pa.RecordBatch) -> list[tuple[str, pa.BooleanArray]]:
    """The kinds of values that the database cannot store, and the rows with such values."""
    too_long = pc.greater(pc.binary_length(decoded["_key"]), LONGEST_KEY).fill_null(False)
    problems = [(f"the key has more than {LONGEST_KEY} bytes", too_long)]
    fields = [name for name in decoded.schema.names if name not in _NOT_FIELDS]
    found = [(name, database.unfit(decoded[name])) for name in fields]
    return problems + [(f"{each[0]}: {name}", each[1]) for name, each in found if each is not None]
