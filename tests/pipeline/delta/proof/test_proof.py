"""Proofs of exported tables: a proof never calls a correct table different, and finds each change of a table."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from pipeline.delta.export_plan import ExportBounds, ExportMode, ExportRefusedError
from pipeline.delta.proof.exported_table import added_columns
from pipeline.delta.proof.findings import ADDED_COLUMN, COMPACTION, DEFAULT_VALUE, OTHER_MODEL, RETENTION
from pipeline.delta.table_history import Commit
from pipeline.delta.table_stamp import Stamp
from schemas.event_schema import EventSchema
from storage_engine.errors import StorageError
from tests.pipeline.delta.order_models import LargeOrder, MendedOrderWithPrice, schema_of
from tests.pipeline.delta.proof.exported_topic import KEYS, ExportedTopic, some_orders, whole
from tests.roots.delta_tables import table_at

MODES = pytest.mark.parametrize("mode", list(ExportMode))


@MODES
def test_a_table_equals_its_topic(tmp_path: Path, mode: ExportMode) -> None:
    topic = ExportedTopic(tmp_path, mode)
    topic.append((b"a", 1), (b"b", 2), (b"c", b"{"))
    topic.run_export()
    topic.append((b"a", 3), (b"b", None), (b"d", 4), (b"a", b"{"))
    topic.run_export()
    topic.append((b"d", 6))
    rows = {ExportMode.UPSERT: 2, ExportMode.APPEND: 4, ExportMode.CHANGELOG: 5}[mode]
    proof = topic.prove()
    assert whole(proof) == {
        "answer": "equal", "rows": rows, "equal": rows, "unprovable": {}, "differences": [],
    }  # fmt: skip
    assert (proof.records, proof.version, proof.not_compared) == (7, 2, ())


@MODES
@pytest.mark.parametrize("seed", [*range(4), 1038, 1055, 1067])
def test_an_honest_table_is_never_called_different(tmp_path: Path, mode: ExportMode, seed: int) -> None:
    """The log is compacted and retained, more partitions are added, and time goes by."""
    chance = random.Random(seed)
    topic = ExportedTopic(tmp_path, mode, partitions=chance.choice([1, 2]))
    steps: list[Callable[[], object]] = [
        topic.run_export,
        topic.compact,
        lambda: topic.clock.advance(chance.choice([1000, 61_000])),
        lambda: delete_some(topic, chance),
    ]
    if chance.random() < 0.3:
        steps.append(lambda: topic.topics.alter("orders", partitions=len(topic.state().partitions) + 1))
    for _ in range(12):
        some_orders(topic, chance)
        chance.choice(steps)()
        if table_exists(topic):
            proof = topic.prove()
            assert whole(proof)["differences"] == []
            assert proof.findings.equal + proof.findings.unprovable.total() >= proof.rows


def table_exists(topic: ExportedTopic) -> bool:
    return next(topic.storage.list("tables/orders/_delta_log/"), None) is not None


def delete_some(topic: ExportedTopic, chance: random.Random) -> None:
    """Delete records that were exported."""
    number = chance.randrange(len(topic.state().partitions))
    part = topic.state().partitions[number]
    topic.run_export()
    topic.delete_records(number, chance.randint(part.log_start_offset, part.high_watermark))


def rewritten(topic: ExportedTopic, change: Callable[[list[dict[str, object]]], None]) -> None:
    """Change the rows of the table with a foreign commit."""
    table = table_at(topic.export.table)
    found = table.to_pyarrow_table()
    rows = sorted(found.to_pylist(), key=lambda row: (row["_partition"], row["_offset"]))
    change(rows)
    write_deltalake(table, pa.Table.from_pylist(rows, schema=found.schema), mode="overwrite")


def set_value(rows: list[dict[str, object]], chance: random.Random) -> None:
    row = chance.choice([row for row in rows if row["number"] is not None])
    row["number"] = int(str(row["number"])) + 1


def set_null(rows: list[dict[str, object]], chance: random.Random) -> None:
    chance.choice([row for row in rows if row["number"] is not None])["number"] = None


def lose(rows: list[dict[str, object]], chance: random.Random) -> None:
    rows.pop(chance.randrange(len(rows)))


def double(rows: list[dict[str, object]], chance: random.Random) -> None:
    rows.append(dict(chance.choice(rows)))


def swap_values(rows: list[dict[str, object]], chance: random.Random) -> None:
    one, other = chance.sample(rows, 2)
    one["number"], other["number"] = other["number"], one["number"]


def swap_keys(rows: list[dict[str, object]], chance: random.Random) -> None:
    one, other = chance.sample(rows, 2)
    if one["_key"] == other["_key"]:
        one["_key"] = b"other"
    else:
        one["_key"], other["_key"] = other["_key"], one["_key"]


def move_offset(rows: list[dict[str, object]], chance: random.Random) -> None:
    row = chance.choice(rows)
    row["_offset"] = int(str(row["_offset"])) + chance.choice([-1, 1, 1000])


def move_partition(rows: list[dict[str, object]], chance: random.Random) -> None:
    row = chance.choice(rows)
    row["_partition"] = 1 - int(str(row["_partition"]))


def move_time(rows: list[dict[str, object]], chance: random.Random) -> None:
    row = chance.choice(rows)
    moment = row["_timestamp"]
    row["_timestamp"] = moment.replace(microsecond=0 if moment.microsecond else 1000)  # type: ignore[attr-defined]


def skip_a_partition(rows: list[dict[str, object]], chance: random.Random) -> None:
    gone = chance.choice(rows)["_partition"]
    rows[:] = [row for row in rows if row["_partition"] != gone]


def skip_offsets(rows: list[dict[str, object]], chance: random.Random) -> None:
    row = chance.choice(rows)
    first = int(str(row["_offset"]))
    rows[:] = [
        each for each in rows
        if each["_partition"] != row["_partition"] or not first <= int(str(each["_offset"])) < first + 3
    ]  # fmt: skip


def add_a_row(rows: list[dict[str, object]], chance: random.Random) -> None:
    row = dict(chance.choice(rows))
    rows.append({**row, "_key": b"a new key", "_offset": 10_000})


def mark_stale(rows: list[dict[str, object]], chance: random.Random) -> None:
    row = chance.choice(rows)
    place = {"partition": row["_partition"], "offset": int(str(row["_offset"])) + 1, "timestamp": row["_timestamp"]}
    row["_stale_since"] = None if row.get("_stale_since") else place


def be_empty(rows: list[dict[str, object]], chance: random.Random) -> None:
    rows.clear()


TAMPERINGS: list[Callable[[list[dict[str, object]], random.Random], None]] = [
    set_value, set_null, lose, double, swap_values, swap_keys, move_offset, move_partition, move_time, skip_a_partition,
    skip_offsets, add_a_row, mark_stale, be_empty,
]  # fmt: skip


@MODES
@pytest.mark.parametrize("tamper", TAMPERINGS, ids=lambda each: each.__name__)
def test_a_change_of_the_table_is_found(
    tmp_path: Path, mode: ExportMode, tamper: Callable[[list[dict[str, object]], random.Random], None]
) -> None:
    if tamper is mark_stale and mode is not ExportMode.UPSERT:
        return
    chance = random.Random(tamper.__name__)
    topic = ExportedTopic(tmp_path, mode)
    topic.append(*((key, number) for number, key in enumerate(KEYS)))
    for _ in range(3):
        some_orders(topic, chance)
        topic.run_export()
    some_orders(topic, chance)  # not exported yet
    version = table_at(topic.export.table).version()
    assert topic.prove().answer == "equal"
    before = table_at(topic.export.table).to_pyarrow_table().sort_by("_offset")
    for _ in range(4):
        rewritten(topic, lambda rows: tamper(rows, chance))
        if table_at(topic.export.table).to_pyarrow_table().sort_by("_offset") != before:
            assert topic.prove().answer == "different", tamper
        table_at(topic.export.table).restore(version)
    assert topic.prove().answer == "equal"


def test_what_differs_is_named_by_its_place_and_never_by_its_content(tmp_path: Path) -> None:
    topic = ExportedTopic(tmp_path, partitions=1)
    topic.append((b"a", 1), (b"b", 2), (b"c", 3), (b"d", 4))
    topic.run_export()

    def change(rows: list[dict[str, object]]) -> None:
        rows[0]["number"], rows[0]["colour"] = 7, "red"
        rows[1]["_offset"] = 9
        del rows[3]

    rewritten(topic, change)
    assert whole(topic.prove()) == {
        "answer": "different", "rows": 3, "equal": 1, "unprovable": {},
        "differences": [
            (0, 0, "another value in number, colour"),
            (0, 9, "the row's offset is at or above the table's position"),
            (0, 3, "the record has no row"),
        ],
    }  # fmt: skip


def test_an_older_row_is_different_if_the_log_has_the_newer_record(tmp_path: Path) -> None:
    topic = ExportedTopic(tmp_path, partitions=1)
    topic.append((b"a", 1), (b"b", 2), (b"c", 3))
    topic.run_export()
    old = table_at(topic.export.table).to_pyarrow_table()
    topic.append((b"a", 4), (b"b", None))
    topic.run_export()
    write_deltalake(table_at(topic.export.table), old, mode="overwrite")
    assert whole(topic.prove())["differences"] == [
        (0, 0, "the newer record 0:3 must replace the row"),
        (0, 1, "the newer record 0:4 must delete the row"),
    ]


@MODES
def test_rows_whose_records_are_gone_are_no_longer_provable(tmp_path: Path, mode: ExportMode) -> None:
    topic = ExportedTopic(tmp_path, mode, partitions=1)
    topic.append(*((key, 1) for key in KEYS))
    topic.run_export()
    topic.append(*((key, 2) for key in KEYS[:8]))
    topic.append(*((b"later", number) for number in range(40)))
    topic.compact()
    topic.delete_records(0, 10)
    assert whole(topic.prove()) == {
        "answer": "equal as far as the log can tell", "rows": 12, "equal": 2,
        "unprovable": {RETENTION: 10}, "differences": [],
    }  # fmt: skip
    topic.append((KEYS[-1], 3))
    for _ in range(3):
        topic.append(*((b"later", number) for number in range(40)))
    topic.compact()
    assert whole(topic.prove())["unprovable"] == {RETENTION: 10, COMPACTION: 1}


@MODES
def test_rows_that_are_older_than_a_column_may_have_null_there(tmp_path: Path, mode: ExportMode) -> None:
    topic = ExportedTopic(tmp_path, mode, partitions=1)
    topic.append((b"a", b'{"number": 1, "price": 2.5}'), (b"b", 2))
    topic.run_export()
    wider = replace(topic.export, schema=schema_of(MendedOrderWithPrice))
    assert topic.prove(wider).not_compared == ("price",)
    write_deltalake(
        table_at(topic.export.table),
        pa.table({"price": pa.array([], pa.float64())}),
        mode="append",
        schema_mode="merge",
    )
    topic.append((b"c", b'{"number": 3, "price": 0.5}'))
    with_column = table_at(topic.export.table).to_pyarrow_table()
    assert with_column.num_rows == 2
    assert whole(topic.prove(wider)) == {
        "answer": "equal as far as the log can tell", "rows": 2, "equal": 1, "unprovable": {ADDED_COLUMN: 1},
        "differences": [],
    }  # fmt: skip
    assert topic.prove().not_compared == ("price",)


@MODES
def test_a_row_may_have_the_default_of_a_column_that_the_model_got_later(tmp_path: Path, mode: ExportMode) -> None:
    topic = ExportedTopic(tmp_path, mode, partitions=1)
    topic.append((b"a", b'{"number": 1, "price": 2.5}'), (b"b", 2), (b"c", b'{"number": 3, "price": 0.5}'))
    topic.run_export()
    rows = table_at(topic.export.table).to_pyarrow_table()
    wider = rows.append_column("price", pa.array([0.5] * 3))
    write_deltalake(table_at(topic.export.table), wider, mode="overwrite", schema_mode="overwrite")
    later = replace(topic.export, schema=schema_of(MendedOrderWithPrice))
    assert topic.prove(later).findings.differing == 2
    table_at(topic.export.table).alter.set_column_metadata("price", {"CURRENT_DEFAULT": "0.5"})
    assert whole(topic.prove(later)) == {
        "answer": "equal as far as the log can tell", "rows": 3, "equal": 1, "unprovable": {DEFAULT_VALUE: 2},
        "differences": [],
    }  # fmt: skip
    table_at(topic.export.table).update(predicate="_offset = 1", updates={"number": "8"})
    assert [each.problem for each in topic.prove(later).findings.differences] == ["another value in number"]


@pytest.mark.parametrize(
    ("last", "added"),
    [
        (("WRITE", {0: 1001}), {}),
        (("rebuild", {0: 1000}), {}),
        (("WRITE", {0: 1000}), {"b": {0: 1000}}),  # perhaps an export that widened a column
        (("MERGE", {0: 1001}), {"b": {0: 1000}}),
        (("WRITE", {0: 1001}, "RESTORE"), {"b": {0: 1000}}),
        (("rebuild", {0: 1000}, "RESTORE"), {"b": {0: 1000}}),
    ],
)
def test_a_rebuild_writes_all_columns(last: tuple[str, dict[int, int], *tuple[str, ...]], added: object) -> None:
    operation, positions, *later = last
    stamp = Stamp("orders", "A", "B", "append", {0: 1000}, 1)
    metadata = replace(stamp, positions=positions).to_json(of_rebuild=operation == "rebuild")
    commits = [
        Commit(0, columns=frozenset("a")),
        Commit(1, "WRITE", {"mode": "Append"}, user_metadata=stamp.to_json()),
        Commit(2, operation.replace("rebuild", "WRITE"), {"mode": "Overwrite", "predicate": "[]"},
               columns=frozenset("ab"), user_metadata=metadata),
        *(Commit(3, each, columns=frozenset("ab")) for each in later),
    ]  # fmt: skip
    assert added_columns(commits[::-1]) == added


@MODES
def test_records_that_todays_model_refuses_prove_nothing(tmp_path: Path, mode: ExportMode) -> None:
    topic = ExportedTopic(tmp_path, mode, partitions=1)
    topic.append((b"a", 1), (b"b", 20))
    topic.run_export()
    stricter = replace(topic.export, schema=schema_of(LargeOrder))
    proof = topic.prove(stricter)
    assert (proof.answer, dict(proof.findings.unprovable)) == ("equal as far as the log can tell", {OTHER_MODEL: 1})


@MODES
def test_records_before_the_first_exported_offset_are_not_missing(tmp_path: Path, mode: ExportMode) -> None:
    topic = ExportedTopic(tmp_path, mode, partitions=1)
    topic.append(*((key, number) for number, key in enumerate(KEYS)))
    topic.run_export(ExportBounds(from_offsets={0: 5}))
    topic.append((b"new", 1))
    topic.run_export()
    assert whole(topic.prove()) == {
        "answer": "equal", "rows": 8, "equal": 8, "unprovable": {}, "differences": [],
    }  # fmt: skip
    rewritten(topic, lambda rows: rows.__delitem__(0))
    assert whole(topic.prove())["differences"] == [(0, 5, "the record has no row")]


def test_raw_values_and_headers_are_compared(tmp_path: Path) -> None:
    topic = ExportedTopic(tmp_path, ExportMode.APPEND, partitions=1)
    topic.export = replace(topic.export, schema=None, headers=True)
    headers = [("a", b"1"), ("b", None)]
    rows = [{"key": b"", "value": b"\xff\x00", "headers": headers}, {"key": b"k", "value": None}]
    topic.topic.append(rows)
    topic.run_export()
    assert topic.prove().answer == "equal"

    def change(rows: list[dict[str, object]]) -> None:
        rows[0]["_headers"] = [("a", b"1"), ("b", b"")]
        rows[1]["value"] = b""

    rewritten(topic, change)
    assert whole(topic.prove())["differences"] == [
        (0, 0, "another value in _headers"), (0, 1, "another value in value"),
    ]  # fmt: skip


@MODES
def test_a_struct_may_be_null_although_its_fields_may_not(tmp_path: Path, mode: ExportMode) -> None:
    topic = ExportedTopic(tmp_path, mode, partitions=1)
    ddl = "item STRUCT<count: BIGINT NOT NULL, in: STRUCT<day: DATE NOT NULL>>, items ARRAY<STRUCT<count: BIGINT NOT NULL>>"
    topic.export = replace(topic.export, schema=EventSchema(ddl))
    topic.append(
        (b"a", b'{"item": {"count": 1, "in": {"day": "2013-01-01"}}, "items": [{"count": 2}, null]}'),
        (b"b", b'{"item": {"count": 1}, "items": []}'), (b"c", b"{}"), (b"d", None), (b"e", b'{"item": {}}'),
    )  # fmt: skip
    topic.run_export()
    rows = 4 if mode is ExportMode.CHANGELOG else 3
    assert whole(topic.prove()) == {
        "answer": "equal", "rows": rows, "equal": rows, "unprovable": {}, "differences": [],
    }  # fmt: skip

    def change(rows: list[dict[str, object]]) -> None:
        for row in rows:
            if row["_key"] in (b"a", b"c"):
                row["item"] = {"count": 1, "in": None}

    rewritten(topic, change)
    assert whole(topic.prove())["differences"] == [(0, 0, "another value in item"), (0, 2, "another value in item")]


@MODES
def test_a_table_in_parts_has_the_same_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: ExportMode
) -> None:
    topic = ExportedTopic(tmp_path, mode)
    chance = random.Random(5)
    for _ in range(6):
        some_orders(topic, chance)
    topic.run_export()
    rewritten(topic, lambda rows: set_value(rows, chance))
    one = whole(topic.prove())
    monkeypatch.setattr("pipeline.delta.proof.slices.ROWS_AT_ONCE", 10)
    monkeypatch.setattr("pipeline.delta.proof.slices._OFFSETS_TOGETHER", 4)
    assert whole(topic.prove()) == one
    assert one["answer"] == "different"


def test_what_cannot_be_proved_is_refused(tmp_path: Path) -> None:
    topic = ExportedTopic(tmp_path)
    with pytest.raises(ExportRefusedError, match=r"there is no table. Run the export first"):
        topic.prove()
    topic.append((b"a", 1))
    topic.run_export()
    with pytest.raises(
        ExportRefusedError, match=r"has no commit of version 7 in its log. Choose a version from 0 to 1"
    ):
        topic.prove(version=7)
    with pytest.raises(ExportRefusedError, match="was exported in upsert mode"):
        topic.prove(replace(topic.export, mode=ExportMode.APPEND))
    with pytest.raises(ExportRefusedError, match="the topic was deleted and created again"):
        topic.prove(replace(topic.export, topic_id="B" * 22))
    assert topic.prove(version=0).rows == 0
    (file,) = (each.key for each in topic.storage.list("tables/orders/") if each.key.endswith(".parquet"))
    topic.storage.delete(file)
    with pytest.raises(StorageError, match=r"tables/orders: cannot be read: .*Nothing was changed"):
        topic.prove()
