"""`lakelog prove`, beside the job `prove`: the same answers without a settings file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobs.export import export
from pipeline.export.export_request import add_export_options
from pipeline.export.proof_run import add_proof_options, prove_exports
from pipeline.job import run_job
from tests.lakelog.cli.conftest import Lakelog, line
from tests.roots.delta_tables import table_at
from tests.stores import root_at

SCHEMA, KEY_SCHEMA = "id STRING NOT NULL, amount BIGINT", "code STRING NOT NULL"
KINDS = {
    "upserted": ("compact", {"mode": "upsert"}, "schema"),
    "appended with headers": ("delete", {"mode": "append", "headers": "true"}, "schema"),
    "changelog": ("compact", {"mode": "changelog"}, "schema"),
    "raw in partitions": ("delete", {"partition.by": "_partition"}, ""),
    "decoded keys": ("compact", {"mode": "upsert"}, "schema key"),
    "without digests": ("compact", {"mode": "upsert", "digest": "false"}, "schema"),
}

Job = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def job(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Job:
    """Runs a job: exit status, and what --json printed."""

    def run(name: str, *arguments: str) -> tuple[int, dict[str, Any]]:
        main, options = (export, add_export_options) if name == "export" else (prove_exports, add_proof_options)
        capfd.readouterr()
        status = run_job(name, "", main, options, ["--root", root_at(tmp_path / "root"), "--json", *arguments], {})
        return status, without_seconds(capfd.readouterr().out)

    return run


def without_seconds(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)
    found.pop("seconds", None)
    return found


def fill(lakelog: Lakelog, policy: str, topic: str = "t") -> None:
    lakelog("topics", "create", topic, "--partitions", "2", "--config", f"cleanup.policy={policy}")
    lines = [
        line(b'{"code": "k%d"}' % (n % 5), None if n % 9 == 8 else b'{"id": "%d", "amount": %d}' % (n, n))
        for n in range(40)
    ]
    lines.append(line(b'{"code": "bad"}', b"no JSON"))
    assert lakelog("append", "--topic", topic, stdin=lines).status == 0


@pytest.mark.parametrize("kind", KINDS)
def test_the_command_answers_as_the_job_does(kind: str, lakelog: Lakelog, job: Job, tmp_path: Path) -> None:
    policy, settings, schemas = KINDS[kind]
    fill(lakelog, policy)
    given = {"export.topic": "t", "export.table": "tables/some", "export.max.dead.letter.share": "1"}
    given |= {f"export.{name}": value for name, value in settings.items()}
    options = []
    if "schema" in schemas:
        given["topics.t.schema"] = SCHEMA
        options += ["--schema", SCHEMA]
    if "key" in schemas:
        given["topics.t.key.schema"] = KEY_SCHEMA
        options += ["--key-schema", KEY_SCHEMA]
    sets = [text for name, value in given.items() for text in ("--set", f"{name}={value}")]
    assert job("export", *sets)[0] == 0
    arguments = ["prove", "--topic", "t", "--table", "tables/some", "--json", *options]

    def prove(*more: str) -> dict[str, Any]:
        ended = lakelog(*arguments, *more)
        status, wanted = job("prove", *sets, *more)
        found = without_seconds(ended.out)
        wanted["warnings"] = [warning.replace("some: ", "t: ") for warning in wanted["warnings"]]
        assert (ended.status, found) == (status, wanted)
        return found

    found = prove()
    assert (found["answer"], found["records"], found["different"]) == ("equal", 41, 0)
    table_at(root_at(tmp_path / "root" / "tables" / "some")).delete("_partition = 0")
    assert prove()["answer"] == "different"
    assert prove("--table-version", "1")["answer"] == "equal"
    if settings.get("digest") != "false":
        assert prove("--since", "1")["answer"] == "different"


def test_a_table_below_the_root_and_a_table_with_a_whole_path(lakelog: Lakelog, job: Job, tmp_path: Path) -> None:
    fill(lakelog, "delete")
    sets = ["--set", "export.topic=t", "--set", f"topics.t.schema={SCHEMA}", "--set", "export.max.dead.letter.share=1"]
    assert job("export", *sets)[0] == 0
    conf = tmp_path / "export.yaml"
    conf.write_text(
        f"root: {root_at(tmp_path / 'root')}\ntopics: {{t: {{schema: '{SCHEMA}'}}}}\nexport: {{topic: t}}\n"
    )
    for options in (
        ["--schema", SCHEMA],
        ["--table", root_at(tmp_path / "root" / "tables" / "t"), "--schema", SCHEMA],
        ["--conf", str(conf)],
    ):
        ended = lakelog("prove", "--topic", "t", *options)
        assert (ended.status, ended.err) == (0, "")
        assert "answer equal, records 41, table rows 36, equal 36, different 0" in ended.out


@pytest.mark.parametrize(
    ("options", "status", "problem"),
    [
        ([], 2, "with a schema, but the argument --schema names none. Give the text of the setting topics.t.schema."),
        (["--schema", "id BIGINT NOT NULL"], 2, "--schema: is not compatible with the model that is recorded in topic t"),
        (["--schema", "nothing"], 2, "--schema: there is no model 'nothing' in schemas/"),
        (["--schema", SCHEMA, "--table", "tables/nothing"], 1, "tables/nothing: there is no table. Check the path"),
        (["--schema", SCHEMA, "--table-version", "9"], 1, "has no commit of version 9 in its log. Choose a version from 0 to 1"),
        (["--schema", SCHEMA, "--table", "tables/u"], 1, "tables/u: has rows of"),
        (["--schema", SCHEMA, "--root", "/nowhere"], 1, "topic t: not found under /nowhere"),
    ],
)  # fmt: skip
def test_what_cannot_be_proven_is_an_error(
    lakelog: Lakelog, job: Job, options: list[str], status: int, problem: str
) -> None:
    for topic in ("t", "u"):
        fill(lakelog, "delete", topic)
        sets = [f"export.topic={topic}", f"topics.{topic}.schema={SCHEMA}", "export.max.dead.letter.share=1"]
        assert job("export", *(text for each in sets for text in ("--set", each)))[0] == 0
    ended = lakelog("prove", "--topic", "t", *options)
    assert (ended.status, ended.out) == (status, "")
    assert problem in ended.err
