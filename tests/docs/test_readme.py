"""README.md and docs/OPERATIONS.md as a new user takes them: settings and commands copied into an empty folder, and run.

Only paths below /mnt are others, and a stream that would go on until it is stopped takes what is there and ends.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from jobs.export import export
from jobs.ingest import ingest
from jobs.maintenance import add_maintenance_options, maintenance
from pipeline.job import run_job
from tests.sample_orders import as_json, orders

PROJECT = Path(__file__).resolve().parents[2]
README = (PROJECT / "README.md").read_text()
OPERATIONS = (PROJECT / "docs/OPERATIONS.md").read_text()
ORDERS = 500


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("user")


@pytest.fixture(scope="module")
def example(spark: SparkSession, folder: Path) -> Path:
    """The folder after README's example was run on some orders: its root is mnt/shared/lakelog."""
    (settings,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    (folder / "orders.yaml").write_text(settings.replace("/mnt", f"{folder}/mnt"))
    landing = folder / "mnt/landing/orders"
    landing.mkdir(parents=True)
    (landing / "1.json").write_text("".join(f"{line}\n" for line in as_json(orders(0, ORDERS))))
    before = Path.cwd()
    os.chdir(folder)
    try:
        for line in re.findall(r"^    \./spark-submit\.sh (.* --conf orders\.yaml.*)$", README, re.MULTILINE):
            name, *arguments = shlex.split(line)
            arguments = arguments[: arguments.index("--")] if "--" in arguments else arguments
            assert run(name, arguments) == 0, line
    finally:
        os.chdir(before)
    return folder


def run(name: str, arguments: list[str]) -> int:
    if name == "ingest":
        ends = ["--set", "ingest.trigger=available-now"]
        options = lambda parser: parser.set_defaults(take_over=False, accept_new_checkpoint=False)  # noqa: E731
        return run_job(name, "", ingest, options, [*arguments, *ends], {})
    if name == "maintenance":
        return run_job(name, "", maintenance, add_maintenance_options, arguments, {})
    from jobs import export as module

    return run_job(name, "", export, getattr(module, "_add_arguments", None), arguments, {})


def test_the_example_of_your_own_stream_ends_in_a_table_with_every_order(example: Path) -> None:
    table = DeltaTable(str(example / "mnt/shared/lakelog/tables/orders")).to_pyarrow_table()
    found = sorted(table.select(["id", "amount", "at"]).to_pylist(), key=lambda row: str(row["id"]))
    assert found == orders(0, ORDERS).select(["id", "amount", "at"]).to_pylist()
    assert not (example / "mnt/shared/lakelog/tables/dead_letters").exists()


def test_the_model_that_is_shown_is_the_one_that_is_there() -> None:
    (shown,) = [block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "EventModel" in block]
    fields = [ast.unparse(each) for each in ast.walk(ast.parse(shown)) if isinstance(each, ast.AnnAssign)]
    source = ast.parse((PROJECT / "schemas/order.py").read_text())
    assert fields == [ast.unparse(each) for each in ast.walk(source) if isinstance(each, ast.AnnAssign)]


def commands(page: str) -> Iterator[str]:
    """Each line that begins with lakelog or pipes into it, with those that it goes on in."""
    lines = iter(page.splitlines())
    for line in lines:
        if re.match(r"    (lakelog|echo) ", line):
            command = line.strip()
            while command.endswith("|"):
                command += f" {next(lines).strip()}"
            yield command


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], cwd=folder, env=os.environ | {"PATH": path},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


def test_readmes_commands_run_one_after_another(tmp_path: Path) -> None:
    found = list(commands(README))
    assert len(found) >= 15
    for command in found:
        ended = shell(command, tmp_path)
        assert (ended.returncode, ended.stderr) == (0, ""), command


OTHERWISE = re.compile(r"--peer|/backup|jobs\.jsonl")
"""Commands that need another host, a copy, or the log of a schedule."""


def test_the_commands_for_operators_run_on_the_example(example: Path) -> None:
    found = [command for command in commands(OPERATIONS) if not OTHERWISE.search(command)]
    assert len(found) >= 10
    for command in found:
        wanted = command.replace("/mnt", f"{example}/mnt")
        if " | jq " in wanted:  # which not every machine has
            wanted = wanted.partition(" | jq ")[0]
        ended = shell(wanted, example)
        assert (ended.returncode, ended.stderr) == (0, ""), command
