"""Reads and writes a Delta table with the deltalake library, at the version from which an export was planned.

Only plain tables are opened. A plain table needs version 1 of Delta's protocol for readers, and at most version 2 for
writers. It has exactly the expected columns, in any order, the expected partition columns, and no constraints. If files
are removed, the table must also have no files with timestamps of type INT96, and no files whose path has letters that
are not ASCII. Spark exports to all other tables.

**The guard.** Spark skips a commit if an earlier commit with the same application id has the same version, or a higher
version. The library deltalake checks less: it compares a new commit only with commits that were made after the table
was opened. deltalake refuses the new commit if one of these commits has the same application id. So before each commit,
this module compares the guard with the last guard in the opened version of the table.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import (
    ColumnProperties,
    CommitProperties,
    DeltaTable,
    Schema,
    Transaction,
    WriterProperties,
    write_deltalake,
)
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from lakelog.delta.rows import DELETION_VECTORS, open_rows
from lakelog.delta_options import delta_options
from pipeline.delta.files.row_files import TableFile, WrittenFile
from pipeline.delta.files.skipping_columns import names_only_exact_bounds
from pipeline.delta.rows.row_columns import COORDINATES, DIGEST, STALE_SINCE, nullable_columns
from pipeline.delta.table_properties import (
    CATALOG_PROPERTY,
    DEAD_LETTER_PROPERTIES,
    DELETION_VECTORS_PROPERTY,
    SKIPPING_PROPERTY,
)
from pipeline.delta.table_stamp import Stamp
from pipeline.delta.without_spark.deltalake_errors import deltalake_errors
from pipeline.delta.without_spark.row_changes import TableRow, places_of, stale_places
from pipeline.delta.without_spark.table_opening import create_table
from storage_engine.errors import ConflictError
from storage_engine.storage import Storage
from storage_engine.storage.file_object import ReadableObject
from storage_engine.storage.storage_opening import open_storage

_PLAIN_PATH = re.compile(r"[A-Za-z0-9_.=-][A-Za-z0-9_.=/-]*")
"""A path of a file in the folder of the table that all writers write in the same way into Delta's log. A clone has files of
another folder. deltalake encodes many other letters, and Spark encodes fewer."""
_PARTITION_PATH = re.compile(r"(?!/)[!-9;-~]+")
"""The same for a table with partitions: a value in the name of a folder can have more letters, which are encoded."""
_READER_VERSION = 1
_WRITER_VERSION = 2
_FEATURES_WITH_VECTORS = {DELETION_VECTORS, "invariants", "appendOnly"}
"""The features of a table with deletion vectors. Version 2 of the protocol for writers includes the others."""
_KNOWN_PROPERTIES = {
    *DEAD_LETTER_PROPERTIES, "delta.logRetentionDuration", "delta.deletedFileRetentionDuration",
    "delta.enableExpiredLogCleanup", "delta.targetFileSize", "delta.tuneFileSizesForRewrites",
    "delta.minReaderVersion", "delta.minWriterVersion", CATALOG_PROPERTY, SKIPPING_PROPERTY,
}  # fmt: skip
"""Properties that do not change what a writer must do."""
_HARMLESS = {DELETION_VECTORS_PROPERTY: "false", "delta.columnMapping.mode": "none"}
"""Properties that do not change what a writer must do if they have these values."""
_COMPRESSION: Final = "SNAPPY"  # the default of deltalake for writers without properties
_WRITER = WriterProperties(compression=_COMPRESSION)
_DIGEST_WRITER = WriterProperties(
    compression=_COMPRESSION,
    column_properties={DIGEST.name: ColumnProperties(dictionary_enabled=False, statistics_enabled="NONE")},
)
"""Digests are all different, so a dictionary of them would only take time."""
_THREADS = 8
"""How many footers of files are read at the same time. The threads wait for the storage most of the time."""


def why_not_plain(table: DeltaTable, *, with_vectors: bool = False) -> str | None:
    """Why the table is not plain, as the rest of a sentence; None if it is plain. deltalake writes only to plain tables.

    Args:
        with_vectors: a table counts as plain, too, if deletion vectors are the only difference.
    """
    protocol, metadata = table.protocol(), table.metadata()
    features = {*(protocol.writer_features or ())}
    has_vectors = protocol.reader_features == [DELETION_VECTORS] and features <= _FEATURES_WITH_VECTORS
    is_old = protocol.min_reader_version == _READER_VERSION and protocol.min_writer_version <= _WRITER_VERSION
    if not is_old and not (with_vectors and has_vectors):
        return (
            f"needs reader version {protocol.min_reader_version} and writer version {protocol.min_writer_version} of"
            " Delta's protocol"
        )
    properties = metadata.configuration
    changed = [name for name, harmless in _HARMLESS.items() if properties.get(name, harmless) != harmless]
    if with_vectors and has_vectors:
        changed = [name for name in changed if name != DELETION_VECTORS_PROPERTY]
    if SKIPPING_PROPERTY in properties:
        columns = pa.schema(table.schema().to_arrow())
        if not names_only_exact_bounds(properties[SKIPPING_PROPERTY], columns):
            changed.append(SKIPPING_PROPERTY)
    for name in [*sorted(properties.keys() - _KNOWN_PROPERTIES), *changed]:
        return f"has the property {name} = {properties[name]}"
    return None


def why_not_readable(table: DeltaTable) -> str | None:
    """Why deltalake must not read the table, as the rest of a sentence; None if deltalake may read it."""
    protocol = table.protocol()
    if protocol.min_reader_version == _READER_VERSION:
        return None
    if protocol.reader_features is not None:
        others = sorted({*protocol.reader_features} - {DELETION_VECTORS})
        return f"needs the feature {', '.join(others)} of Delta's protocol" if others else None
    return f"needs reader version {protocol.min_reader_version} of Delta's protocol"


def have_int96(storage: Storage, files: Iterable[tuple[str, int]]) -> bool:
    """Whether a file has timestamps as INT96, as Spark writes them by default.

    Arrow turns INT96 into nanoseconds. So if rows were written again, timestamps after the year 2262 would become wrong.

    Args:
        storage: the storage that begins at the table.
        files: names and sizes of files below the table.
    """
    with ThreadPoolExecutor(_THREADS) as threads:
        return any(threads.map(lambda each: _is_int96(pq.ParquetFile(ReadableObject(storage, *each)).schema), files))


def _is_int96(footer: pq.ParquetSchema) -> bool:
    return any(footer.column(number).physical_type == "INT96" for number in range(len(footer)))


def has_unencoded_paths(table: DeltaTable) -> bool:
    """Whether deltalake would write the path of a file in another way than the writer of the file did.

    deltalake names a removed file with its own encoding of the path. If Delta's log then has two different paths, the old
    file stays in the table, and its rows are doubled. In the folders of partitions, Spark leaves only letters unencoded
    that are not ASCII. In a table without partitions, another program can have chosen the names.
    """
    plain = _PARTITION_PATH if table.metadata().partition_columns else _PLAIN_PATH
    return not all(plain.fullmatch(path) for path in table.get_add_actions()["path"].to_pylist())


def has_columns(table: DeltaTable, columns: pa.Schema, partition_by: Sequence[str] | None) -> bool:
    """Whether the table has these columns, in any order and with any comments (`pipeline.delta.comments`). Spark adds the
    column of a new field after the other columns.

    Args:
        partition_by: its partition columns; None: they may be any.
    """
    if partition_by is not None and table.metadata().partition_columns != list(partition_by):
        return False
    return _fields(table.schema()) == _fields(Schema.from_arrow(nullable_columns(columns)))


def _fields(columns: Schema) -> dict[str, object]:
    """The JSON of each column without its comment, by name."""
    fields = without_comments(columns)["fields"]
    return {each["name"]: each for each in fields}


def without_comments(columns: Schema) -> dict[str, Any]:
    """The JSON of columns, without their comments."""
    found: dict[str, Any] = json.loads(
        columns.to_json(), object_hook=lambda item: {name: item[name] for name in item if name != "comment"}
    )
    return found


class PlainTable:
    """A table at one version. A commit that does not fit this version raises a ConflictError."""

    def __init__(self, path: str, table: DeltaTable, columns: pa.Schema) -> None:
        self._path = path
        self._table = table
        self._columns = columns
        self._writer = _DIGEST_WRITER if DIGEST.name in columns.names else _WRITER

    @classmethod
    def open(
        cls,
        path: str,
        version: int | None,
        columns: pa.Schema,
        partition_by: Sequence[str] | None = (),
        *,
        knows_files: bool = False,
    ) -> PlainTable | None:
        """The table at a version, or at its newest version; None if it is not a plain table with these columns and
        partition columns.

        Args:
            partition_by: None: the partition columns may be any.
            knows_files: the caller has opened a version with the same files before, so their footers are not read again.

        Raises:
            StorageError: the table cannot be read.
        """
        with deltalake_errors(path, "Nothing was exported."):
            table = DeltaTable(path, version=version, storage_options=delta_options(path))
            fits = why_not_plain(table) is None and has_columns(table, columns, partition_by)
            changes_files = STALE_SINCE.name in columns.names and not knows_files
            if not fits or (changes_files and has_unencoded_paths(table)):
                return None
        opened = cls(path, table, pa.schema([columns.field(each.name) for each in table.schema().fields]))
        if changes_files and have_int96(open_storage(path), [(each.name, each.size) for each in opened.files]):
            return None
        return opened

    @classmethod
    def create(
        cls, path: str, columns: pa.Schema, properties: Mapping[str, str], partition_by: Sequence[str] = ()
    ) -> PlainTable:
        """Create an empty table.

        Raises:
            ConflictError: another process has created the table.
            StorageError: the table cannot be written.
        """
        if not create_table(path, nullable_columns(columns), properties, partition_by):
            raise conflict(path)
        with deltalake_errors(path, "Nothing was exported."):
            table = DeltaTable(path, version=0, storage_options=delta_options(path))
        return cls(path, table, columns)

    @property
    def table_id(self) -> str:
        """Delta's id of the table."""
        return str(self._table.metadata().id)

    @property
    def partition_by(self) -> list[str]:
        """The columns by which the table is partitioned."""
        return self._table.metadata().partition_columns

    def rows_of(self, keys: Collection[bytes]) -> dict[bytes, TableRow]:
        """By key, the place of the row's record; keys without a row are missing."""
        wanted = pa.array(keys, pa.binary())
        digest = [name for name in self._columns.names if name == DIGEST.name]
        found = self._rows([*COORDINATES.names, STALE_SINCE.name, *digest], lambda rows: pc.is_in(rows["_key"], wanted))
        places = places_of(found["_partition"], found["_offset"], found["_timestamp"])
        since = stale_places(found[STALE_SINCE.name].combine_chunks())
        digests = found[DIGEST.name].to_pylist() if digest else [None] * len(found)
        return {
            key: TableRow(*row) for key, *row in zip(found["_key"].to_pylist(), places, since, digests, strict=True)
        }

    def letters_below(self, positions: Mapping[int, int], table_id: str) -> dict[tuple[int, int], bool]:
        """By partition and offset, whether the dead letter is open; all dead letters below these positions. This table is
        a dead-letter table.

        Args:
            table_id: the exported table. Dead letters that name no table are included.
        """

        def is_below(rows: pa.RecordBatch) -> pa.BooleanArray:
            below = pa.repeat(pa.scalar(False), rows.num_rows)
            for partition, position in positions.items():
                here = pc.and_(pc.equal(rows["partition"], partition), pc.less(rows["offset"], position))
                below = pc.or_(below, here)
            return pc.and_(below, pc.fill_null(pc.equal(rows["table_id"], table_id), True))

        found = self._rows(["partition", "offset", "table_id", "outcome"], is_below).sort_by("outcome")  # nulls last
        places = zip(found["partition"].to_pylist(), found["offset"].to_pylist(), strict=True)
        return dict(zip(places, found["outcome"].is_null().to_pylist(), strict=True))

    def _rows(self, columns: list[str], are_wanted: Callable[[pa.RecordBatch], pa.BooleanArray]) -> pa.Table:
        """The rows for which a function is true. Arrow itself cannot filter by statistics of a binary column."""
        with deltalake_errors(self._path, "Nothing was exported."):
            rows = open_rows(self._table, columns)
            found = [batch.filter(are_wanted(batch)) for batch in rows]
        return pa.Table.from_batches(found, schema=rows.schema)

    def append(self, rows: pa.Table, stamp: Stamp, guard: int) -> None:
        """Append rows with the columns of the table. An append without rows is a commit, too.

        Args:
            stamp: the metadata and the application id of the commit.
            guard: the version of the application id.

        Raises:
            ConflictError: the guard was committed before, or another writer changed the table meanwhile.
            StorageError: the table cannot be written.
        """
        with _conflicts(self._path), deltalake_errors(self._path, "Nothing was exported."):
            properties = self._commit(stamp, guard)
            write_deltalake(
                self._table, rows.select(self._columns.names).cast(self._columns), mode="append", commit_properties=properties,
                writer_properties=self._writer,
            )  # fmt: skip

    @property
    def files(self) -> list[TableFile]:
        """The files of this version."""
        found = pa.table(self._table.get_add_actions(flatten=True))
        names = self.partition_by
        texts = [found[f"partition.{name}"].cast(pa.string()).to_pylist() for name in names]
        files = zip(found["path"].to_pylist(), found["size_bytes"].to_pylist(), *texts, strict=True)
        return [TableFile(unquote(path), size, tuple(zip(names, each, strict=True))) for path, size, *each in files]

    def change_files(
        self,
        files: Sequence[WrittenFile],
        stamp: Stamp,
        removed: Sequence[TableFile] = (),
        *,
        retries: int | None = None,
    ) -> None:
        """Commit files that were written into the folder of the table. Without files, this is a commit, too.

        Args:
            removed: files of this version, which the commit removes.
            retries: how often the commit is tried again after commits of others that do not conflict with it; None: the
                default of deltalake.

        Raises:
            ConflictError: as for `append`.
            StorageError: the table cannot be written.
        """
        rows, size = sum(each.rows for each in files), sum(each.size for each in files)
        metrics = {"numFiles": len(files), "numOutputRows": rows, "numOutputBytes": size}
        if removed:
            metrics["numRemovedFiles"] = len(removed)
        now_ms = time.time_ns() // 1_000_000
        actions: list[AddAction | RemoveAction] = [
            AddAction(each.name, each.size, each.partition_values, each.modified_ms, data_change=True, stats=each.stats)
            for each in files
        ]
        actions += [RemoveAction(each.name, True, now_ms, each.size, dict(each.partition_values)) for each in removed]
        with _conflicts(self._path), deltalake_errors(self._path, "Nothing was exported."):
            properties = self._commit(stamp, stamp.version, metrics)
            properties.max_commit_retries = retries
            columns = Schema.from_arrow(nullable_columns(self._columns))
            self._table.create_write_transaction(
                actions, "append", columns, self.partition_by, commit_properties=properties
            )

    @property
    def has_no_rows(self) -> bool:
        return not self._table.file_uris()

    def _commit(self, stamp: Stamp, guard: int, metrics: Mapping[str, int] | None = None) -> CommitProperties:
        committed = self._table.transaction_version(stamp.app_id)
        if committed is not None and committed >= guard:
            raise conflict(self._path)
        about: dict[str, Any] = {"userMetadata": stamp.to_json()}
        if metrics is not None:  # as Spark records them
            about["operationMetrics"] = {name: str(value) for name, value in metrics.items()}
        return CommitProperties(custom_metadata=about, app_transactions=[Transaction(stamp.app_id, guard)])


@contextmanager
def _conflicts(path: str) -> Iterator[None]:
    try:
        yield
    except CommitFailedError as error:
        raise conflict(path) from error


def conflict(path: str) -> ConflictError:
    """The error of an export that another writer has overtaken."""
    return ConflictError(
        path, "another writer changed the table during the export", "Nothing is lost: start the job again."
    )
