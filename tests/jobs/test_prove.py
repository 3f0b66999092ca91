"""The job `prove` on its command line: its output and its exit status, without Spark."""

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
from tests.jobs.test_export import FLIGHT, append
from tests.lakelog.cli.conftest import Lakelog, lakelog
from tests.roots.delta_tables import table_at
from tests.stores import root_at

__all__ = ["lakelog"]

Prove = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture
def prove(tmp_path: Path, lakelog: Lakelog, capfd: pytest.CaptureFixture[str]) -> Prove:
    """Runs the job on the tables of two topics with two flights each: exit status, what --json printed, and standard
    error."""
    conf = tmp_path / "several.yaml"
    conf.write_text(
        "topics: {t: {schema: flight}, u: {}}\n"
        "exports: {flights: {topic: t, table: tables/flights}, raw: {topic: u, table: tables/raw}}\n"
    )
    argv = ["--root", root_at(tmp_path / "root"), "--conf", str(conf), "--json"]
    for name in ("t", "u"):
        assert lakelog("topics", "create", name, "--partitions", "1").status == 0
    append(lakelog, FLIGHT, FLIGHT)
    append(lakelog, FLIGHT, FLIGHT, topic="u")
    assert run_job("export", "", export, add_export_options, argv, {}) == 0

    def run(*arguments: str) -> tuple[int, dict[str, Any], str]:
        capfd.readouterr()
        status = run_job("prove", "", prove_exports, add_proof_options, [*argv, *arguments], {})
        said = capfd.readouterr()
        found = json.loads(said.out)
        found.pop("seconds", None)
        return status, found, said.err

    return run


def test_the_answer_is_in_the_output_and_in_the_exit_status(tmp_path: Path, prove: Prove, lakelog: Lakelog) -> None:
    both = {
        "job": "prove", "exit_status": 0, "answer": "equal", "tables": 2, "records": 4, "table rows": 4, "equal": 4,
        "different": 0, "no longer provable": 0, "reasons": {}, "covered by stamps": 0, "rows": [],
        "failures": [], "warnings": [],
    }  # fmt: skip
    assert prove() == (0, both, "")
    table_at(root_at(tmp_path / "root" / "tables" / "raw")).delete("_offset = 1")
    status, found, told = prove()
    assert (status, told) == (1, "prove: warning: raw: another writer committed version 2, which changed rows\n")
    changed = "1 rows, but 2 in the stamp of version 1; another writer committed version 2"
    problems = [
        {"table": "tables/raw", "partition": 0, "offset": 1, "problem": "the record has no row"},
        {"table": "tables/raw", "partition": 0, "offset": None, "problem": changed},
    ]
    assert found == {
        **both, "exit_status": 1, "answer": "different", "table rows": 3, "equal": 3, "different": 2, "rows": problems,
        "warnings": ["raw: another writer committed version 2, which changed rows"],
    }  # fmt: skip
    assert prove("--only", "flights")[:2] == (0, {
        **{name: value for name, value in both.items() if name != "tables"},
        "table": "tables/flights", "table version": 1, "records": 2, "table rows": 2, "equal": 2,
    })  # fmt: skip
    assert prove("--only", "raw", "--table-version", "1")[1]["answer"] == "equal"

    assert lakelog("delete-records", "--topic", "t", "--partition", "0", "--offset", "1").status == 0
    status, found, _ = prove("--only", "flights")
    assert (status, found["answer"], found["no longer provable"]) == (0, "equal as far as the log can tell", 1)
    assert (found["reasons"], found["covered by stamps"]) == ({"retention has deleted the record": 1}, 1)
    status, found, _ = prove("--only", "flights", "--since", "1")
    assert (status, found["answer"], found["records"], found["no longer provable"]) == (0, "equal", 0, 0)


def test_the_text_says_what_the_chain_covers(
    tmp_path: Path, prove: Prove, lakelog: Lakelog, capfd: pytest.CaptureFixture[str]
) -> None:
    assert lakelog("delete-records", "--topic", "t", "--partition", "0", "--offset", "1").status == 0
    assert prove("--only", "flights")[0] == 0
    argv = ["--root", root_at(tmp_path / "root"), "--conf", str(tmp_path / "several.yaml"), "--only", "flights"]
    assert run_job("prove", "", prove_exports, add_proof_options, argv, {}) == 0
    assert capfd.readouterr().out.splitlines()[-2:] == [
        "prove: flights: 2 rows compared with their digests; 1 stamp checked, back to version 1",
        "prove: flights: no longer provable from the log for 1 row; the chain of stamps covers them",
    ]


def test_a_restored_table_has_a_warning(tmp_path: Path, prove: Prove, lakelog: Lakelog) -> None:
    append(lakelog, FLIGHT)
    argv = ["--root", root_at(tmp_path / "root"), "--conf", str(tmp_path / "several.yaml")]
    assert run_job("export", "", export, add_export_options, argv, {}) == 0
    table_at(root_at(tmp_path / "root" / "tables" / "flights")).restore(1)
    status, found, _ = prove("--only", "flights")
    assert (status, found["answer"], found["table rows"]) == (0, "equal", 2)
    restored = "the table was restored to an older version, and nothing was exported since"
    compared = "only the records up to the positions of the older version were compared"
    assert found["warnings"] == [f"flights: {restored}; {compared}"]


def test_a_table_that_cannot_be_proved_stops_no_other_proof(tmp_path: Path, prove: Prove, lakelog: Lakelog) -> None:
    assert lakelog("topics", "delete", "u").status == 0
    status, found, told = prove()
    assert (status, found["answer"], found["table rows"]) == (4, "failed", 2)
    assert told.startswith("prove: failed: raw: topic u: ")
    status, found, _ = prove("--only", "raw")
    assert status == 1
    assert "topic u" in found["error"]
    for arguments in (
        ["--table-version", "-1", "--only", "raw"],
        ["--table-version", "1"],
        ["--since", "1"],
        ["--only", "nobody"],
    ):
        assert prove(*arguments)[0] == 2
