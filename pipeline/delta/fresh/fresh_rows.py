"""Makes a fresh view of an exported table without Spark.

The records of the log are read and decoded when the view is made, and stay in memory. The rows of the table are read
batch by batch, each time a program reads the view. The view always reads the table at the same version, so it always
has the same rows. Reads fail after VACUUM has deleted the files of this version.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, Schema

from lakelog.delta.rows import open_rows
from lakelog.delta_options import delta_options
from pipeline.delta.export_plan import Export, ExportMode, TableSchemaError
from pipeline.delta.fresh.snapshot import ExportedHead, FreshRequest, Snapshot, read_whole, snapshot_of
from pipeline.delta.rows.row_columns import STALE_SINCE, nullable_columns, table_columns
from pipeline.delta.rows.row_decoding import decode_batches, decoded_columns
from pipeline.delta.without_spark.deltalake_errors import deltalake_errors
from pipeline.delta.without_spark.plain_table import PlainTable, why_not_readable, without_comments
from pipeline.delta.without_spark.row_changes import IncrementRecords, RecordPlace, stale_array
from pipeline.delta.without_spark.topic_records import batch_reader
from storage_engine.errors import UnsupportedError
from storage_engine.progress import NO_PROGRESS

_FAILED, _REMEDY = "cannot be read", "Nothing was changed."


@dataclass(frozen=True)
class _Changes:
    """How the records of the log change the rows of the table.

    replaced: the keys whose rows of the table are left out.
    stale: by key, the new stale place of a row of the table that is kept.
    rebuilt: by partition, an offset. The rows at and above this offset are left out if their keys are not in `met`.
    """

    replaced: pa.Array = field(default_factory=lambda: pa.array([], pa.binary()))
    stale: Mapping[bytes, RecordPlace] = field(default_factory=dict)
    rebuilt: Mapping[int, int] = field(default_factory=dict)
    met: pa.Array = field(default_factory=lambda: pa.array([], pa.binary()))


class FreshRows:
    """The rows that a table would have after an export of all committed records.

    version: the version of the table.
    positions: by partition, the offset after the last record of the view.
    schema: the columns.
    """

    def __init__(
        self, snapshot: Snapshot, table: DeltaTable, schema: pa.Schema, new: pa.Table, changes: _Changes
    ) -> None:
        self.version = snapshot.head.version
        self.positions: Mapping[int, int] = snapshot.plan.positions
        self.schema = schema
        self._path = snapshot.export.table
        self._table = table
        self._new = new
        self._changes = changes

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows: first those of the table, then those of the log.

        Raises:
            StorageError: the table cannot be read.
        """
        with deltalake_errors(self._path, _REMEDY, _FAILED):
            for batch in open_rows(self._table):
                kept = self._changed(batch)
                if kept.num_rows:
                    yield _with_columns(kept, self.schema)
        yield from self._new.to_batches()

    def _changed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        changes = self._changes
        gone = pc.is_in(batch["_key"], changes.replaced)
        for partition, start in changes.rebuilt.items():
            here = pc.and_(pc.equal(batch["_partition"], partition), pc.greater_equal(batch["_offset"], start))
            gone = pc.or_(gone, pc.and_(here, pc.invert(pc.is_in(batch["_key"], changes.met))))
        batch = batch.filter(pc.invert(gone))
        if not changes.stale:
            return batch
        before = batch[STALE_SINCE.name].to_pylist()
        places = [changes.stale.get(key) for key in batch["_key"].to_pylist()]
        after = [old if place is None else _as_dict(place) for old, place in zip(before, places, strict=True)]
        number = batch.schema.get_field_index(STALE_SINCE.name)
        return batch.set_column(number, batch.schema.field(number), pa.array(after, batch.schema.field(number).type))


