"""The upkeep of one table: which files stay, which are deleted, and that exports before, during and after the
upkeep lose nothing.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake.transaction import AddAction
from pyspark.sql import SparkSession

from lakelog.delta_options import delta_options
from pipeline.delta.export_plan import Export, ExportMode
from pipeline.delta.table_history import read_head
from pipeline.delta.upkeep import table_upkeep
from pipeline.delta.upkeep.joining import join_files
from pipeline.delta.upkeep.small_files import SmallFileRule
from pipeline.delta.upkeep.table_upkeep import TableUpkeep, keep_table
from storage_engine.errors import ConflictError
from storage_engine.storage.storage_opening import open_storage
from tests.pipeline.delta.order_log import Log, rows
from tests.pipeline.delta.order_log import run_small as small
from tests.pipeline.delta.order_models import schema_of
from tests.pipeline.delta.test_small_export import EVERYTHING, Everything, by_offset, schema_text
from tests.pipeline.delta.upkeep.dying_upkeep import KILLED, STEPS
from tests.roots.delta_tables import age, commit_file, is_table, table_at
from tests.stores import STORE, files_below, root_at

RULE = SmallFileRule(15, 32 << 20)
ALL = SmallFileRule(1, 32 << 20)
NO_RETENTION = {
    "delta.logRetentionDuration": "interval 0 days",
    "delta.deletedFileRetentionDuration": "interval 0 days",
}
CHANCE = random.Random()
AGED = pytest.mark.posix("sets the times of files")


@pytest.fixture
def log() -> Log:
    CHANCE.seed(7)  # so that a test is the same, whichever tests ran before
    return Log(cast(SparkSession, None))  # no export here needs Spark


def add_three(log: Log) -> None:
    """Three records. The first records of a topic become dead letters."""
    for _ in range(3):
        if log.clock < 2:
            log.add(b"0", b"bad")
            continue
        log.add(b"%d" % CHANCE.randrange(40), CHANCE.choice([None, b"bad", *range(9)]), CHANCE.randrange(2))


def export_each(log: Log, export: Export, count: int) -> None:
    for _ in range(count):
        add_three(log)
        assert small(log, export) is not None


def at_once(log: Log, export: Export) -> Export:
    """The tables that one export of all records makes."""
    whole = replace(export, table=f"{export.table}-at-once", dead_letters=f"{export.dead_letters}-at-once")
    assert small(log, whole) is not None
    return whole


def assert_as_at_once(log: Log, export: Export) -> None:
    whole = at_once(log, export)
    assert by_offset(export.table) == by_offset(whole.table)
    assert schema_text(export.table) == schema_text(whole.table)
    if not is_table(whole.dead_letters):
        assert not is_table(export.dead_letters)
        return
    letters, expected = (
        sorted(
            ({**row, "table_id": None} for row in rows(each.dead_letters)),
            key=lambda row: (row["partition"], row["offset"]),
        )
        for each in (export, whole)
    )
    assert letters == expected


def set_properties(table: str, properties: dict[str, str]) -> None:
    table_at(table).alter.set_table_properties(properties)


def live_files(table: str) -> int:
    return len(table_at(table).file_uris())


def names_in(folder: str) -> list[str]:
    """The names of all files in a folder, relative to the folder."""
    parent, _, name = folder.rpartition("/")
    return sorted(key.removeprefix(f"{name}/") for key in files_below(open_storage(parent), f"{name}/"))


def log_files(table: str) -> int:
    return len(names_in(f"{table}/_delta_log"))


def kept(table: str, rule: SmallFileRule = RULE) -> TableUpkeep:
    done = keep_table(table, rule)
    assert done is not None
    return done


@pytest.mark.parametrize(
    ("mode", "properties"),
    [(ExportMode.UPSERT, NO_RETENTION), (ExportMode.APPEND, {})],
    ids=["upsert, no retention", "append, default retention"],
)
def test_many_small_exports_leave_few_files_and_the_same_rows(
    log: Log, upsert: Export, mode: ExportMode, properties: dict[str, str]
) -> None:
    export = replace(upsert, mode=mode)
    tables = export.table, export.dead_letters
    for turn in range(3):
        export_each(log, export, 20)
        if turn == 0 and properties:
            for table in tables:
                set_properties(table, properties)
        for table in tables:
            age(table)  # the log no longer names the removed files before a checkpoint, so their own time counts
            kept(table)
            assert live_files(table) <= RULE.files + 1
    if properties and STORE == "posix":
        # The log keeps the commits from the last but one checkpoint on.
        assert log_files(export.table) <= 2 * 22 + 3
        rows_files = [name for name in names_in(export.table) if name.endswith(".parquet") and "/" not in name]
        assert len(rows_files) <= 2 * RULE.files + 22
    assert_as_at_once(log, export)


def test_values_of_each_type_stay(log: Log, upsert: Export) -> None:
    export = replace(upsert, mode=ExportMode.APPEND, schema=schema_of(Everything), headers=True)
    for moment in (-62135596800, -1, 0, 253402300799):
        log.add(b"k\xff", EVERYTHING, timestamp=moment)
        log.add(None, EVERYTHING, timestamp=moment)
        small(log, export)
    before = by_offset(export.table)
    assert kept(export.table, ALL).joined == 4
    assert live_files(export.table) == 1
    assert by_offset(export.table) == before
    assert_as_at_once(log, export)


def test_a_table_with_few_small_files_gets_no_commit(log: Log, append: Export) -> None:
    export_each(log, append, 5)
    before = read_head(append.table)
    files = names_in(append.table)
    assert kept(append.table) == TableUpkeep()
    assert read_head(append.table) == before
    assert names_in(append.table) == files
    assert keep_table(f"{append.table} 2", RULE) is None


@pytest.mark.parametrize("mode", [ExportMode.UPSERT, ExportMode.APPEND])
def test_position_and_guard_are_those_of_the_last_export(log: Log, upsert: Export, mode: ExportMode) -> None:
    export = replace(upsert, mode=mode)
    export_each(log, export, 12)
    before = read_head(export.table)
    assert before is not None
    assert before.newest is not None
    assert kept(export.table, ALL).made == 1
    after = read_head(export.table)
    assert after == replace(before, version=before.version + 1)
    table = table_at(export.table)
    assert table.transaction_version(before.newest.app_id) == before.newest.version
    assert "userMetadata" not in table.history(1)[0]
    export_each(log, export, 1)
    assert_as_at_once(log, export)


@pytest.mark.parametrize("mode", [ExportMode.UPSERT, ExportMode.APPEND])
def test_a_restore_to_a_version_before_the_upkeep_continues_there(log: Log, upsert: Export, mode: ExportMode) -> None:
    export = replace(upsert, mode=mode)
    export_each(log, export, 12)
    version = table_at(export.table).version()
    before = by_offset(export.table)
    export_each(log, export, 12)
    for _ in range(2):
        age(export.table)  # the time of the removal counts, not the age of a file
        kept(export.table, ALL)
        export_each(log, export, 3)
    table_at(export.table).restore(version)
    kept(export.table, ALL)
    assert by_offset(export.table) == before
    assert small(log, export) is not None
    kept(export.table, ALL)
    assert_as_at_once(log, export)


@AGED
def test_removed_files_and_files_without_a_commit_are_deleted_after_their_retention(log: Log, append: Export) -> None:
    export_each(log, append, 3)
    orphans = [
        Path(append.table) / "of a killed export %20.parquet",
        Path(append.table) / "of a running export.parquet",
    ]
    for orphan in orphans:
        orphan.write_bytes(b"PAR1")
    later = time.time() + 1_000
    os.utime(orphans[1], (later, later))
    assert kept(append.table, ALL).deleted == 0
    os.utime(orphans[0], (0, 0))
    assert kept(append.table, ALL).deleted == 1
    assert [orphan.exists() for orphan in orphans] == [False, True]
    set_properties(append.table, {"delta.deletedFileRetentionDuration": "interval 0 seconds"})
    done = kept(append.table, ALL)
    assert done.deleted == 3  # the joined files
    assert_as_at_once(log, append)
    for hours, stays in [(0, True), (23, True), (25, False)]:  # an export may still commit a younger file
        moment = time.time() - hours * 3600
        os.utime(orphans[1], (moment, moment))
        kept(append.table, ALL)
        assert orphans[1].exists() == stays


@AGED
def test_temporary_files_of_killed_writers_are_deleted_after_the_retention(log: Log, append: Export) -> None:
    export_each(log, append, 1)
    table = Path(append.table)
    old = [table / folder / f".tmp-{'0a' * 8}" for folder in ("", "_delta_log", "part=1")]
    young, foreign = table / f".tmp-{'0b' * 8}", table / ".tmp-of-a-user"
    for path in (*old, young, foreign):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"PAR1")
        os.utime(path, (0, 0))
    os.utime(young)
    assert kept(append.table, ALL).deleted == 3
    assert sorted(table.rglob(".tmp-*")) == [young, foreign]
    assert_as_at_once(log, append)


@AGED
def test_old_entries_of_the_log_go_but_not_the_position(log: Log, append: Export) -> None:
    export_each(log, append, 12)
    assert kept(append.table).checkpoint == 12
    export_each(log, append, 12)
    assert kept(append.table).checkpoint == 24
    age(f"{append.table}/_delta_log")
    kept(append.table)
    names = names_in(f"{append.table}/_delta_log")
    assert names[0].startswith(f"{24:020d}.checkpoint")
    export_each(log, append, 1)
    kept(append.table)
    table = table_at(append.table)
    assert len(table_at(append.table, version=24).to_pyarrow_table()) < len(table.to_pyarrow_table())
    assert_as_at_once(log, append)


@AGED
@pytest.mark.parametrize("mode", [ExportMode.UPSERT, ExportMode.APPEND])
def test_commits_and_checkpoints_of_others_do_not_expire_the_position(
    log: Log, upsert: Export, mode: ExportMode
) -> None:
    export = replace(upsert, mode=mode)
    export_each(log, export, 3)
    before = read_head(export.table)
    assert before is not None
    for days in range(12):
        set_properties(export.table, {"delta.logRetentionDuration": f"interval {days + 1} days"})
    table_at(export.table).create_checkpoint()
    age(f"{export.table}/_delta_log")
    for _ in range(2):
        assert kept(export.table).checkpoint is None
        age(f"{export.table}/_delta_log")
    after = read_head(export.table)
    assert after == replace(before, version=before.version + 12)
    export_each(log, export, 2)
    assert_as_at_once(log, export)


@AGED
def test_a_log_that_must_not_expire_stays(log: Log, append: Export) -> None:
    export_each(log, append, 12)
    set_properties(append.table, {"delta.enableExpiredLogCleanup": "false"})
    for _ in range(3):
        export_each(log, append, 12)
        kept(append.table)
        age(f"{append.table}/_delta_log")
    assert {f"{version:020d}.json" for version in range(49)} <= set(names_in(f"{append.table}/_delta_log"))


# --- Tables that are left alone ---------------------------------------------------------------------------------------


LEFT_ALONE = {
    "has the property delta.appendOnly = true": {"delta.appendOnly": "true"},
    "has the property delta.logRetentionDuration = interval 1 day 2 hours, which deltalake cannot read": {
        "delta.logRetentionDuration": "interval 1 day 2 hours"
    },
}


@pytest.mark.parametrize("reason", LEFT_ALONE)
def test_a_table_with_unknown_rules_is_left_alone(log: Log, append: Export, reason: str) -> None:
    export_each(log, append, 12)
    commit = commit_file(append.table, 0)
    (name, value), *_ = LEFT_ALONE[reason].items()
    text = commit.read_bytes().decode().replace('"configuration":{', f'"configuration":{{"{name}":"{value}",')
    commit.write_bytes(text.encode())
    before = names_in(append.table)
    assert kept(append.table, ALL) == TableUpkeep(left_alone=reason)
    assert names_in(append.table) == before


@pytest.mark.parametrize(
    ("protocol", "reason"),
    [
        (
            '{"minReaderVersion":3,"minWriterVersion":7,"readerFeatures":["new"],"writerFeatures":["new"]}',
            "needs the feature new of Delta's protocol",
        ),
        (
            '{"minReaderVersion":1,"minWriterVersion":4}',
            "needs reader version 1 and writer version 4 of Delta's protocol",
        ),
    ],
)
def test_a_table_of_a_newer_protocol_is_left_alone(log: Log, append: Export, protocol: str, reason: str) -> None:
    export_each(log, append, 12)
    commit = commit_file(append.table, 0)
    lines = commit.read_bytes().decode().splitlines()
    text = "\n".join(f'{{"protocol":{protocol}}}' if '"protocol"' in line else line for line in lines) + "\n"
    commit.write_bytes(text.encode())
    before = names_in(append.table)
    assert kept(append.table, ALL) == TableUpkeep(left_alone=reason)
    assert names_in(append.table) == before


def test_rows_with_timestamps_of_the_older_kind_are_not_written_again(tmp_path: Path) -> None:
    """deltalake would turn these timestamps into nanoseconds, which end in the year 2262."""
    path = root_at(tmp_path / "table")
    schema = pa.schema([("at", pa.timestamp("us", tz="UTC"))])
    table = deltalake.DeltaTable.create(path, schema, storage_options=delta_options(path))
    moment = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
    for number in range(20):
        name, buffer = f"part-{number}.parquet", pa.BufferOutputStream()
        pq.write_table(pa.table({"at": [moment]}, schema=schema), buffer, use_deprecated_int96_timestamps=True)
        data = buffer.getvalue().to_pybytes()
        open_storage(path).replace(name, data)
        action = AddAction(name, len(data), {}, 0, True, "{}")
        table.create_write_transaction([action], "append", table.schema(), [])
        table.update_incremental()
    done = keep_table(path, RULE, has_stamps=False)
    assert done == TableUpkeep(checkpoint=20, left_alone="has files with timestamps of type INT96")
    assert rows(path) == [{"at": moment}] * 20
    assert table_at(path).version() == 20


# --- Races and kills --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [ExportMode.UPSERT, ExportMode.APPEND])
def test_two_upkeeps_and_two_exports_at_once(log: Log, upsert: Export, mode: ExportMode) -> None:
    export = replace(upsert, mode=mode)
    export_each(log, export, 3)

    def exported() -> int:
        try:
            small(log, export)
        except ConflictError:
            return 1
        return 0

    joined = 0
    with ThreadPoolExecutor(4) as pool:
        for _ in range(20):
            add_three(log)
            upkeeps = [pool.submit(keep_table, export.table, ALL) for _ in range(2)]
            exports = [pool.submit(exported) for _ in range(2)]
            for each in exports:
                each.result()
            for upkeep in upkeeps:
                done = upkeep.result()
                assert done is not None
                joined += done.joined
            if not exported():
                assert small(log, export) is not None
    assert joined > 0
    while exported():
        pass
    assert_as_at_once(log, export)


def test_an_export_that_an_upkeep_overtakes_is_told_and_repeats(log: Log, upsert: Export) -> None:
    log.add(b"bad", b"bad")
    for key in (b"1", b"2", b"3"):  # a new key is a new file
        log.add(key, 1)
        assert small(log, upsert) is not None
    log.add(b"1", 1)
    log.add(b"2", 2)

    def read_while_files_are_joined(*arguments: Any) -> Any:
        assert kept(upsert.table, ALL).made == 1
        return log.read_batches(*arguments)

    with pytest.raises(ConflictError, match="Nothing is lost"):
        small(log, upsert, read=read_while_files_are_joined)
    assert small(log, upsert) is not None
    assert_as_at_once(log, upsert)


def test_an_append_that_an_upkeep_overtakes_is_committed(log: Log, append: Export) -> None:
    export_each(log, append, 5)
    log.add(b"1", 1)

    def read_while_files_are_joined(*arguments: Any) -> Any:
        assert kept(append.table, ALL).made == 1
        return log.read_batches(*arguments)

    assert small(log, append, read=read_while_files_are_joined) is not None
    assert_as_at_once(log, append)


@pytest.mark.parametrize("attempts", [1, 5])
@pytest.mark.parametrize("way", ["upkeep", "deltalake", "export"])
def test_an_upkeep_that_is_overtaken_repeats(
    log: Log, append: Export, monkeypatch: pytest.MonkeyPatch, attempts: int, way: str
) -> None:
    """Another OPTIMIZE replaces the same files first, or an export adds a file."""
    export_each(log, append, 4)
    left = attempts

    def overtaken(*arguments: Any) -> int | None:
        nonlocal left
        if left:
            left -= 1
            if way == "upkeep":
                with monkeypatch.context() as patch:
                    patch.setattr(table_upkeep, "join_files", join_files)
                    kept(append.table, ALL)
            elif way == "deltalake":
                table_at(append.table).optimize.compact()
            export_each(log, append, 2)
        return join_files(*arguments)

    monkeypatch.setattr(table_upkeep, "join_files", overtaken)
    if attempts == 5 and way != "export":
        with pytest.raises(ConflictError, match="5 attempts to join its small files"):
            keep_table(append.table, ALL)
    else:
        assert kept(append.table, ALL).made == 1
    left = 0
    kept(append.table, ALL)
    assert live_files(append.table) == 1
    assert_as_at_once(log, append)


@pytest.fixture(scope="module")
def dying_upkeep() -> Iterator[Callable[[str, str], int]]:
    """Runs the upkeep of a table in a process that dies at a step, and returns its exit status."""
    program = Path(__file__).with_name("dying_upkeep.py")
    home = Path(__file__).resolve().parents[4]
    with subprocess.Popen(
        [sys.executable, str(program)], env={**os.environ, "PYTHONPATH": str(home)}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        given, ended = process.stdin, process.stdout

        def run(step: str, table: str) -> int:
            print(step, table, file=given, flush=True)
            return int(ended.readline())

        yield run
        given.close()


@pytest.mark.parametrize("step", [f"{name}:{moment}" for name in STEPS for moment in ("before", "after")])
def test_a_killed_upkeep_leaves_the_table_whole(
    log: Log, append: Export, dying_upkeep: Callable[[str, str], int], step: str
) -> None:
    export_each(log, append, 12)
    set_properties(append.table, NO_RETENTION)
    assert kept(append.table, ALL).made == 1
    export_each(log, append, 12)
    before = by_offset(append.table)
    head = read_head(append.table)
    assert head is not None
    age(append.table)
    assert dying_upkeep(step, append.table) == KILLED
    assert by_offset(append.table) == before
    after = read_head(append.table)
    assert after is not None
    assert (after.current, after.newest, after.next_guard) == (head.current, head.newest, head.next_guard)
    kept(append.table)
    assert live_files(append.table) <= RULE.files
    export_each(log, append, 2)
    assert_as_at_once(log, append)
