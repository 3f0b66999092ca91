"""`lakelog schema`, beside the jobs: `check` decides as the start of an export, and `accept` records what --accept-schema
records."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from jobs.export import export
from pipeline.export.export_request import add_export_options
from pipeline.job import run_job
from storage_engine.clock import SystemClock
from storage_engine.config import BrokerConfig
from storage_engine.topic.topics import Topics
from tests.lakelog.cli.conftest import Lakelog, line
from tests.stores import root_at, storage_at

SCHEMA, KEY_SCHEMA = "id STRING NOT NULL, amount BIGINT", "code STRING NOT NULL"
Export = Callable[..., int]


@pytest.fixture
def export_with(tmp_path: Path, lakelog: Lakelog, capfd: pytest.CaptureFixture[str]) -> Export:
    """Runs the export of a topic with one record, with these schemas of values and keys: exit status."""
    lakelog("topics", "create", "t", "--partitions", "1")
    record = line(b'{"code": "a"}', b'{"id": "1", "amount": 2, "more": "x"}')
    assert lakelog("append", "--topic", "t", stdin=[record]).status == 0

    def run(schema: str, key_schema: str = "", *more: str) -> int:
        named = ["--set", f"topics.t.schema={schema}"] if schema else []
        named += ["--set", f"topics.t.key.schema={key_schema}"] if key_schema else []
        argv = [
            "--root",
            root_at(tmp_path / "root"),
            "--set",
            "export.topic=t",
            "--set",
            "export.max.dead.letter.share=1",
            *named,
            *more,
        ]
        status = run_job("export", "", export, add_export_options, argv, {})
        capfd.readouterr()
        return status

    return run


def recorded(tmp_path: Path) -> object:
    return Topics(storage_at(tmp_path / "root"), BrokerConfig(), SystemClock()).state("t").model


def test_show_prints_the_recorded_fields(lakelog: Lakelog, export_with: Export) -> None:
    nothing = "topic t: no schema is recorded; the next ingest or export with a schema records it\n"
    assert lakelog("schema", "show", "t").out == nothing
    assert json.loads(lakelog("schema", "show", "t", "--json").out) == {"topic": "t", "model": None}
    assert export_with(SCHEMA, KEY_SCHEMA) == 0
    shown = lakelog("schema", "show", "t").out.splitlines()
    assert shown[0] == "topic t: model Columns, 3 fields"
    rows = [row.split() for row in shown[1:] if row.strip() and "─" not in row]
    assert rows == [
        ["field", "type", "required", "nullable"],
        ["id", "str", "yes", "no"],
        ["amount", "int", "no", "yes"],
        ["_key_code", "str", "yes", "no"],
    ]
    fields = {
        "id": {"type": "str", "required": True, "nullable": False},
        "amount": {"type": "int", "required": False, "nullable": True},
        "_key_code": {"type": "str", "required": True, "nullable": False},
    }
    assert json.loads(lakelog("schema", "show", "t", "--json").out) == {
        "topic": "t", "model": {"name": "Columns", "fields": fields},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "key_schema", "compatible", "breaking"),
    [
        (SCHEMA, KEY_SCHEMA, [], []),
        (f"{SCHEMA}, more STRING", KEY_SCHEMA, ["more is new"], []),
        ("id STRING NOT NULL, amount DOUBLE", KEY_SCHEMA, ["amount was int and is now float"], []),
        (f"{SCHEMA}, more STRING NOT NULL", KEY_SCHEMA, [], ["more is new and required"]),
        ("id STRING NOT NULL", KEY_SCHEMA, [], ["amount is removed"]),
        ("id STRING NOT NULL, amount STRING", KEY_SCHEMA, [], ["amount was int and is now str"]),
        (SCHEMA, "code BIGINT NOT NULL", [], ["_key_code was str and is now int"]),
        (SCHEMA, "", [], ["_key_code is removed"]),
    ],
)
def test_check_and_accept_do_what_an_export_does(
    lakelog: Lakelog, export_with: Export, tmp_path: Path,
    schema: str, key_schema: str, compatible: list[str], breaking: list[str],
) -> None:  # fmt: skip
    assert export_with(SCHEMA, KEY_SCHEMA) == 0
    before = recorded(tmp_path)
    options = ["--schema", schema, *(["--key-schema", key_schema] if key_schema else [])]
    ended = lakelog("schema", "check", "t", *options, "--json")
    assert json.loads(ended.out) == {"topic": "t", "compatible": compatible, "breaking": breaking}
    assert (ended.status, ended.err) == (1 if breaking else 0, "")
    lines = [f"compatible: {each}" for each in compatible] + [f"breaking: {each}" for each in breaking]
    shown = lines or ["topic t: no recorded field changes"]
    assert lakelog("schema", "check", "t", *options).out.splitlines() == shown
    assert recorded(tmp_path) == before
    if breaking:
        assert export_with(schema, key_schema) == 1
        assert recorded(tmp_path) == before
    ended = lakelog("schema", "accept", "t", *options)
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.splitlines()[:-1] == lines
    accepted = recorded(tmp_path)
    assert (accepted == before) == (not lines)
    assert lakelog("schema", "check", "t", *options).status == 0
    assert lakelog("schema", "accept", "t", *options).out == "topic t: this schema is recorded already\n"
    table = ["--set", "export.table=tables/other"]
    assert export_with(schema, key_schema, *table) == 0
    assert recorded(tmp_path) == accepted


def test_a_settings_file_names_the_schemas_and_an_option_overrides_it(
    lakelog: Lakelog, export_with: Export, tmp_path: Path
) -> None:
    assert export_with(SCHEMA) == 0
    conf = tmp_path / "job.yaml"
    conf.write_text(f"topics: {{t: {{schema: '{SCHEMA}'}}, u: {{}}}}\nexport: {{topic: t}}\n")
    assert lakelog("schema", "check", "t", "--conf", str(conf)).out == "topic t: no recorded field changes\n"
    ended = lakelog("schema", "check", "t", "--conf", str(conf), "--schema", "id STRING NOT NULL")
    assert (ended.status, ended.out) == (1, "breaking: amount is removed\n")


@pytest.mark.parametrize("command", ["check", "accept"])
@pytest.mark.parametrize(
    ("options", "status", "problem"),
    [
        ([], 2, "--schema: no schema is given. Give --schema, or --conf with a file that names it."),
        (["--schema", "nothing"], 2, "--schema: there is no model 'nothing' in schemas/"),
        (["--key-schema", "a INT"], 2, "--key-schema: schema 'a INT' is neither a model nor columns"),
        (["--schema", "a BIGINT", "--registry", "/r"], 2, "--registry: a registry is only for Avro and Protobuf"),
        (["--schema", SCHEMA, "--conf", "/nowhere.yaml"], 2, "/nowhere.yaml"),
        (["--schema", SCHEMA, "--root", "/nowhere"], 1, "topic t: not found under /nowhere"),
    ],
)
def test_what_is_no_schema_is_an_error(
    lakelog: Lakelog, export_with: Export, tmp_path: Path, command: str, options: list[str], status: int, problem: str
) -> None:
    assert export_with(SCHEMA) == 0
    before = recorded(tmp_path)
    ended = lakelog("schema", command, "t", *options)
    assert (ended.status, ended.out) == (status, "")
    assert problem in ended.err
    assert recorded(tmp_path) == before
