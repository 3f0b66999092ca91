"""Decodes batches of records into rows of an exported table. Spark's executors use this module, and so does an export that
runs without Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.delta.chain.row_digest import row_digests
from pipeline.delta.export_plan import Export, ExportMode
from pipeline.delta.layout_columns import as_stored, unfit_texts
from pipeline.delta.rows.row_columns import (
    CHANGE_TYPE,
    COUNTS,
    DELETED,
    DIGEST,
    HANDLING,
    NO_KEY,
    NO_VALUE,
    UNDECODABLE,
    UPSERTED,
    carried_columns,
    row_columns,
)
from schemas.decoder import DecodeError

_GROUP_BYTES = 128 << 20
"""About the largest size of the rows of which only the newest of each key are kept at once."""


def decoded_columns(export: Export) -> pa.Schema:
    """The columns of decoded records."""
    return pa.schema([*row_columns(export), *HANDLING])


def counted_columns(export: Export) -> pa.Schema:
    """The columns of decoded records that are counted."""
    return pa.schema([*decoded_columns(export), *COUNTS])


def decode_batches(batches: Iterable[pa.RecordBatch], export: Export) -> Iterator[pa.RecordBatch]:
    """Decode records. A record that cannot be decoded is returned unchanged, for its dead letter.

    Args:
        batches: records with the columns of Spark's Kafka source.
    """
    for batch in batches:
        yield _with_digests(_decode(batch, export), decoded_columns(export))


def counted(batches: Iterable[pa.RecordBatch], export: Export) -> Iterator[pa.RecordBatch]:
    """Decode records. Each row represents one record, also in the columns COUNTS.

    Args:
        batches: as for `decode_batches`.
    """
    for batch in decode_batches(batches, export):
        yield _with_counts(batch, np.ones(batch.num_rows, np.int64), batch["_tombstone"])


def newest_of_keys(batches: Iterable[pa.RecordBatch], export: Export) -> Iterator[pa.RecordBatch]:
    """Decode records, and leave out records that have a newer record of their key in the same partition: all of them, if
    the other records need at most half of _GROUP_BYTES, else most of them. The columns COUNTS of the newer record count
    them. Records that cannot be decoded are never left out.

    Args:
        batches: as for `decode_batches`; the records of each partition are in the order of the log.
    """
    group: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        rows = _decode(batch, export)
        group.append(_with_counts(rows, np.ones(rows.num_rows, np.int64), rows["_tombstone"]))
        size += rows.nbytes
        if size >= _GROUP_BYTES:
            group = _newest(group)
            size = sum(each.nbytes for each in group)
            if size > _GROUP_BYTES // 2:
                yield from (_with_digests(each, counted_columns(export)) for each in group)
                group, size = [], 0
    if group:
        yield from (_with_digests(each, counted_columns(export)) for each in _newest(group))


def _newest(group: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    # Very large columns stay in several parts.
    return [_newest_rows(rows) for rows in pa.Table.from_batches(group).combine_chunks().to_batches()]


def _newest_rows(rows: pa.RecordBatch) -> pa.RecordBatch:
    is_bad = rows["_reason"].is_valid()
    good = pc.indices_nonzero(pc.invert(is_bad))
    columns = ("_key", "_partition", *COUNTS.names)
    keys = pa.table({"row": good, **{name: rows[name].take(good) for name in columns}})
    by_key = keys.group_by(["_key", "_partition"], use_threads=False)
    found = by_key.aggregate([("row", "max"), *((name, "sum") for name in COUNTS.names)])
    bad = pc.indices_nonzero(is_bad)
    kept = rows.take(pa.concat_arrays([*found["row_max"].chunks, bad]))
    counts = [pa.concat_arrays([*found[f"{each}_sum"].chunks, rows[each].take(bad)]) for each in COUNTS.names]
    return pa.record_batch([*kept.columns[: -len(counts)], *counts], schema=rows.schema)


def _with_counts(rows: pa.RecordBatch, records: npt.NDArray[np.int64], nulls: pa.Array) -> pa.RecordBatch:
    arrays = [*rows.columns, pa.array(records), nulls.cast(pa.int64())]
    return pa.record_batch(arrays, schema=pa.schema([*rows.schema, *COUNTS]))


def _decode(batch: pa.RecordBatch, export: Export) -> pa.RecordBatch:
    """The rows of records, without their digests."""
    columns = pa.schema([each for each in decoded_columns(export) if each.name != DIGEST.name])
    values = batch.column("value").cast(pa.binary())
    fields, errors = _decoded(export, values, batch.column("headers"))
    key_fields, key_errors = _decoded_keys(export, batch, values)
    reasons: dict[int, tuple[str, str | None]] = {
        error.row: (UNDECODABLE, error.reason) for error in (*errors, *key_errors)
    }
    keyed = export.mode.needs_key
    for name, array in zip(columns.names, [*fields, *key_fields], strict=False):
        for row, problem in unfit_texts(array, name, export).items():
            if values[row].is_valid or export.mode is not ExportMode.UPSERT:
                reasons.setdefault(row, (UNDECODABLE, f"{name}: {problem}"))
    missing = batch.column("key") if keyed else values
    if missing.null_count and (keyed or export.schema is not None):
        for row in pc.indices_nonzero(missing.is_null()).to_pylist():
            reasons[row] = NO_KEY if keyed else NO_VALUE, None
    changes = [pc.if_else(values.is_null(), DELETED, UPSERTED)] if CHANGE_TYPE.name in columns.names else []
    bad = pa.array(sorted(reasons), pa.int64())
    arrays = [
        *fields,
        *key_fields,
        *(batch.column(name) for name in carried_columns(columns)),
        *changes,
        *(_spread(bad, [reasons[row][part] for row in bad.to_pylist()], batch.num_rows) for part in range(2)),
        _only(bad, values),
        _only(bad, batch.column("headers")),
        values.is_null(),
    ]
    arrays = [as_stored(array.cast(each.type), each.name, export) for array, each in zip(arrays, columns, strict=True)]
    return pa.record_batch(arrays, schema=columns)


def _with_digests(rows: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    """The rows with these columns: the digest is added, if it is one of them."""
    if DIGEST.name not in columns.names:
        return rows.cast(columns)
    number = columns.get_field_index(DIGEST.name)
    digests = row_digests(rows.select(columns.names[:number]))
    arrays = [*rows.columns[:number], digests, *rows.columns[number:]]
    return pa.record_batch(arrays, schema=columns)


def _decoded(export: Export, values: pa.BinaryArray, headers: pa.ListArray) -> tuple[list[pa.Array], list[DecodeError]]:
    """The columns of the schema, and the values that do not fit it. Without a schema, a value is its own column."""
    if export.schema is None:
        return [values], []
    decoded = export.schema.decode(values, headers)
    return decoded.columns.columns, decoded.errors


def _decoded_keys(
    export: Export, batch: pa.RecordBatch, values: pa.BinaryArray
) -> tuple[list[pa.Array], list[DecodeError]]:
    """The columns of the keys, and the keys that do not fit their schema. In an upsert, a tombstone deletes the row of its
    key whether or not the key can be decoded."""
    if export.key_schema is None:
        return [], []
    decoded = export.key_schema.decode(batch.column("key").cast(pa.binary()), batch.column("headers"))
    if export.mode is not ExportMode.UPSERT:
        return decoded.columns.columns, decoded.errors
    return decoded.columns.columns, [each for each in decoded.errors if values[each.row].is_valid]


def _spread(rows: pa.Array, texts: Sequence[str | None], count: int) -> pa.Array:
    """A column of this length with the texts in these rows, and null in all other rows."""
    return pa.array(texts, pa.string()).take(_numbers(rows, count))


def _only(rows: pa.Array, array: pa.Array) -> pa.Array:
    """`array` with null in all rows but these. The function uses indices, because if_else does not support all nested
    types."""
    if not len(rows):
        return pa.nulls(len(array), array.type)
    return array.take(rows).take(_numbers(rows, len(array)))


def _numbers(rows: pa.Array, count: int) -> pa.Array:
    """For each of so many rows, its place in `rows`; null if it is not there."""
    if not len(rows):
        return pa.nulls(count, pa.int64())
    places = np.zeros(count, np.int64)
    is_missing = np.ones(count, np.bool_)
    wanted = rows.to_numpy()
    places[wanted] = np.arange(len(wanted))
    is_missing[wanted] = False
    return pa.array(places, mask=is_missing)
