"""Reads the rows of a Delta table with the deltalake library.

A table without deletion vectors is read as a dataset of Arrow, file by file. Arrow cannot apply deletion vectors, so a
table with deletion vectors is read by deltalake's own engine. In both cases, the columns have the types of the table.

If a file is damaged, Arrow raises an error, but Arrow's threads continue to read other files ahead through deltalake. If
the process ends while such a read waits for the storage, Python stops the thread inside deltalake's Rust code. Then the
process dies with status 139, or does not end, although the error was already printed. This was measured with deltalake
1.6.6 and pyarrow 26.0.1: if other files took 0.4 s to open, 10 of 14 processes died, and 2 did not end; with files in
memory, all 13 processes ended normally. Without reading ahead, 4 of 4 processes ended normally, but reads from a store
would be slow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyarrow.dataset import Expression, ParquetReadOptions

DELETION_VECTORS = "deletionVectors"
"""Delta's name of the feature."""


def read_options() -> ParquetReadOptions:
    """How Arrow reads the files of a table. Older tables have timestamps as INT96, which Arrow reads as nanoseconds by
    default. Nanoseconds end in the year 2262."""
    from pyarrow.dataset import ParquetReadOptions  # imports pandas, which takes longer than a run that reads nothing

    return ParquetReadOptions(coerce_int96_timestamp_unit="us")


def has_deletion_vectors(table: DeltaTable) -> bool:
    """Whether files of the table may have deletion vectors."""
    return DELETION_VECTORS in (table.protocol().reader_features or ())


def open_rows(
    table: DeltaTable, columns: Sequence[str] | None = None, wanted: Expression | None = None
) -> pa.RecordBatchReader:
    """The rows of a table. They are read while the caller takes the batches.

    Args:
        columns: the columns to read; None: all columns.
        wanted: a filter; None: all rows.
    """
    if not has_deletion_vectors(table):
        dataset = table.to_pyarrow_dataset(parquet_read_options=read_options())
        return dataset.scanner(columns=None if columns is None else list(columns), filter=wanted).to_reader()
    schema = pa.schema(table.schema().to_arrow())
    names = schema.names if columns is None else list(columns)
    found = pa.schema([schema.field(name) for name in names])
    return pa.RecordBatchReader.from_batches(found, _scanned(table, found, wanted))


def count_rows(table: DeltaTable) -> int:
    """The number of rows of a table."""
    if not has_deletion_vectors(table):
        return int(table.to_pyarrow_dataset().count_rows())
    return sum(batch.num_rows for batch in open_rows(table, table.schema().to_arrow().names[:1]))


def _scanned(table: DeltaTable, schema: pa.Schema, wanted: Expression | None) -> Iterator[pa.RecordBatch]:
    needed = pa.schema(table.schema().to_arrow()) if wanted is not None else schema
    for batch in pa.RecordBatchReader.from_stream(table.scan(columns=needed.names)):
        rows = pa.Table.from_batches([batch]).cast(needed)
        if wanted is not None:
            rows = rows.filter(wanted).select(schema.names)
        yield from rows.to_batches()