def _as_dict(place: RecordPlace) -> dict[str, object]:
    moment = pa.scalar(place.timestamp, pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    return {"partition": place.partition, "offset": place.offset, "timestamp": moment.as_py()}


def _with_columns(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The rows with these columns; a column that they do not have is null."""
    there = set(rows.schema.names)
    arrays = [
        rows[each.name].cast(each.type) if each.name in there else pa.nulls(rows.num_rows, each.type) for each in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def fresh_rows(request: FreshRequest) -> FreshRows:
    """A fresh view of a table.

    Raises:
        LostRecordsError: retention deleted records that no export had read.
        ExportRefusedError: there is no such table, or it does not fit the topic or the schema.
        ConfigError: the schema is missing, or names no model.
        UnsupportedError: only Spark can read the table.
        ConflictError: the log changed again and again while it was read.
        StorageError: the table or the log cannot be read.
        UnknownTopicError: the topic was deleted.
    """
    opened: dict[int, DeltaTable] = {}

    def plan(exported: ExportedHead) -> Snapshot:
        opened.clear()
        table = _open(request.table, exported.head.version)
        opened[exported.head.version] = table
        columns = pa.schema(table.schema().to_arrow()).names
        return snapshot_of(request, exported, columns, table.metadata().partition_columns)

    return read_whole(request, plan, lambda snapshot: _read(request, snapshot, opened[snapshot.head.version]))


def _open(path: str, version: int) -> DeltaTable:
    with deltalake_errors(path, _REMEDY, _FAILED):
        table = DeltaTable(path, version=version, storage_options=delta_options(path))
        why = why_not_readable(table)
    if why is not None:
        raise UnsupportedError(path, f"{why}, which needs Spark", "Read the table with lakelog.table(spark, ...).")
    return table


def _read(request: FreshRequest, snapshot: Snapshot, table: DeltaTable) -> FreshRows:
    export, plan = snapshot.export, snapshot.plan
    schema = _view_columns(export, table)
    first, end = plan.to_read
    batches = batch_reader(request.storage, request.chain, snapshot.state, NO_PROGRESS)(first, end, first)
    decoded = pa.Table.from_batches(decode_batches(batches, export), schema=decoded_columns(export))
    if export.mode is not ExportMode.UPSERT:
        made, changes = decoded.filter(decoded["_reason"].is_null()), _Changes()
    else:
        made, changes = _upserted(PlainTable(request.table, table, table_columns(export)), decoded, plan.rebuilt)
    new = pa.Table.from_batches([_with_columns(each, schema) for each in made.to_batches()], schema=schema)
    return FreshRows(snapshot, table, schema, new, changes)


def _upserted(table: PlainTable, decoded: pa.Table, rebuilt: Mapping[int, int]) -> tuple[pa.Table, _Changes]:
    """The new and replaced rows, and the changes of the table's other rows."""
    records = IncrementRecords(decoded)
    rows = table.rows_of(records.by_key)
    found = records.decide(rows)
    written = decoded.take(pa.array(list(found.written), pa.int64()))
    made = written.append_column(STALE_SINCE, stale_array(found.written.values()))
    replaced = {*made["_key"].to_pylist(), *found.deleted} & rows.keys()
    keys = (pa.array(list(each), pa.binary()) for each in (replaced, records.by_key))
    return made, _Changes(next(keys), found.stale, rebuilt, next(keys))


def _view_columns(export: Export, table: DeltaTable) -> pa.Schema:
    """The columns that the next export gives the table: those of the table, and then the new ones of the model. The same
    applies to the fields inside columns.

    Raises:
        TableSchemaError: a column of the model has another type in the table.
    """
    there = pa.schema(table.schema().to_arrow())
    if export.mode is ExportMode.UPSERT and STALE_SINCE.name not in there.names:
        raise TableSchemaError(
            export.table, f"has no column {STALE_SINCE.name}", "Run the export, which adds the column."
        )
    wanted = nullable_columns(table_columns(export))
    columns = []
    for each in there:
        kind = _merged(each.type, wanted.field(each.name).type) if each.name in wanted.names else each.type
        if kind is None:
            raise TableSchemaError(
                export.table,
                f"column {each.name} has another type than the same field in the schema",
                "Run the export first; the export widens the column if that is possible. Or read with"
                " lakelog.table(spark, ...).",
            )
        columns.append(pa.field(each.name, kind))
    return pa.schema(columns + [each for each in wanted if each.name not in there.names])


def _merged(there: pa.DataType, wanted: pa.DataType) -> pa.DataType | None:
    """The type of a table's column after the next export; None if the model has another type.

    Args:
        there: the type in the table.
        wanted: the type in the model, nullable in all parts.
    """
    if pa.types.is_struct(there) and pa.types.is_struct(wanted):
        new = {field.name: field for field in wanted}
        kinds = [(each.name, _merged(each.type, new.pop(each.name).type) if each.name in new else each.type)
                 for each in there]  # fmt: skip
        if any(kind is None for _, kind in kinds):
            return None
        return pa.struct([*(pa.field(name, kind) for name, kind in kinds), *new.values()])
    if pa.types.is_list(there) and pa.types.is_list(wanted):
        kind = _merged(there.value_type, wanted.value_type)
        return None if kind is None else pa.list_(wanted.value_field.with_type(kind))
    if pa.types.is_map(there) and pa.types.is_map(wanted):
        key, kind = _merged(there.key_type, wanted.key_type), _merged(there.item_type, wanted.item_type)
        return None if key is None or kind is None else pa.map_(key, kind)
    return wanted if _delta_type(there) == _delta_type(wanted) else None


def _delta_type(kind: pa.DataType) -> object:
    return without_comments(Schema.from_arrow(pa.schema([pa.field("column", kind)])))
