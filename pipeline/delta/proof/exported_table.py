"""Reads an exported table for a proof: its rows, its position, and its dead letters."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable, Schema

from lakelog.delta.rows import count_rows, open_rows
from lakelog.delta_options import delta_options
from pipeline.delta.chain.stamp_chain import Chain
from pipeline.delta.export_plan import Export, ExportRefusedError, TableSchemaError
from pipeline.delta.proof.compared_rows import AddedColumns, LaterColumns
from pipeline.delta.proof.slices import Slice
from pipeline.delta.proof.stamp_order import with_predecessors
from pipeline.delta.rows.field_paths import Field, FieldPath, fields_in_json, outermost
from pipeline.delta.rows.row_columns import COORDINATES, DIGEST, nullable_columns, table_columns
from pipeline.delta.table_history import Commit, DeltaLog, find_head, replaces_all_rows, stamp_in
from pipeline.delta.table_stamp import (
    Began,
    Stamp,
    TableHead,
    columns_left_out,
    is_of_rebuild,
    known_began,
    known_positions,
)
from pipeline.delta.without_spark.deltalake_errors import deltalake_errors
from pipeline.delta.without_spark.table_opening import open_or_none
from schemas.event_schema import model_hash

_FAILED = "cannot be read"
_REMEDY = "Nothing was changed."


@dataclass(frozen=True)
class ExportedTable:
    """A table at one version.

    columns: the columns that the table and the model have in common, with the types of the model, each nullable as in the
        table.
    all_columns: the names of all columns.
    others: columns of the table that the model does not have, and fields inside its columns. No export writes them any more.
    inner_absent: fields inside columns that only the model has.
    commits: the commits of the table's log up to this version, the newest first.
    added: which columns were added after the first export.
    open_letters: by partition, the offsets of the dead letters that are still open, sorted.
    model: the hash of the schemas of the proof.
    """

    path: str
    head: TableHead
    table: DeltaTable
    columns: pa.Schema
    all_columns: Sequence[str]
    others: Sequence[Field]
    inner_absent: frozenset[Field]
    commits: Sequence[Commit]
    added: AddedColumns
    open_letters: Mapping[int, npt.NDArray[np.int64]]
    model: str

    @property
    def positions(self) -> Mapping[int, int]:
        """The positions of the table, by partition."""
        return known_positions(self.head) or {}

    @property
    def began(self) -> Began | None:
        """How the first export began; None: the table's commits do not say it."""
        return known_began(self.head)

    @property
    def chain(self) -> Chain | None:
        """The sums of the rows' digests; None if the table has no digests, or if the chain has ended."""
        return self.head.current.chain if self.head.current is not None else None

    def export_of(self, partition: int, offset: int) -> int:
        """The number of the export that first read an offset, counted from 1; 0: an export that the table's log no longer
        has."""
        stamps, is_whole = self._exports
        return is_whole + bisect_right(stamps, offset, key=lambda stamp: stamp.positions.get(partition, 0))

    @cached_property
    def _exports(self) -> tuple[Sequence[Stamp], bool]:
        """The stamps of the exports that made the current rows, the oldest first, and whether the log has all of them."""
        if self.head.current is None:
            return (), False
        newest_first = [(commit, stamp) for commit, stamp, _ in with_predecessors(self.commits, self.head.current)]
        is_whole = self.commits[-1].version == 0 or replaces_all_rows(*newest_first[-1])
        return [stamp for _, stamp in reversed(newest_first)], is_whole

    @property
    def partition_columns(self) -> list[str]:
        """The columns by which the table is partitioned."""
        return list(self.table.metadata().partition_columns)

    @property
    def digest_type(self) -> pa.DataType | None:
        """The type of the column of digests; None if the table has no such column."""
        columns = pa.schema(self.table.schema().to_arrow())
        return columns.field(DIGEST.name).type if DIGEST.name in columns.names else None

    @property
    def made_by_delta(self) -> frozenset[str]:
        """The generated columns and the identity columns. No export knows their values."""
        made = self._with("delta.generationExpression") | self._with("delta.identity.start")
        return made.difference(self.columns.names)

    @property
    def with_default(self) -> frozenset[str]:
        """The columns that Delta fills in a row if the writer gives no value."""
        return self._with("CURRENT_DEFAULT")

    def later_columns(self, *, is_unchanged: bool) -> LaterColumns:
        """The columns that a row may not have got from its record.

        Args:
            is_unchanged: whether the digests prove that the rows are as their exports wrote them.
        """
        return LaterColumns(
            self.added, self.with_default, self.inner_absent, self._of_earlier_model(), is_unchanged=is_unchanged
        )

    def _of_earlier_model(self) -> Mapping[int, int]:
        """By partition, the offset below which another model may have decoded the record of a row."""
        found: dict[int, int] = {}
        was_restored = False
        for commit in self.commits:
            stamp = stamp_in(commit)
            was_restored |= commit.operation == "RESTORE"
            if stamp is not None and stamp.model not in ("", self.model):
                found |= {each: max(end, found.get(each, 0)) for each, end in stamp.positions.items()}
            if is_of_rebuild(commit.user_metadata) and not was_restored:
                break  # it made all older rows again
        return found

    def _with(self, key: str) -> frozenset[str]:
        return frozenset(each.name for each in self.table.schema().fields if key in (each.metadata or {}))

    def count(self) -> int:
        """The number of rows, from the statistics of the files where they have any."""
        with deltalake_errors(self.path, _REMEDY, _FAILED):
            return count_rows(self.table)

    def rows(self, part: Slice, are_wanted: Callable[[pa.RecordBatch], pa.BooleanArray] | None = None) -> pa.Table:
        """The rows of a part of the table, with the types of the model.

        Args:
            are_wanted: chooses rows of a batch; None: all rows.

        Raises:
            TableSchemaError: the values of a column do not fit the type in the model.
        """
        found = []
        for batch in self.batches(self.columns.names):
            try:
                typed = batch.cast(self.columns)
            except pa.ArrowException:
                raise self._other_types(batch.schema) from None  # Arrow's message may contain a value
            chosen = typed.filter(part.contains(typed["_key"], typed["_offset"]))
            found.append(chosen if are_wanted is None else chosen.filter(are_wanted(chosen)))
        return pa.Table.from_batches(found, schema=self.columns)

    def _other_types(self, there: pa.Schema) -> TableSchemaError:
        differing = [each for each in self.columns if there.field(each.name).type != each.type]
        named = ", ".join(f"{each.name} is {there.field(each.name).type} instead of {each.type}" for each in differing)
        return TableSchemaError(
            self.path,
            f"has columns with other types than the model, and values that do not fit: {named}",
            "Use the model with which the table was exported, or make the table again with --rebuild.",
        )

    def batches(self, names: Sequence[str], wanted: ds.Expression | None = None) -> Iterator[pa.RecordBatch]:
        """Some columns of the rows, with the types of the table.

        Args:
            wanted: a filter; None: all rows.
        """
        with deltalake_errors(self.path, _REMEDY, _FAILED):
            yield from open_rows(self.table, names, wanted)

    def is_open_letter(
        self, partitions: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        """Which of these places are open dead letters, bool of the same shape."""
        found = np.zeros(len(offsets), np.bool_)
        for partition, there in self.open_letters.items():
            here = partitions == partition
            found[here] = np.isin(offsets[here], there, assume_unique=False)
        return found


def open_exported_table(export: Export, version: int | None) -> ExportedTable:
    """The table of an export.

    Args:
        version: a version of the table; None: the newest.

    Raises:
        ExportRefusedError: there is no such table, or its position is unknown.
        StorageError: the table cannot be read.
    """
    log = DeltaLog(export.table)
    if log.newest is None:
        raise ExportRefusedError(export.table, "there is no table", "Run the export first.")
    wanted = log.newest if version is None else version
    commits = [commit for commit in log.commits() if commit.version <= wanted]
    if not commits or commits[0].version != wanted:
        raise log.without_commit(wanted)
    head = find_head(commits, lambda: commits[-1].version, lambda _: True)
    if head.current is None and not head.is_new:
        raise ExportRefusedError(
            export.table,
            "its log no longer says up to which offsets the topic was exported",
            "Run the export until it writes rows; the commit of these rows contains the offsets.",
        )
    with deltalake_errors(export.table, _REMEDY, _FAILED):
        table = DeltaTable(export.table, version=wanted, storage_options=delta_options(export.table))
        types = table.schema()
    there = [each.name for each in types.fields]
    columns = [each for each in table_columns(export) if each.name in there and each.name != DIGEST.name]
    columns = nullable_columns(pa.schema(columns))
    missing = [name for name in COORDINATES.names if name not in there]
    if missing:
        raise ExportRefusedError(
            export.table,
            f"is not an exported table: it has no column {', '.join(missing)}",
            "Check the setting that names the table.",
        )
    others: list[Field] = [name for name in there if name not in (*columns.names, DIGEST.name)]
    in_table, in_model = fields_in_json(types.to_json()), fields_in_json(Schema.from_arrow(columns).to_json())
    others += sorted(_inner(in_table - in_model))
    absent = frozenset(_inner(in_model - in_table))
    added, letters = added_columns(commits), _open_letters(export, head)
    model = model_hash(export.schema, export.key_schema)
    return ExportedTable(export.table, head, table, columns, there, others, absent, commits, added, letters, model)


def _inner(fields: Collection[Field]) -> list[FieldPath]:
    """The fields inside columns that are not listed themselves."""
    return [each for each in outermost(fields) if not isinstance(each, str)]


def added_columns(commits: Iterable[Commit]) -> AddedColumns:
    """The columns, and the fields inside columns, that were added after the first export, and the rows that may be older.
    Those that later exports left out count as added after these exports.

    Args:
        commits: the commits of the table, the newest first. The oldest may be missing.
    """
    oldest_first = list(commits)[::-1]
    stamps = [stamp_in(commit) for commit in oldest_first]
    known: frozenset[Field] = frozenset()
    is_whole = bool(oldest_first) and oldest_first[0].version == 0
    written: Mapping[int, int] | None = {} if is_whole else None
    added: dict[Field, Mapping[int, int]] = {}
    last_restore = max((at for at, each in enumerate(oldest_first) if each.operation == "RESTORE"), default=-1)
    for number, (commit, stamp) in enumerate(zip(oldest_first, stamps, strict=True)):
        # RESTORE may bring back the rows before a rebuild.
        if number > last_restore and stamp is not None and _is_rebuild(commit, stamp, written):
            added, written = {}, {}
        if commit.columns is not None:
            if written is None:  # the log does not say what was written before
                written = next((each.positions for each in stamps[number:] if each is not None), {})
            there = commit.columns | commit.inner_fields
            for name in there - known:
                if any(written.values()):
                    added[name] = written
            known = there
        if stamp is not None:
            before = written or {}
            written = {each: max(offset, before.get(each, 0)) for each, offset in stamp.positions.items()}
            added |= dict.fromkeys(columns_left_out(commit.user_metadata), written)
    return added


def _is_rebuild(commit: Commit, stamp: Stamp, written: Mapping[int, int] | None) -> bool:
    """Whether it is certain that a commit made all rows again, with all columns. The rebuilds of an older release do not
    say that they are rebuilds. An export that widens a column also replaces all rows, but it continues the chain, if
    there is one, and never moves a position.

    Args:
        written: the positions before the commit; None: not known.
    """
    if is_of_rebuild(commit.user_metadata):
        return True
    moves = written is not None and any(offset > written.get(each, 0) for each, offset in stamp.positions.items())
    return replaces_all_rows(commit, stamp) and (stamp.chain is not None or moves)


def _open_letters(export: Export, head: TableHead) -> dict[int, npt.NDArray[np.int64]]:
    with deltalake_errors(export.dead_letters, _REMEDY, _FAILED):
        letters = open_or_none(export.dead_letters)
        if letters is None:
            return {}
        there = letters.schema().to_arrow().names
        names = [name for name in ("partition", "offset", "table_id", "outcome") if name in there]
        found = open_rows(letters, names).read_all()
    if not {"partition", "offset"}.issubset(names):
        raise ExportRefusedError(
            export.dead_letters,
            "is not a table of dead letters: it has no columns partition and offset",
            "Restore the table from a backup.",
        )
    if "table_id" in names and head.table_id is not None:
        found = found.filter(pc.fill_null(pc.equal(found["table_id"], head.table_id), True))
    if "outcome" in names:
        found = found.filter(found["outcome"].is_null())
    partitions = np.array(found["partition"].to_numpy(), np.int64)
    offsets = np.array(found["offset"].to_numpy(), np.int64)
    return {int(each): np.sort(offsets[partitions == each]) for each in np.unique(partitions)}
