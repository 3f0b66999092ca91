"""Tests that dead letters are counted by reason, from tables as ingest and export make them, and are never shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from lakelog.report.dead_letter_counts import (
    DeadLetter,
    DeadLetterKind,
    DeadLetters,
    count_dead_letters,
    newest_dead_letters,
)
from storage_engine.errors import StorageError
from tests.lakelog.report.roots import Root


def write(root: Root, kind: DeadLetterKind, rows: Sequence[Mapping[str, object]]) -> None:
    write_deltalake(root.folder / f"tables/dead_letters/{kind}/t", pa.Table.from_pylist(list(rows)), mode="append")


def test_those_of_an_ingest_are_counted_by_reason_and_query(root: Root) -> None:
    root.folder.mkdir()
    for batch in (3, 7, 5):
        rows = [{"reason": "no_key", "query_id": "a", "batch_id": batch, "value": b"secret"}] * batch
        write(
            root,
            DeadLetterKind.INGEST,
            [*rows, {"reason": "too_large", "query_id": "b", "batch_id": 1, "value": b"secret"}],
        )
    assert count_dead_letters(root.topics.storage, "t", DeadLetterKind.INGEST) == (
        DeadLetters(DeadLetterKind.INGEST, "no_key", "a", 15, 3, 7),
        DeadLetters(DeadLetterKind.INGEST, "too_large", "b", 3, 1, 1),
    )


def test_those_of_an_export_are_counted_by_reason_and_partition(root: Root) -> None:
    root.folder.mkdir()
    rows = [
        {"reason": "undecodable", "partition": partition, "offset": offset}
        for partition, offset in ((1, 900), (0, 4), (1, 30), (1, 77))
    ]
    write(root, DeadLetterKind.EXPORT, rows)
    assert count_dead_letters(root.topics.storage, "t", DeadLetterKind.EXPORT) == (
        DeadLetters(DeadLetterKind.EXPORT, "undecodable", "1", 3, 30, 900),
        DeadLetters(DeadLetterKind.EXPORT, "undecodable", "0", 1, 4, 4),
    )


def test_what_a_replay_has_made_of_them_is_told_apart(root: Root) -> None:
    root.folder.mkdir()
    open_one = {"reason": "undecodable", "partition": 0, "offset": 4, "outcome": None}
    write(
        root,
        DeadLetterKind.EXPORT,
        [open_one, open_one | {"offset": 5, "outcome": "superseded"}, open_one | {"offset": 9}],
    )
    found = count_dead_letters(root.topics.storage, "t", DeadLetterKind.EXPORT)
    assert found == (
        DeadLetters(DeadLetterKind.EXPORT, "undecodable", "0", 2, 4, 9),
        DeadLetters(DeadLetterKind.EXPORT, "undecodable", "0", 1, 5, 5, "superseded"),
    )
    assert [each.asks_for_attention for each in found] == [True, False]


def test_open_dead_letters_are_counted_in_a_table_whose_outcomes_have_no_type(root: Root) -> None:
    """As in a copy of a table that another program has made without a type for the column."""
    root.folder.mkdir()
    write(root, DeadLetterKind.EXPORT, [{"reason": "undecodable", "partition": 0, "offset": 4, "outcome": None}] * 2)
    assert count_dead_letters(root.topics.storage, "t", DeadLetterKind.EXPORT) == (
        DeadLetters(DeadLetterKind.EXPORT, "undecodable", "0", 2, 4, 4),
    )


def test_a_table_without_rows_or_none_at_all_has_none(root: Root) -> None:
    root.folder.mkdir()
    assert count_dead_letters(root.topics.storage, "t", DeadLetterKind.INGEST) == ()
    empty = pa.schema([("reason", pa.string()), ("query_id", pa.string()), ("batch_id", pa.int64())]).empty_table()
    write_deltalake(root.folder / "tables/dead_letters/ingest/t", empty)
    assert count_dead_letters(root.topics.storage, "t", DeadLetterKind.INGEST) == ()


def test_another_table_in_its_place_is_refused(root: Root) -> None:
    root.folder.mkdir()
    write(root, DeadLetterKind.INGEST, [{"tailnum": "N1"}])
    with pytest.raises(StorageError, match="expected a Delta table with reason, query_id, batch_id"):
        count_dead_letters(root.topics.storage, "t", DeadLetterKind.INGEST)


def test_a_table_that_lost_a_file_is_refused(root: Root) -> None:
    root.folder.mkdir()
    write(root, DeadLetterKind.INGEST, [{"reason": "no_key", "query_id": "a", "batch_id": 0}])
    for file in (root.folder / "tables/dead_letters/ingest/t").glob("*.parquet"):
        file.unlink()
    with pytest.raises(StorageError, match="tables/dead_letters/ingest/t"):
        count_dead_letters(root.topics.storage, "t", DeadLetterKind.INGEST)


def test_the_newest_are_those_with_the_largest_offsets(root: Root) -> None:
    root.folder.mkdir()
    for first in (0, 500, 100):
        rows = [
            {"reason": "undecodable", "detail": f"at {offset}", "partition": 1, "offset": offset, "value": b"secret"}
            for offset in range(first, first + 50)
        ]
        write(root, DeadLetterKind.EXPORT, rows)
    found = newest_dead_letters(root.topics.storage, "t", DeadLetterKind.EXPORT, 52)
    assert [each.place for each in found] == [*range(549, 499, -1), 149, 148]
    assert found[0] == DeadLetter("undecodable", "at 549", "1", 549, None, "")


def test_there_are_no_newest_without_a_table_and_an_error_if_it_is_no_table(root: Root) -> None:
    root.folder.mkdir()
    assert newest_dead_letters(root.topics.storage, "t", DeadLetterKind.INGEST, 5) == []
    write(root, DeadLetterKind.INGEST, [{"reason": "no_key", "batch_id": 1}])
    with pytest.raises(StorageError, match="expected a Delta table with reason, query_id, batch_id"):
        newest_dead_letters(root.topics.storage, "t", DeadLetterKind.INGEST, 5)
