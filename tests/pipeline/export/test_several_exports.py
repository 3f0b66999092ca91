"""A job with several exports, which runs them once, or again after each interval: whole tables, isolation of failures,
and signals.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

import lakelog
from jobs.export import export
from lakelog import Root
from pipeline.delta.files import file_changes
from pipeline.delta.table_history import DeltaLog
from pipeline.delta.upkeep import deleted_files
from pipeline.delta.without_spark import small_export
from pipeline.export import several_exports
from pipeline.export.export_request import add_export_options
from pipeline.job import run_job
from pipeline.stop_request import StopRequest
from storage_engine.clock import SystemClock
from storage_engine.config import BrokerConfig
from storage_engine.storage.storage_opening import open_storage
from storage_engine.topic.clean.topic_retention import delete_records
from storage_engine.topic.topics import Topics

PROJECT = Path(__file__).resolve().parents[3]
SETTINGS = """
root: {root}
topics:
  orders: {{partitions: 2, cleanup.policy: compact, schema: "id STRING NOT NULL, amount BIGINT NOT NULL"}}
  visits: {{partitions: 1, schema: "page STRING NOT NULL"}}
exports:
  newest: {{topic: orders, table: tables/newest{trigger}}}
  history: {{topic: orders, table: tables/history, mode: append{trigger}}}
  visits: {{topic: visits{trigger}}}
