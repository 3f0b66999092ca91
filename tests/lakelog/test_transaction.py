"""Root.transaction: appends to several topics become visible together, or never."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakelog
from lakelog import cli, errors
from lakelog.opening import open_topics
from storage_engine.topic.append.transaction_writer import abort_transaction, finish_transactions, open_transactions
from storage_engine.topic.chain.transaction_files import decide
from storage_engine.topic.topics import Topics
from tests.in_process import run_in_process
from tests.stores import root_at


@pytest.fixture
def log(tmp_path: Path) -> lakelog.Root:
    root = lakelog.open(root_at(tmp_path / "root"), create=True)
    root.create_topic("orders")
    root.create_topic("payments", partitions=2)
    return root


def engine(log: lakelog.Root) -> Topics:
    return open_topics(log.uri.removeprefix("file://"), None, print)


def read(log: lakelog.Root, **options: Any) -> list[tuple[str, int, int, bytes | None]]:
    """Topic, partition, offset and value of every record of both topics."""
    return [
        (row["topic"], row["partition"], row["offset"], row["value"])
        for name in ("orders", "payments")
        for row in log.topic(name).read(**options).to_arrow().to_pylist()
    ]


def test_appends_to_several_topics_become_visible_together(log: lakelog.Root) -> None:
    with log.transaction() as t:
        first = t.append("orders", [{"key": "a", "value": "1"}, {"value": None}])
        second = t.append("payments", pa.table({"value": ["x", "y"]}), partition=1)
        third = t.append("orders", [{"value": "2"}])
        assert t.append("orders", []) == {}
        assert read(log) == []
    assert (first, second, third) == ({0: range(2)}, {1: range(2)}, {0: range(2, 3)})
    assert read(log) == [
        ("orders", 0, 0, b"1"), ("orders", 0, 1, None), ("orders", 0, 2, b"2"),
        ("payments", 1, 0, b"x"), ("payments", 1, 1, b"y"),
    ]  # fmt: skip
    assert open_transactions(engine(log)) == []
    ended = run_in_process(cli.main, ["lakelog", "verify", "--root", log.uri, "--deep"])
    assert (ended.status, ended.err) == (0, "")


@pytest.mark.posix("reads the view")
def test_the_view_shows_what_was_committed(log: lakelog.Root, tmp_path: Path) -> None:
    with log.transaction() as t:
        t.append("payments", [{"value": "x"}], partition=1)
    assert (tmp_path / "root/log/payments-1/00000000000000000000.log").stat().st_size > 0


def test_an_exception_aborts_the_transaction_and_is_raised_on(log: lakelog.Root) -> None:
    with pytest.raises(ZeroDivisionError), log.transaction() as t:  # noqa: PT012 - the end of the block raises
        t.append("orders", [{"value": "gone"}])
        t.append("payments", [{"value": "gone"}], partition=0)
        _ = 1 / 0
    log.topic("orders").append([{"value": "kept"}])
    assert read(log) == [("orders", 0, 2, b"kept")]  # offset 1 is the marker of the abort
    assert [row[3] for row in read(log, isolation="read_uncommitted")] == [b"gone", b"kept", b"gone"]
    assert open_transactions(engine(log)) == []
    with pytest.raises(errors.TransactionError, match="is over"):
        t.append("orders", [{"value": "late"}])


@pytest.mark.parametrize(
    ("topic", "records", "partition", "error"),
    [
        ("payments", [{"value": "b"}, {"value": 7}], None, errors.InvalidRecordError),
        ("payments", [{"value": b"x" * 2_000_000}], None, errors.RecordTooLargeError),
        ("payments", [{"value": "b"}], "0", errors.ConfigError),
        ("unknown", [{"value": "b"}], None, errors.UnknownTopicError),
    ],
)
def test_after_a_refused_append_a_transaction_cannot_be_committed(
    log: lakelog.Root, topic: str, records: object, partition: Any, error: type[errors.LogError]
) -> None:
    with pytest.raises(errors.TransactionError, match="can only be aborted"), log.transaction() as t:  # noqa: PT012 - the end of the block raises
        t.append("orders", [{"value": "a"}])
        with pytest.raises(error):
            t.append(topic, records, partition=partition)
    assert read(log) == []
    assert open_transactions(engine(log)) == []


def test_a_transaction_that_another_process_aborted_is_an_error_at_the_end_of_the_block(log: lakelog.Root) -> None:
    with pytest.raises(errors.TransactionError, match="was aborted by another process"), log.transaction() as t:  # noqa: PT012 - the end of the block raises
        t.append("orders", [{"value": "a"}])
        (found,) = open_transactions(engine(log))
        abort_transaction(engine(log), found.producer_id)
    assert read(log) == []


def test_a_block_that_fails_after_another_process_has_committed_says_that_the_records_are_visible(
    log: lakelog.Root,
) -> None:
    told = "is committed: by another process"
    with pytest.raises(errors.TransactionError, match=told) as raised, log.transaction() as t:  # noqa: PT012 - the end of the block raises
        t.append("orders", [{"value": "a"}])
        topics = engine(log)
        (found,) = open_transactions(topics)
        assert decide(topics.storage, topics.clock, found.producer_id, committed=True)
        raise ValueError("the block fails")
    assert "Do not append the records again." in str(raised.value)
    assert isinstance(raised.value.__context__, ValueError)
    assert read(log) == [("orders", 0, 0, b"a")]


def test_a_topic_that_is_deleted_meanwhile_needs_no_marker(log: lakelog.Root, recwarn: pytest.WarningsRecorder) -> None:
    with log.transaction() as t:
        t.append("orders", [{"value": "a"}])
        t.append("payments", [{"value": "b"}])
        log.delete_topic("orders")
    assert [str(each.message) for each in recwarn] == []
    assert [row["value"] for row in log.topic("payments").read().to_arrow().to_pylist()] == [b"b"]
    assert finish_transactions(engine(log)) == 0


def test_a_killed_transaction_shows_nothing_and_ends_after_its_timeout(log: lakelog.Root) -> None:
    program = (
        "import os, signal, sys, lakelog\n"
        "with lakelog.open(sys.argv[1]).transaction(timeout_seconds=0.001) as t:\n"
        "    t.append('orders', [{'value': 'gone'}])\n"
        "    t.append('payments', [{'value': 'gone'}], partition=1)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    path = log.uri.removeprefix("file://")
    killed = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=False)
    assert (killed.returncode, killed.stderr) == (-signal.SIGKILL, "")
    log.topic("orders").append([{"value": "waits"}])
    assert read(log) == []
    assert finish_transactions(engine(log)) == 2
    assert read(log) == [("orders", 0, 1, b"waits")]


@pytest.mark.parametrize("seconds", [0, -1.5, float("nan"), float("inf"), 2**63 / 1000, 10**400, True, "5", b"5", None])
def test_a_timeout_that_cannot_be_is_refused(log: lakelog.Root, seconds: Any) -> None:
    with pytest.raises(errors.ConfigError, match="timeout_seconds"):
        log.transaction(timeout_seconds=seconds)
