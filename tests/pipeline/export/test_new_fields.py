"""A continuous export whose schema gets a new field while the job runs: the field appears in the table, without a
restart.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

import lakelog
from jobs.export import export
from pipeline.export import several_exports
from pipeline.export.export_request import add_export_options
from pipeline.job import run_job
from tests.pipeline.export.test_several_exports import between_runs
from tests.schemas.avro.avro_values import Schema, encoded, record, with_id

OLD = record(("id", "string"))
NEW = record(("id", "string"), ("more", ["null", "string"], None))


@pytest.mark.posix("names a local table")
def test_a_field_that_is_added_to_the_schema_appears_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    registry, reader = tmp_path / "registry", tmp_path / "order.avsc"
    registry.mkdir()
    topic = lakelog.open(tmp_path / "root", create=True).create_topic("orders", config={"cleanup.policy": "compact"})

    def append(number: int, schema: Schema, value: dict[str, str]) -> None:
        (registry / f"{number}.avsc").write_text(json.dumps(schema))
        topic.append([{"key": value["id"].encode(), "value": with_id(number, encoded(schema, value))}])

    def new_field() -> None:
        changed = tmp_path / "changed"
        changed.write_text(json.dumps(NEW))
        changed.replace(reader)
        append(2, NEW, {"id": "b", "more": "x"})

    steps: list[Callable[[], None]] = [new_field, lambda: append(2, NEW, {"id": "a", "more": "y"})]

    between_runs(monkeypatch, steps)
    monkeypatch.setattr(several_exports, "_SHORTEST_SECONDS", 0.0)
    reader.write_text(json.dumps(OLD))
    for name in ("a", "c"):
        append(1, OLD, {"id": name})
    conf = tmp_path / "export.yaml"
    conf.write_text(
        f"root: {tmp_path / 'root'}\ntopics: {{orders: {{schema: {reader}, schema.registry: {registry}}}}}\n"
        "export: {topic: orders, table: tables/orders, trigger: 1 millisecond}\n"
    )
    argv = ["--conf", str(conf), "--json"]
    assert run_job("export", "", export, add_export_options, argv, {}) == 0
    (row,) = json.loads(capfd.readouterr().out)["rows"]
    assert (row["runs"], row["records"], row["dead letters"]) == (3, 4, 0)
    rows = DeltaTable(tmp_path / "root/tables/orders").to_pyarrow_table().select(["id", "more"]).to_pylist()
    assert sorted(rows, key=lambda each: each["id"]) == [
        {"id": "a", "more": "y"}, {"id": "b", "more": "x"}, {"id": "c", "more": None},
    ]  # fmt: skip