"""
PATIENCE_SECONDS = 120


class Place:
    """A root with two topics, and a settings file with three exports."""

    def __init__(self, folder: Path, trigger: str = "") -> None:
        self.root = folder / "root"
        self.conf = folder / "exports.yaml"
        self.log: Root = lakelog.open(self.root, create=True)
        self.conf.write_text(SETTINGS.format(root=self.root, trigger=f", trigger: {trigger}" if trigger else ""))

    def create(self) -> None:
        self.log.create_topic("orders", partitions=2, config={"cleanup.policy": "compact"})
        self.log.create_topic("visits", partitions=1)

    def order(self, key: str, amount: int | str | None) -> None:
        value = None if amount is None else json.dumps({"id": key, "amount": amount}).encode()
        self.log.topic("orders").append([{"key": key.encode(), "value": value}], partition=ord(key[0]) % 2)

    def visit(self, page: str) -> None:
        self.log.topic("visits").append([{"key": None, "value": json.dumps({"page": page}).encode()}])

    def rows(self, table: str, *columns: str) -> list[tuple[Any, ...]]:
        """The rows of a table, sorted; none if there is no table."""
        path = self.root / "tables" / table
        if not (path / "_delta_log/00000000000000000000.json").exists():
            return []
        found = DeltaTable(path).to_pyarrow_table().select(columns).to_pylist()
        return sorted(tuple(row.values()) for row in found)

    def has_rows(self, table: str, number: int) -> bool:
        return len(self.rows(table, "_offset")) >= number

    def is_newest(self, order: tuple[str, int]) -> bool:
        return order in self.rows("newest", "id", "amount")

    def tables(self) -> dict[str, list[tuple[Any, ...]]]:
        return {
            "newest": self.rows("newest", "id", "amount"),
            "history": self.rows("history", "id", "amount", "_partition", "_offset"),
            "visits": self.rows("visits", "page", "_partition", "_offset"),
        }


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path)
    place.create()
    for key, amount in [("a", 1), ("b", 2), ("a", 3), ("c", 4), ("c", None)]:
        place.order(key, amount)
    place.visit("/")
    return place


TABLES = {
    "newest": [("a", 3), ("b", 2)],
    "history": [("a", 1, 1, 0), ("a", 3, 1, 1), ("b", 2, 0, 0), ("c", 4, 1, 2)],
    "visits": [("/", 0, 0)],
}


@pytest.fixture
def run(place: Place, capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, dict[str, Any], list[str]]]:
    """Runs the job in this process: exit status, what --json printed, and standard error."""

    def run(*arguments: str, **environ: str) -> tuple[int, dict[str, Any], list[str]]:
        capfd.readouterr()
        argv = ["--conf", str(place.conf), "--json", *arguments]
        status = run_job("export", "", export, add_export_options, argv, environ)
        said = capfd.readouterr()
        result = json.loads(said.out) if said.out else {}
        return status, result, said.err.splitlines()

    return run


def test_each_export_makes_the_table_that_it_makes_alone(place: Place, run: Callable[..., Any], tmp_path: Path) -> None:
    progress = tmp_path / "progress.jsonl"
    status, result, told = run("--set", "exports.history.max.dead.letter.share=1", "--progress-json", str(progress))
    assert status == 0
    assert place.tables() == TABLES
    works = [json.loads(line)["work"] for line in progress.read_text().splitlines()]
    assert list(dict.fromkeys(works)) == ["export newest", "export history", "export visits"]
    del result["seconds"]
    counts = {"runs": 1, "rows deleted": 0}
    assert result == {
        "job": "export", "exit_status": 0, "exports": 3, "records": 11, "rows written": 7, "dead letters": 1,
        "rows": [
            {"export": "newest", "topic": "orders", "table": "tables/newest", "table version": 1,
             "records": 5, "rows written": 2, "dead letters": 0, **counts},
            {"export": "history", "topic": "orders", "table": "tables/history", "table version": 1,
             "records": 5, "rows written": 4, "dead letters": 1, **counts},
            {"export": "visits", "topic": "visits", "table": "tables/visits", "table version": 1,
             "records": 1, "rows written": 1, "dead letters": 0, **counts},
        ],
        "failures": [], "warnings": result["warnings"],
    }  # fmt: skip
    assert [line.partition(":")[0] for line in result["warnings"]] == ["history"]
    assert len(told) == 1

    alone = tmp_path / "alone.yaml"
    alone.write_text(
        f"root: {place.root}\ntopics: {{orders: {{schema: 'id STRING NOT NULL, amount BIGINT NOT NULL'}}}}\n"
        "export: {topic: orders, table: tables/alone}\n"
    )
    assert run_job("export", "", export, add_export_options, ["--conf", str(alone)], {}) == 0
    assert place.rows("alone", "id", "amount") == TABLES["newest"]

    place.order("b", None)
    place.order("d", 5)
    status, result, _ = run("--only", "newest", "--only", "visits")
    assert [(row["export"], row["records"], row["rows deleted"]) for row in result["rows"]] == [
        ("newest", 2, 1), ("visits", 0, 0),
    ]  # fmt: skip
    assert place.tables() == TABLES | {"newest": [("a", 3), ("d", 5)]}


def between_runs(monkeypatch: pytest.MonkeyPatch, steps: list[Callable[[], None]]) -> None:
    """Let a job with a trigger do one of the steps after each run, and end after the last."""

    def next_step(stop: StopRequest, seconds: float) -> None:
        time.sleep(seconds)
        if steps:
            steps.pop(0)()
        else:
            stop.asked = True

    monkeypatch.setattr(StopRequest, "wait", next_step)


def test_each_run_prints_its_warnings(place: Place, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The report at the end shows only the last ones."""
    monkeypatch.setattr(several_exports, "_MOST_WARNINGS", 2)
    monkeypatch.setattr(several_exports, "_SHORTEST_SECONDS", 0.0)

    def visits(*pages: str | None) -> None:
        place.log.topic("visits").append([{"key": None, "value": page and f'{{"page": "{page}"}}'} for page in pages])

    def lose_a_visit() -> None:
        visits("/lost")
        delete_records(Topics(open_storage(str(place.root)), BrokerConfig(), SystemClock()).chain("visits"), 0, 8)

    nothing = partial(visits)
    steps: list[Callable[[], None]] = [
        partial(visits, None),
        partial(visits, None),
        partial(visits, None, None, "/"),
        partial(visits, None),
        nothing,
    ]
    steps += [lose_a_visit, nothing]

    between_runs(monkeypatch, steps)
    settings = ["--set", "exports.visits.trigger=1 millisecond", "--set", "exports.visits.max.dead.letter.share=1"]
    status, result, told = run("--only", "visits", *settings)
    gap = "partition 0: retention deleted offsets 7 to 7 before they were exported"

    def undecodable(text: str) -> str:
        letters = place.root / "tables/dead_letters/export/visits"
        return f"{text} did not become rows, but dead letters in {letters}; `lakelog report` counts them by reason"

    one = undecodable("1 record")
    warnings = [line.partition("warning: ")[2] for line in told if "warning: " in line]
    assert warnings == [
        one, one, undecodable("2 records"), one, gap,  # a run without records does not repeat it
        f"visits: {one}", f"visits: {gap}",
    ]  # fmt: skip
    assert (status, result["records"], result["warnings"]) == (0, 7, warnings[-2:])


