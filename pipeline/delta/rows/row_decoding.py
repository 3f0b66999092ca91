"""Decodes batches of records into rows of an exported table. Spark's executors use this module, and so does an export that
runs without Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.delta.chain.row_digest import row_digests
from pipeline.delta.export_plan import Export, ExportMode
from pipeline.delta.rows.row_columns import (
    CHANGE_TYPE,
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


def decoded_columns(export: Export) -> pa.Schema:
    """The columns of decoded records."""
    return pa.schema([*row_columns(export), *HANDLING])


def decode_batches(batches: Iterable[pa.RecordBatch], export: Export) -> Iterator[pa.RecordBatch]:
    """Decode records. A record that cannot be decoded is returned unchanged, for its dead letter.

    Args:
        batches: records with the columns of Spark's Kafka source.
    """
    columns = decoded_columns(export)
    keyed = export.mode.needs_key
    for batch in batches:
        values = batch.column("value").cast(pa.binary())
        fields, errors = _decoded(export, values)
        key_fields, key_errors = _decoded_keys(export, batch.column("key").cast(pa.binary()), values)
        reasons: list[str | None] = [None] * batch.num_rows
        details: list[str | None] = [None] * batch.num_rows
        for error in (*key_errors, *errors):
            reasons[error.row], details[error.row] = UNDECODABLE, error.reason
        missing = batch.column("key") if keyed else values
        if missing.null_count and (keyed or export.schema is not None):
            for row, is_missing in enumerate(missing.is_null().to_pylist()):
                if is_missing:
                    reasons[row], details[row] = (NO_KEY if keyed else NO_VALUE), None
        reason = pa.array(reasons, pa.string())
        bad = reason.is_valid()
        changes = [pc.if_else(values.is_null(), DELETED, UPSERTED)] if CHANGE_TYPE.name in columns.names else []
        made = _with_types(
            [*fields, *key_fields, *(batch.column(name) for name in carried_columns(columns)), *changes], columns
        )
        digests = [row_digests(made)] if DIGEST.name in columns.names else []
        arrays = [
            *made.columns,
            *digests,
            reason,
            pa.array(details, pa.string()),
            _where(bad, values),
            _where(bad, batch.column("headers")),
            values.is_null(),
        ]
        yield _with_types(arrays, columns)


def _with_types(arrays: list[pa.Array], columns: pa.Schema) -> pa.RecordBatch:
    """The arrays as the first of these columns."""
    columns = pa.schema(list(columns)[: len(arrays)])
    return pa.record_batch([array.cast(each.type) for array, each in zip(arrays, columns, strict=True)], schema=columns)


def _decoded(export: Export, values: pa.BinaryArray) -> tuple[list[pa.Array], list[DecodeError]]:
    """The columns of the schema, and the values that do not fit it. Without a schema, a value is its own column."""
    if export.schema is None:
        return [values], []
    decoded = export.schema.decoder.decode(values)
    return decoded.columns.columns, decoded.errors


def _decoded_keys(
    export: Export, keys: pa.BinaryArray, values: pa.BinaryArray
) -> tuple[list[pa.Array], list[DecodeError]]:
    """The columns of the keys, and the keys that do not fit their schema. In an upsert, a tombstone deletes the row of its
    key whether or not the key can be decoded."""
    if export.key_schema is None:
        return [], []
    decoded = export.key_schema.decoder.decode(keys)
    if export.mode is not ExportMode.UPSERT:
        return decoded.columns.columns, decoded.errors
    return decoded.columns.columns, [each for each in decoded.errors if values[each.row].is_valid]


def _where(mask: pa.BooleanArray, array: pa.Array) -> pa.Array:
    """`array` with null in each row in which `mask` is false. The function uses indices, because if_else does not
    support all nested types."""
    return array.take(pa.array([row if kept else None for row, kept in enumerate(mask.to_pylist())], pa.int64()))
