"""The chain of digests: exports continue it, a proof never calls a correct table different, and finds changes of rows whose
records are no longer in the log."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, write_deltalake

from pipeline.delta.chain.digest_sums import sums_by_partition
from pipeline.delta.chain.row_digest import row_digests
from pipeline.delta.chain.stamp_chain import RowSum, seal_of
from pipeline.delta.export_plan import NO_BOUNDS, ExportMode, ExportRefusedError, TableSchemaError
from pipeline.delta.proof.exported_table import open_exported_table
from pipeline.delta.proof.findings import ADDED_COLUMN, COMPACTION, OTHER_MODEL, RETENTION
from pipeline.delta.table_history import (
    ForeignCommitError,
    check_committed,
    plan_from_history,
    read_head,
    why_chain_ends,
)
from pipeline.delta.table_stamp import NewerTableError, NextLink, Stamp, TableHead
from pipeline.delta.without_spark import small_export
from pipeline.delta.without_spark.small_export import export_without_spark
from storage_engine.errors import StorageError
from tests.pipeline.delta.order_models import LargeOrder, OrderWithPrice, schema_of
from tests.pipeline.delta.proof.exported_topic import KEYS, ExportedTopic, some_orders, whole
from tests.roots.delta_tables import commit_file, table_at
from tests.stores import file_in

MODES = pytest.mark.parametrize("mode", list(ExportMode))
Row = dict[str, Any]


def head_of(topic: ExportedTopic) -> TableHead:
    head = read_head(topic.export.table)
    assert head is not None
    return head


def chained(topic: ExportedTopic) -> Stamp:
    stamp = head_of(topic).current
    assert stamp is not None
    assert stamp.chain is not None
    return stamp


def differences(topic: ExportedTopic, since: int | None = None) -> list[str]:
    return [each.problem for each in topic.prove(since=since).findings.differences]


@pytest.fixture
def topic(tmp_path: Path) -> ExportedTopic:
    """An upsert table of twelve rows, in two commits. The log has no record of the rows any more."""
    topic = ExportedTopic(tmp_path, partitions=1, digest=True)
    topic.append(*((key, number) for number, key in enumerate(KEYS)))
    topic.run_export()
    topic.append((KEYS[0], 100), (KEYS[1], None), (b"a new key", 101), (KEYS[2], b"{"))
    topic.run_export()
    topic.delete_records(0, 16)
    return topic


def test_a_stamp_counts_what_came_and_what_went(topic: ExportedTopic) -> None:
    stamp = chained(topic)
    assert stamp.chain is not None
    (link,) = stamp.chain.partitions.values()
    rows = {row["_offset"]: int.from_bytes(row["_digest"], "little") for row in rows_of(topic)}
    before = {row["_offset"]: int.from_bytes(row["_digest"], "little") for row in rows_of(topic, version=1)}
    assert (link.first, link.end, link.counts.records, link.counts.tombstones) == (12, 16, 4, 1)
    assert (link.counts.dead_letters, link.counts.stale) == (1, 1)
    assert link.came == RowSum(2, (rows[12] + rows[14]) % 2**128)
    assert link.went == RowSum(2, (before[0] + before[1]) % 2**128)
    assert link.after == RowSum(12, sum(rows.values()) % 2**128)
    assert (stamp.format, stamp.chain.base) == (3, 1)
    assert Stamp.from_json(stamp.to_json()) == stamp


def test_the_chain_covers_rows_that_the_log_can_no_longer_prove(topic: ExportedTopic) -> None:
    proof = topic.prove()
    assert whole(proof) == {
        "answer": "equal as far as the log can tell", "rows": 12, "equal": 0, "unprovable": {RETENTION: 12},
        "differences": [],
    }  # fmt: skip
    assert proof.chain is not None
    assert (proof.covered, proof.chain.rows, proof.chain.stamps, proof.chain.oldest) == (12, 12, 2, 1)
    assert proof.not_compared == ()


@MODES
@pytest.mark.parametrize("seed", range(3))
def test_an_honest_chain_is_never_called_different(tmp_path: Path, mode: ExportMode, seed: int) -> None:
    """Rows also move to other files, earlier versions are restored, and only a part is proved."""
    chance = random.Random(seed)
    topic = ExportedTopic(tmp_path, mode, partitions=chance.choice([1, 2]), digest=True)
    some_orders(topic, chance)
    topic.run_export()
    steps: list[Callable[[], object]] = [
        topic.run_export, topic.run_export, topic.compact, lambda: topic.clock.advance(61_000),
        lambda: join_files(topic), lambda: restore_some(topic, chance),
        lambda: topic.topics.alter("orders", partitions=len(topic.state().partitions) + 1),
        lambda: delete_exported(topic, chance),
    ]  # fmt: skip
    for _ in range(14):
        some_orders(topic, chance, 6)
        chance.choice(steps)()
        proof = topic.prove()
        assert whole(proof)["differences"] == []
        assert proof.chain is not None
        assert proof.covered == proof.findings.unprovable.total() - proof.findings.unprovable_stale
        since = chance.randrange(1, head_of(topic).version + 1)
        assert whole(topic.prove(since=since))["differences"] == []


def join_files(topic: ExportedTopic) -> None:
    table_at(topic.export.table).optimize.compact()
    table_at(topic.export.table).vacuum(dry_run=False)


def restore_some(topic: ExportedTopic, chance: random.Random) -> None:
    topic.run_export()
    if (version := head_of(topic).version) > 1:
        table_at(topic.export.table).restore(chance.randrange(1, version))


def delete_exported(topic: ExportedTopic, chance: random.Random) -> None:
    topic.run_export()
    number = chance.randrange(len(topic.state().partitions))
    part = topic.state().partitions[number]
    topic.delete_records(number, chance.randint(part.log_start_offset, part.high_watermark))


def stamp_at(topic: ExportedTopic, version: int) -> Stamp:
    stamp = open_exported_table(topic.export, version).head.current
    assert stamp is not None
    return stamp


def rows_of(topic: ExportedTopic, version: int | None = None) -> list[Row]:
    rows: list[Row] = table_at(topic.export.table, version).to_pyarrow_table().sort_by("_offset").to_pylist()
    return rows


def rewrite(topic: ExportedTopic, change: Callable[[list[Row]], object]) -> None:
    """Change rows in a commit that looks like the commit of an export that changes no rows."""
    rows = rows_of(topic)
    change(rows)
    table = table_at(topic.export.table)
    schema = pa.schema(table.schema().to_arrow())
    head = head_of(topic)
    stamp = NextLink(head).add_to(replace(chained(topic), id="forged", version=head.next_guard))
    forged = CommitProperties(custom_metadata={"userMetadata": stamp.to_json()})
    write_deltalake(table, pa.Table.from_pylist(rows, schema=schema), mode="overwrite", commit_properties=forged)


def with_right_digest(row: Row, schema: pa.Schema) -> None:
    (row["_digest"],) = row_digests(pa.Table.from_pylist([row], schema=schema)).to_pylist()


def test_a_changed_row_does_not_fit_its_digest(topic: ExportedTopic) -> None:
    rewrite(topic, lambda rows: rows[3].update(number=7))
    place = topic.prove().findings.differences
    assert [tuple(each) for each in place] == [(0, 5, "the row does not fit its digest")]
    rewrite(topic, lambda rows: rows[3].update(_digest=None))
    assert differences(topic)[0] == "the row has no digest"


def test_a_changed_row_with_a_new_digest_changes_the_sum(topic: ExportedTopic) -> None:
    schema = pa.schema(table_at(topic.export.table).schema().to_arrow())

    def change(rows: list[Row]) -> None:
        rows[3]["number"] = 7
        with_right_digest(rows[3], schema)

    rewrite(topic, change)
    assert differences(topic) == ["another sum of digests than in the stamp of version 3"]


@pytest.mark.parametrize(
    ("change", "rows"),
    [
        (lambda rows: rows.pop(4), 11),
        (lambda rows: rows.append(rows[4]), 13),
        (lambda rows: rows.extend([rows[4], rows[4], rows[5]]), 15),
        (lambda rows: rows.clear(), 0),
    ],
    ids=["lost", "doubled", "doubled twice", "all lost"],
)
def test_lost_and_doubled_rows_change_the_number(
    topic: ExportedTopic, change: Callable[[list[Row]], object], rows: int
) -> None:
    rewrite(topic, change)
    assert f"{rows} rows, but 12 in the stamp of version 3" in differences(topic)


def test_a_row_instead_of_another_changes_the_sum(topic: ExportedTopic) -> None:
    deleted = rows_of(topic, version=1)[1]
    rewrite(topic, lambda rows: rows.__setitem__(4, deleted))  # the tombstone of this row is not in the log any more
    assert differences(topic) == ["another sum of digests than in the stamp of version 3"]


def test_an_older_file_that_is_put_back_is_found(topic: ExportedTopic) -> None:
    lines = [json.loads(line) for line in commit_file(topic.export.table, 2).read_bytes().splitlines()]
    before = [json.loads(line) for line in commit_file(topic.export.table, 1).read_bytes().splitlines()]
    older = [line for line in before if "add" in line]
    kept = [line for line in lines if "add" not in line and "remove" not in line]
    assert len(older) == 1
    commit_file(topic.export.table, 2).write_bytes(
        "".join(json.dumps(line) + "\n" for line in [*kept, *older]).encode()
    )
    assert differences(topic) == ["another sum of digests than in the stamp of version 2"]


def test_a_restored_table_is_right_and_the_chain_continues(topic: ExportedTopic) -> None:
    table_at(topic.export.table).restore(1)
    assert differences(topic) == []
    topic.append((KEYS[5], 500), (b"another", 501))
    topic.run_export()
    proof = topic.prove()
    assert whole(proof)["differences"] == []
    assert proof.chain is not None
    assert (proof.chain.stamps, head_of(topic).version) == (2, 4)  # the stamp of version 2 is not in the chain
    assert differences(topic, since=1) == differences(topic, since=2) == []


def forge(topic: ExportedTopic, version: int, change: Callable[[dict[str, Any]], object], *, seal: bool) -> None:
    """Change the stamp of a commit."""
    file = commit_file(topic.export.table, version)
    lines = [json.loads(line) for line in file.read_bytes().splitlines()]
    (info,) = (line["commitInfo"] for line in lines if "commitInfo" in line)
    document = json.loads(info["userMetadata"])
    change(document["lakelog"])
    if seal:
        document["lakelog"]["chain"]["seal"] = seal_of(document["lakelog"])
    info["userMetadata"] = json.dumps(document)
    file.write_bytes("".join(json.dumps(line) + "\n" for line in lines).encode())


def set_sum(name: str, pair: list[Any]) -> Callable[[Mapping[str, Any]], object]:
    return lambda document: document["chain"]["partitions"]["0"].update({name: pair})


def test_a_forged_stamp_is_found(topic: ExportedTopic) -> None:
    """A row is deleted, and the newest stamp has the sums of the other rows."""
    rewrite(topic, lambda rows: rows.pop())
    lost = sum(int.from_bytes(row["_digest"], "little") for row in rows_of(topic)) % 2**128
    forge(topic, 3, set_sum("after", [11, f"{lost:032x}"]), seal=False)
    assert differences(topic) == [
        "the stamp of version 3 does not fit its seal",
        "the stamp of version 3 has sums that do not follow from the stamp before it",
    ]
    forge(topic, 3, lambda _: None, seal=True)
    assert differences(topic) == ["the stamp of version 3 has sums that do not follow from the stamp before it"]


@pytest.mark.parametrize(
    "change", [lambda document: document.pop("chain"), lambda document: document.update(chain=None)]
)
def test_a_stamp_without_its_chain_is_found(topic: ExportedTopic, change: Callable[[dict[str, Any]], object]) -> None:
    forge(topic, 2, change, seal=False)
    assert differences(topic) == ["the stamp of version 2 has lost its chain of digests"]


def test_a_forged_older_stamp_is_found(topic: ExportedTopic) -> None:
    forge(topic, 1, lambda document: document.update(positions={"0": 11}), seal=False)
    assert differences(topic) == ["the stamp of version 1 does not fit its seal"]
    forge(topic, 1, lambda _: None, seal=True)
    assert differences(topic) == ["the stamp of version 2 does not continue the stamp before it"]
    table_at(topic.export.table).create_checkpoint()
    commit_file(topic.export.table, 0).unlink()  # as Delta's clean-up of its log does
    assert differences(topic) == ["the stamp of version 2 does not continue the stamp before it"]
    commit_file(topic.export.table, 1).unlink()
    assert differences(topic) == []


@pytest.mark.parametrize(
    "damage", [{"chain": {}}, {"began": {}}, {"began": {"offsets": {}, "partitions": "x"}}, {"positions": []}], ids=str
)
def test_a_damaged_stamp_is_refused(topic: ExportedTopic, damage: dict[str, Any]) -> None:
    stamp = chained(topic)
    forge(topic, 2, lambda document: document.update(damage), seal=False)
    for action in (topic.prove, topic.run_export, lambda: check_committed(topic.export.table, 1, stamp)):
        with pytest.raises(ExportRefusedError, match=r"commit 2 of the table: has a stamp .* that cannot be read"):
            action()


@pytest.mark.parametrize("damage", [{"began": {}}, {"format": 4}, {"positions": []}], ids=str)
def test_an_export_that_committed_reports_no_error_of_a_later_stamp(
    topic: ExportedTopic, monkeypatch: pytest.MonkeyPatch, damage: dict[str, Any]
) -> None:
    """Another program commits a stamp that cannot be read, before the export looks for its own commit."""
    topic.append((KEYS[0], 8))
    write = small_export._write

    def overtaken(*arguments: Any) -> Any:
        written = write(*arguments)
        document = {"lakelog": {**written[1].document(), **damage}}
        rows = table_at(topic.export.table).to_pyarrow_table().schema.empty_table()
        properties = CommitProperties(custom_metadata={"userMetadata": json.dumps(document)})
        write_deltalake(table_at(topic.export.table), rows, mode="append", commit_properties=properties)
        return written

    monkeypatch.setattr(small_export, "_write", overtaken)
    topic.run_export()
    assert 8 in [row["number"] for row in rows_of(topic)]
    with pytest.raises((ExportRefusedError, NewerTableError)):
        topic.run_export()


def test_a_stamp_of_a_newer_format_is_refused(topic: ExportedTopic) -> None:
    forge(topic, 2, lambda document: document.update(format=4), seal=False)
    with pytest.raises(NewerTableError, match="its stamp has format 4; this Lakelog knows format 3"):
        topic.prove()


def test_a_commit_of_another_writer_stops_the_export_until_it_is_undone(topic: ExportedTopic) -> None:
    table_at(topic.export.table).update(predicate="_offset = 5", updates={"number": "8"})
    topic.append((b"later", 1))
    with pytest.raises(
        ForeignCommitError,
        match=r"version 3 was committed by another writer and changed rows.*RESTORE the table to version 2",
    ):
        topic.run_export()
    assert differences(topic) == ["the row does not fit its digest"]
    table_at(topic.export.table).restore(2)
    topic.run_export()
    assert differences(topic) == []
    assert len(rows_of(topic)) == 13


def test_a_commit_between_the_plan_and_the_export_stops_the_next_export(tmp_path: Path) -> None:
    topic = ExportedTopic(tmp_path, ExportMode.APPEND, partitions=1, digest=True)
    topic.append((b"a", 1))
    topic.run_export()
    topic.append((b"b", 2))
    plan = plan_from_history(topic.export, topic.ranges(), NO_BOUNDS)
    assert plan is not None
    table = table_at(topic.export.table)
    write_deltalake(table, table.to_pyarrow_table(), mode="append")
    assert export_without_spark(topic.export, plan, topic.reader()) is not None
    topic.append((b"c", 3))
    with pytest.raises(ForeignCommitError, match=r"version 2 was committed by another writer"):
        topic.run_export()
    assert "3 rows, but 2 in the stamp of version 3; another writer committed version 2" in differences(topic)
    table_at(topic.export.table).restore(1)
    topic.run_export()
    assert whole(topic.prove())["answer"] == "equal"


def test_a_table_without_digests_is_exported_as_before(tmp_path: Path) -> None:
    topic = ExportedTopic(tmp_path, partitions=1)
    topic.append((b"a", 1))
    topic.run_export()
    table_at(topic.export.table).update(updates={"number": "8"})
    topic.export = replace(topic.export, digest=True)
    topic.append((b"b", 2))
    topic.run_export()
    head = head_of(topic)
    assert head.current is not None
    assert (head.current.chain, head.current.format, "chain" in head.current.document()) == (None, 2, False)
    assert "_digest" not in rows_of(topic)[0]
    assert topic.prove().chain is None
    with pytest.raises(
        ExportRefusedError, match=r"has no version 1 with a chain of digests.*Run prove without --since"
    ):
        topic.prove(since=1)


def test_only_changed_rows_are_compared_since_a_version(topic: ExportedTopic) -> None:
    topic.append((KEYS[3], 300), (b"new", 301), (KEYS[4], None))
    topic.run_export()
    proof = topic.prove(since=2)
    assert (whole(proof), proof.records) == (
        {"answer": "equal", "rows": 2, "equal": 2, "unprovable": {}, "differences": []}, 3,
    )  # fmt: skip
    assert proof.chain is not None
    assert (proof.chain.rows, proof.chain.stamps, proof.chain.oldest) == (2, 2, 2)
    deleted = rows_of(topic, version=2)
    rewrite(topic, lambda rows: rows.extend(row for row in deleted if row["_key"] == KEYS[4]))
    assert differences(topic, since=2) == [
        "the newer record 0:18 must delete the row", "13 rows, but 12 in the stamp of version 4",
    ]  # fmt: skip
    with pytest.raises(
        ExportRefusedError,
        match=r"has no version 9 with a chain.*Choose a version from 1 to 4, or",
    ):
        topic.prove(since=9)
    table_at(topic.export.table).update(predicate="_offset = 5", updates={"number": "8"})
    assert "the row does not fit its digest" in differences(topic, since=4)


def test_a_digest_may_be_older_than_a_column_with_a_default(topic: ExportedTopic) -> None:
    """A user gives a table a column with a default, which the model gets later; another column leaves the model."""
    wider = replace(topic.export, schema=schema_of(OrderWithPrice))
    new = pa.table({"price": pa.array([], pa.float64())})
    write_deltalake(table_at(topic.export.table), new, mode="append", schema_mode="merge")
    rewrite(topic, lambda rows: [row.update(price=0.5) for row in rows])
    assert "the row does not fit its digest" in differences(topic)
    alter = table_at(topic.export.table).alter
    for name, default in (("price", "0.5"), ("colour", "'red'")):
        alter.set_column_metadata(name, {"CURRENT_DEFAULT": default})
    for export in (topic.export, wider):
        proof = topic.prove(export)
        assert (whole(proof)["differences"], proof.covered) == ([], 12)
    rewrite(topic, lambda rows: rows[3].update(number=7))
    assert [tuple(each) for each in topic.prove(wider).findings.differences] == [
        (0, 5, "the row does not fit its digest")
    ]


def test_the_reasons_why_the_log_proves_nothing_are_covered(tmp_path: Path) -> None:
    topic = ExportedTopic(tmp_path, partitions=1, digest=True)
    topic.append(*((key, 1) for key in KEYS))
    topic.run_export()
    topic.append(*((key, 2) for key in KEYS[:8]))
    topic.append(*((b"later", number) for number in range(40)))
    topic.compact()
    topic.delete_records(0, 10)
    proof = topic.prove(replace(topic.export, schema=schema_of(LargeOrder)))
    assert proof.findings.unprovable.keys() <= {RETENTION, COMPACTION, OTHER_MODEL, ADDED_COLUMN}
    assert proof.covered == proof.findings.unprovable.total() == 12


@MODES
@pytest.mark.parametrize("digest", [False, True])
def test_a_stamp_that_hides_lost_records_is_found(tmp_path: Path, mode: ExportMode, *, digest: bool) -> None:
    """The rows of the last export are removed in a commit whose stamp fits the other rows."""
    topic = ExportedTopic(tmp_path, mode, partitions=1, digest=digest)
    for number in range(2):
        topic.append((b"%d" % number, number))
        topic.run_export()
    before, head = stamp_at(topic, 1), head_of(topic)
    last = sums_by_partition(*table_at(topic.export.table).to_pyarrow_table(filters=[("_offset", "=", 1)]).select(
        ["_partition", "_digest"]).columns) if digest else {}  # fmt: skip
    forged = replace(before, id="forged", version=head.next_guard)
    forged = NextLink(head).add_to(forged, {}, last) if digest else forged
    table_at(topic.export.table).delete(
        "_offset = 1", commit_properties=CommitProperties(custom_metadata={"userMetadata": forged.to_json()})
    )
    assert differences(topic) == ["the stamp of version 3 has lower positions than the stamp before it"]


@pytest.mark.parametrize("digest", [False, True])
def test_a_stamp_that_begins_later_is_found(tmp_path: Path, *, digest: bool) -> None:
    topic = ExportedTopic(tmp_path, ExportMode.APPEND, partitions=1, digest=digest)
    for number in range(2):
        topic.append((b"%d" % number, number))
        topic.run_export()
    topic.append((b"2", None), (b"3", b"{"))
    forge(topic, 2, lambda document: document["began"].update(offsets={"0": 1}), seal=digest)
    problem = "has a later first offset than the stamp before it"
    assert differences(topic) == [f"the stamp of version 2 {problem}"]


@pytest.mark.posix("restores by time, and a store's files have whole seconds")
def test_the_end_of_a_chain_has_a_reason(topic: ExportedTopic) -> None:
    def why(*, digest: bool = True, has_digests: bool = True) -> str | None:
        return why_chain_ends(replace(topic.export, digest=digest), head_of(topic), lambda: has_digests)

    assert (why(), why(digest=False)) == (None, "export.digest is false")
    table = table_at(topic.export.table)
    moment = datetime.fromtimestamp(table.history(limit=2)[1]["timestamp"] / 1000, UTC)
    table.restore(moment)
    assert why() == "the table was restored, and its log does not have the stamp of the restored rows"
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 9 days"})
    table.create_checkpoint()
    for version in range(table.version()):
        commit_file(topic.export.table, version).unlink()
    assert why() == "the table's log no longer has the stamp of an export"
    assert why(has_digests=False) is None


def test_changed_types_and_columns_are_named(topic: ExportedTopic) -> None:
    rows = table_at(topic.export.table).to_pyarrow_table()

    def overwrite(name: str, column: list[Any] | None, kind: pa.DataType) -> None:
        others = rows.drop_columns([name])
        changed = others if column is None else others.append_column(name, pa.array(column, kind))
        write_deltalake(table_at(topic.export.table), changed, mode="overwrite", schema_mode="overwrite")

    overwrite("_digest", None, pa.binary())
    assert differences(topic) == ["column _digest is missing"]
    overwrite("_stale_since", None, pa.null())
    proof = topic.prove()
    assert (proof.findings.differences, proof.not_compared, proof.foreign) == ([], ("_stale_since",), 3)
    overwrite("_digest", ["a"] * 12, pa.string())
    assert differences(topic) == ["column _digest is string"]
    overwrite("_offset", [None, *range(11)], pa.int64())
    assert differences(topic)[0] == "the row has null in _partition, _offset or _timestamp"
    overwrite("number", ["a"] * 12, pa.string())
    with pytest.raises(
        TableSchemaError, match=r"values that do not fit: number is string instead of int64\. Use the model"
    ):
        topic.prove()


def test_a_damaged_file_is_named(topic: ExportedTopic) -> None:
    for file in [each.key for each in topic.storage.list("tables/orders/") if each.key.endswith(".parquet")]:
        file_in(topic.storage, file).write_bytes(b"PAR1" * 100)
    with pytest.raises(StorageError, match=r"cannot be read: [\w.-]+\.parquet is damaged. Nothing was changed"):
        topic.prove()