def test_an_export_that_fails_stops_no_other(place: Place, run: Callable[..., Any]) -> None:
    place.order("e", "many")
    status, result, told = run()
    assert status == 4
    assert place.tables() == TABLES | {"newest": [], "history": []}
    assert [row["table version"] for row in result["rows"]] == [None, None, 1]
    assert [line.split(":")[0] for line in result["failures"]] == ["newest", "history"]
    assert "and exports.newest.max.dead.letter.share allows 5.0% (" in result["failures"][0]
    assert (
        'once with --only newest --accept-dead-letters "0:1,1:5"; (3) raise exports.newest.max.'
        in result["failures"][0]
    )
    assert [line for line in told if "failed" in line] == [f"export: failed: {line}" for line in result["failures"]]

    status, result, told = run("--set", "exports.newest.max.dead.letter.share=1", "--only", "newest")
    assert (status, result["dead letters"], place.tables()["newest"]) == (0, 1, TABLES["newest"])
    status, result, _ = run(LAKELOG_EXPORTS_HISTORY_MAX_DEAD_LETTER_SHARE="1")
    assert status == 0
    assert place.tables() == TABLES


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--only", "newst"], "--only: there is no export 'newst'. The nearest name is newest."),
        (
            ["--from-offset", "0:0"],
            "--from-offset: the settings have 3 exports. Choose one of them: --only newest or --only history or --only visits.",
        ),
        (["--replay"], "--replay: the settings have 3 exports. Choose one of them:"),
        (["--set", "export.topic=orders"], "found both sections, export and exports. Move the export into the section"),
        (["--set", "exports.visits.tabel=x"], "unknown key tabel. The nearest valid key is exports.visits.table."),
        (
            ["--set", "exports.visits.table=tables/newest"],
            "the exports newest and visits have the same table, tables/newest.",
        ),
        (["--set", "exports.new.mode=append"], "the key exports.new.topic is missing"),
        (
            ["--set", "exports.visits.table=tables/newest/inner"],
            "is inside the table of newest. Give each",
        ),
        (["--set", "exports.visits.trigger=often"], "expected a trigger; found 'often'"),
    ],
)
def test_a_wrong_request_is_refused_and_nothing_is_exported(
    place: Place, run: Callable[..., Any], arguments: list[str], problem: str
) -> None:
    status, result, _ = run(*arguments)
    assert status == 2
    assert problem in result["error"]
    assert place.tables() == {"newest": [], "history": [], "visits": []}


@pytest.mark.parametrize("hint", ["right", "missing", "damaged"])
def test_a_table_that_was_restored_to_before_its_checkpoint_is_continued(
    place: Place, run: Callable[..., Any], hint: str
) -> None:
    """The history from the last checkpoint on does not contain the stamp of the restored rows."""
    for number in range(12):
        place.visit(f"/{number}")
        assert run("--only", "visits")[0] == 0
    path = place.root / "tables/visits"
    table = DeltaTable(path)
    table.create_checkpoint()
    last = path / "_delta_log/_last_checkpoint"
    assert [commit.version for commit in DeltaLog(str(path)).commits()] == list(range(12, -1, -1))
    if hint == "missing":
        last.unlink()
    elif hint == "damaged":
        last.write_text("{")
    for _ in range(2):
        DeltaTable(path).restore(4)
        place.visit("/after")
        assert run("--only", "visits")[0] == 0
    expected = ["/", *(f"/{number}" for number in range(12)), "/after", "/after"]
    assert place.tables()["visits"] == sorted((page, 0, offset) for offset, page in enumerate(expected))


