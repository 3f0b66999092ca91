"""Fields inside structs and lists that come, go and come again: whole tables, and what `prove` says of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

import lakelog
from jobs.export import export
from pipeline.export.export_request import add_export_options
from pipeline.export.proof_run import add_proof_options, prove_exports
from pipeline.job import run_job

NARROW, WIDE = "x:BIGINT", "x:BIGINT,w:STRING"
Job = Callable[..., tuple[int, dict[str, Any]]]
OLDER = {"the row is older than one of its columns": 1}


def schema(fields: str) -> str:
    struct = f"STRUCT<{fields}>"
    return f"id BIGINT, st {struct}, items ARRAY<{struct}>, deep STRUCT<inner:ARRAY<{struct}>>"


def value(number: int, *, w: str | None = None) -> bytes:
    inner: dict[str, object] = {"x": number} | ({"w": w} if w else {})
    return json.dumps({"id": number, "st": inner, "items": [inner, inner], "deep": {"inner": [inner]}}).encode()


def row(number: int, w: str | None) -> dict[str, Any]:
    inner = {"x": number, "w": w}
    return {"id": number, "st": inner, "items": [inner, inner], "deep": {"inner": [inner]}}


class Exports:
    """A topic whose records and schema change from export to export."""

    def __init__(self, folder: Path, mode: str, read: Callable[[], str]) -> None:
        self.root, self.mode, self._read = folder / "root", mode, read
        policy = "compact" if mode == "upsert" else "delete"
        self.topic = lakelog.open(self.root, create=True).create_topic("t", config={"cleanup.policy": policy})
        self.fields = NARROW

    def append(self, number: int, **more: Any) -> None:
        self.topic.append([{"key": b"%d" % number, "value": value(number, **more)}])

    def run(self, job: str, *more: str) -> tuple[int, dict[str, Any]]:
        main, options = (export, add_export_options) if job == "export" else (prove_exports, add_proof_options)
        sets = ["export.topic=t", f"export.mode={self.mode}", f"topics.t.schema={schema(self.fields)}"]
        argv = ["--root", str(self.root), "--json", *(text for each in sets for text in ("--set", each)), *more]
        self._read()
        status = run_job(job, "", main, options, argv, {})
        return status, json.loads(self._read())

    def rows(self) -> list[dict[str, Any]]:
        names = ["id", "st", "items", "deep"]
        found = pa.table(DeltaTable(self.root / "tables/t").to_pyarrow_dataset().to_table(columns=names))
        return sorted(found.to_pylist(), key=lambda each: each["id"])

    def proof(self, *more: str) -> tuple[int, str, dict[str, int], list[str]]:
        status, found = self.run("prove", *more)
        return status, found["answer"], found["reasons"], found["warnings"]


@pytest.mark.spark
@pytest.mark.posix("changes a local table")
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_fields_inside_columns_come_and_go(
    spark: SparkSession, tmp_path: Path, mode: str, capfd: pytest.CaptureFixture[str]
) -> None:
    exports = Exports(tmp_path, mode, lambda: capfd.readouterr().out)
    exports.append(1, w="unknown to the first schema")
    assert exports.run("export")[0] == 0
    exports.fields = WIDE
    exports.append(2, w="b")
    assert exports.run("export")[0] == 0
    assert exports.rows() == [row(1, None), row(2, "b")]
    assert exports.proof() == (0, "equal as far as the log can tell", OLDER, [])
    assert exports.proof("--since", "1")[:2] == (0, "equal")

    exports.fields = NARROW
    exports.append(3, w="not in the schema now")
    status, done = exports.run("export", "--accept-schema")
    assert (status, done["records"]) == (0, 1)
    assert exports.rows() == [row(1, None), row(2, "b"), row(3, None)]
    exports.append(5, w="not in the schema now")
    fresh = pa.Table.from_batches(exports.topic.table(schema=schema(NARROW))).select(["id", "st", "items", "deep"])
    wanted = [row(1, None), row(2, "b"), row(3, None), row(5, None)]
    assert sorted(fresh.to_pylist(), key=lambda each: each["id"]) == wanted
    left = "t: 3 columns not compared, because the table or the model does not have it: "
    status, answer, reasons, (warning,) = exports.proof()
    assert (status, answer, reasons) == (0, "equal", {})
    assert warning == left + "deep.inner.element.w, items.element.w, st.w"

    exports.run("export")
    exports.fields = WIDE
    exports.append(4, w="d")
    assert exports.run("export")[0] == 0
    assert exports.rows() == [row(1, None), row(2, "b"), row(3, None), row(4, "d"), row(5, None)]
    older = dict.fromkeys(OLDER, 3)
    assert exports.proof() == (0, "equal as far as the log can tell", older, [])

    for changed in ({"x": 7}, {"w": "changed"}):
        before = DeltaTable(exports.root / "tables/t").version()
        table = pa.table(DeltaTable(exports.root / "tables/t").to_pyarrow_dataset().to_table())
        wrong = [each | ({"st": each["st"] | changed} if each["id"] == 1 else {}) for each in table.to_pylist()]
        write_deltalake(exports.root / "tables/t", pa.Table.from_pylist(wrong, table.schema), mode="overwrite")
        status, found = exports.run("prove")
        assert (status, found["answer"]) == (1, "different")
        assert (0, 0, "another value in st") in {
            (each["partition"], each["offset"], each["problem"]) for each in found["rows"]
        }
        DeltaTable(exports.root / "tables/t").restore(before)


@pytest.mark.posix("reads a local table")
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_fresh_view_has_the_fields_inside_columns_that_the_next_export_gives_the_table(
    tmp_path: Path, mode: str, capfd: pytest.CaptureFixture[str]
) -> None:
    exports = Exports(tmp_path, mode, lambda: capfd.readouterr().out)
    exports.append(1, w="unknown to the first schema")
    assert exports.run("export")[0] == 0
    exports.append(2, w="b")
    for fields in ("w:STRING,x:BIGINT", WIDE):  # also in another order than in the table
        fresh = pa.Table.from_batches(exports.topic.table(schema=schema(fields))).select(["id", "st", "items", "deep"])
        assert sorted(fresh.to_pylist(), key=lambda each: each["id"]) == [row(1, None), row(2, "b")]
        assert fresh.schema.field("st").type.names == ["x", "w"]
    wrong = schema("x:STRING,w:STRING")
    with pytest.raises(lakelog.errors.LogError, match="not compatible with the model"):
        exports.topic.table(schema=wrong)