def test_a_table_whose_files_were_deleted_before_their_commit_is_not_continued_until_it_is_restored(
    place: Place, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("--only", "newest")[0] == 0
    path = place.root / "tables/newest"
    commit = file_changes.commit_changes

    def commit_late(*arguments: Any) -> None:
        """VACUUM has deleted the files, because the process was paused for a week."""
        for file in {*path.glob("*.parquet")} - {Path(uri) for uri in DeltaTable(path).file_uris()}:
            file.unlink()
        commit(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(small_export, "commit_changes", commit_late)
        patch.setattr(deleted_files, "_CHECKED_AFTER_MS", 0)
        place.order("d", 5)
        errors = [run("--only", "newest")]
    errors.append(run("--only", "newest"))
    place.order("e", 6)
    errors.append(run("--only", "newest"))
    for status, result, _ in errors:
        assert (status, result["exit_status"]) == (1, 1)
        assert "files that version 2 added were deleted before the commit" in result["error"]
        assert "Restore the table to version 1 and start the export again." in result["error"]
    assert DeltaTable(path).version() == 2
    DeltaTable(path).restore(1)
    assert run("--only", "newest")[0] == 0
    assert place.tables()["newest"] == [("a", 3), ("b", 2), ("d", 5), ("e", 6)]


def test_a_wrong_mode_is_named_by_its_place(place: Place, run: Callable[..., Any]) -> None:
    assert run()[0] == 0
    status, result, _ = run("--only", "newest", "--set", "exports.newest.mode=append")
    assert (status, result["exit_status"]) == (1, 1)
    assert "the mode in --set exports.newest.mode is now append" in result["error"]


@contextmanager
def running(place: Place) -> Iterator[subprocess.Popen[str]]:
    """The job as a process, which is killed at the end of the block if it still runs."""
    process = subprocess.Popen(
        [sys.executable, str(PROJECT / "jobs/export.py"), "--conf", str(place.conf), "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=place.root,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(PROJECT)},
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def until(is_done: Callable[[], object], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_done():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_tables_follow_their_topics_until_sigterm(tmp_path: Path) -> None:
    place = Place(tmp_path, "1 second")
    place.log.create_topic("orders", partitions=2, config={"cleanup.policy": "compact"})
    place.order("a", 1)
    with running(place) as process:
        until(lambda: place.tables()["history"] == [("a", 1, 1, 0)], process)
        place.order("a", 2)
        place.log.create_topic("visits", partitions=1)  # until now, one of the exports has failed
        place.visit("/late")
        expected: Mapping[str, Any] = {
            "newest": [("a", 2)], "history": [("a", 1, 1, 0), ("a", 2, 1, 1)], "visits": [("/late", 0, 0)]
        }  # fmt: skip
        until(lambda: place.tables() == expected, process)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
    result = json.loads(out)
    assert process.returncode == 0
    assert place.tables() == expected
    assert (result["exports"], result["records"], result["rows written"], result["failures"]) == (3, 5, 5, [])
    assert [row["records"] for row in result["rows"]] == [2, 2, 1]
    assert all(row["runs"] >= 2 for row in result["rows"])
    lines = err.splitlines()
    assert all(line.startswith(("export newest: ", "export history: ", "export visits: ")) for line in lines), lines
    assert "export visits: failed: topic visits: " in err
    assert "; next attempt in " in err
    assert "export visits: 1 record, 1 row written, table version 1 (" in err


def test_a_killed_job_is_continued_and_no_row_is_missing_or_doubled(tmp_path: Path) -> None:
    place = Place(tmp_path, "1 second")
    place.create()
    for number in range(4):
        for key in "abc":
            place.order(key, number)
        place.visit(f"/{number}")
        with running(place) as process:
            until(partial(place.has_rows, "history", 3 * number + 1), process)
            process.kill()
    place.visit("/4")
    with running(place) as process:
        until(partial(place.has_rows, "visits", 5), process)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0
    history = [
        (key, number, ord(key) % 2, offset)
        for key, partition_keys in (("a", "ac"), ("b", "b"), ("c", "ac"))
        for number in range(4)
        for offset in [number * len(partition_keys) + partition_keys.index(key)]
    ]
    assert place.tables() == {
        "newest": [("a", 3), ("b", 3), ("c", 3)],
        "history": history,
        "visits": [(f"/{number}", 0, number) for number in range(5)],
    }


def test_without_a_trigger_a_signal_ends_the_job_as_other_jobs(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.create()
    model = tmp_path / "slow_orders.py"
    model.write_text("import pathlib, time\npathlib.Path(__file__).with_suffix('.begun').touch()\ntime.sleep(600)\n")
    settings = place.conf.read_text().replace('"id STRING NOT NULL, amount BIGINT NOT NULL"', '"slow_orders:Order"')
    place.conf.write_text(f"{settings}schemas: {{path: {tmp_path}}}\n")
    with running(place) as process:
        until(model.with_suffix(".begun").exists, process)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, out) == (143, "")
    assert err == "export: ended by SIGTERM; nothing that was committed is lost\n"
    assert place.tables() == {"newest": [], "history": [], "visits": []}


def test_whatever_a_model_raises_is_told_without_the_value_and_stops_no_other(
    place: Place, run: Callable[..., Any]
) -> None:
    folder = place.conf.parent
    (folder / "raising.py").write_text(
        "import pydantic\nfrom schemas.event_model import EventModel\n"
        "class Order(EventModel):\n    id: str\n    amount: int\n"
        "    @pydantic.field_validator('amount')\n    def check(cls, value):\n        raise KeyError(f'secret {value}')\n"
    )
    (folder / "leaving.py").write_text("import sys\nsys.exit(3)\n")
    settings = place.conf.read_text() + f"schemas: {{path: {folder}}}\n"
    for model, problem in [
        ("raising:Order", "KeyError in the model"),
        ("leaving:Order", "cannot be imported: SystemExit: 3"),
    ]:
        place.conf.write_text(settings.replace('"id STRING NOT NULL, amount BIGINT NOT NULL"', f'"{model}"'))
        status, result, told = run()
        assert status == 4
        assert [line.partition(":")[0] for line in result["failures"]] == ["newest", "history"]
        assert all(problem in line for line in result["failures"]), result["failures"]
        assert "secret" not in json.dumps(result) + "".join(told)
        assert place.tables() == TABLES | {"newest": [], "history": []}


def test_two_jobs_on_the_same_tables_do_the_work_once_and_none_ends(tmp_path: Path) -> None:
    place = Place(tmp_path, "1 second")
    place.create()
    with running(place) as process, running(place) as other:
        for number in range(6):
            place.order("a", number)
            place.visit(f"/{number}")
            until(partial(place.is_newest, ("a", number)), process)
            until(partial(place.has_rows, "history", number + 1), process)
            until(partial(place.has_rows, "visits", number + 1), other)
        for each in (process, other):
            each.send_signal(signal.SIGTERM)
            each.communicate(timeout=PATIENCE_SECONDS)
            assert each.returncode in (0, 4), "4: the last run met a commit of the other job"
    assert place.tables() == {
        "newest": [("a", 5)],
        "history": [("a", number, 1, number) for number in range(6)],
        "visits": [(f"/{number}", 0, number) for number in range(6)],
    }


def test_if_every_export_fails_in_the_first_round_the_job_ends(tmp_path: Path) -> None:
    place = Place(tmp_path, "1 second")
    place.log.create_topic("other", partitions=1)
    with running(place) as process:
        out, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 4
    assert [line.partition(":")[0] for line in json.loads(out)["failures"]] == ["newest", "history", "visits"]
