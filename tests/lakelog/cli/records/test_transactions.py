"""Transactions on the command line: what `lakelog read` and `lakelog offsets` show, and how a user lists, aborts and
finishes transactions.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from storage_engine.clock import ManualClock, SystemClock
from storage_engine.config import BrokerConfig
from storage_engine.topic.append.transaction_writer import TransactionWriter, finish_transactions
from storage_engine.topic.chain import transaction_files
from storage_engine.topic.topics import Topics
from tests.lakelog.cli.conftest import Lakelog, line, text
from tests.storage_engine.record_tables import Row, to_table
from tests.stores import storage_at


@pytest.fixture
def topics(lakelog: Lakelog, tmp_path: Path) -> Topics:
    for topic in ("a", "b"):
        lakelog("topics", "create", topic)
        lakelog("append", "--topic", topic, stdin=[line(b"k", b"before", timestamp=1)])
    return Topics(storage_at(tmp_path / "root"), BrokerConfig(), SystemClock())


def begun(topics: Topics) -> TransactionWriter:
    transaction = TransactionWriter(topics)
    for topic in ("a", "b"):
        transaction.append(topic, to_table([Row(b"k", b"within", timestamp=2)]))
    return transaction


def ended_in(topics: Topics, topic: str, *, committed: bool) -> int:
    """The producer id of a transaction that is decided, and has its markers in one of its two topics."""
    producer_id = begun(topics).producer_id
    assert producer_id is not None
    transaction_files.decide(topics.storage, topics.clock, producer_id, committed=committed)
    finish_transactions(topics, [topic])
    return producer_id


def offsets(lakelog: Lakelog, *arguments: str) -> list[int]:
    return [record["offset"] for record in lakelog("read", "--topic", "a", *arguments).records]


def test_an_isolation_decides_what_is_read_and_where_a_log_ends(lakelog: Lakelog, topics: Topics) -> None:
    transaction = begun(topics)
    uncommitted, committed = ("--isolation", "read_uncommitted"), ("--isolation", "read_committed")
    assert offsets(lakelog) == offsets(lakelog, *committed) == [0]
    assert offsets(lakelog, *uncommitted) == [0, 1]
    assert offsets(lakelog, "--from", "latest", *committed) == []
    assert offsets(lakelog, "--from-timestamp", "2") == []
    assert offsets(lakelog, "--from-timestamp", "2", *uncommitted) == [1]
    assert lakelog("offsets", "--topic", "a").out == "a:0:2\n"
    assert lakelog("offsets", "--topic", "a", *committed).out == "a:0:1\n"
    assert lakelog("offsets", "--topic", "a", "--time", "2", *uncommitted).out == "a:0:1\n"
    assert lakelog("offsets", "--topic", "a", "--time", "2", *committed).out == ""
    assert "open transaction from offset 1 of partition 0 on" in lakelog("topics", "describe", "a").out
    transaction.commit()
    assert offsets(lakelog) == [0, 1]
    assert lakelog("offsets", "--topic", "a", *committed).out == "a:0:3\n"


def test_describe_gives_programs_producers_and_aborted_transactions(lakelog: Lakelog, topics: Topics) -> None:
    begun(topics).abort()
    transaction = begun(topics)
    (described,) = lakelog("topics", "describe", "a", "--format", "json").records
    (partition,) = described["partitions"]
    assert (partition["high_watermark"], partition["last_stable_offset"]) == (4, 3)
    assert [each["txn_first_offset"] for each in partition["producers"] if each["last_offset"] >= 0] == [3]
    aborted = [each for segment in partition["segments"] for each in segment["aborted"]]
    assert [(each["first_offset"], each["last_offset"]) for each in aborted] == [(1, 2)]
    transaction.abort()


def test_an_open_transaction_is_listed_and_aborted(lakelog: Lakelog, topics: Topics) -> None:
    assert lakelog("transactions", "list").out == ""
    producer_id = begun(topics).producer_id
    (listed,) = lakelog("transactions", "list").records
    assert (listed["producerId"], listed["decision"], listed["timeoutMs"]) == (producer_id, None, 900_000)
    assert listed["partitions"] == [
        {"topic": "a", "partition": 0, "firstOffset": 1},
        {"topic": "b", "partition": 0, "firstOffset": 1},
    ]
    assert lakelog("transactions", "finish").out == "ended transactions on 0 partitions\n"
    aborted = lakelog("transactions", "abort", f"{producer_id}")
    assert (aborted.status, aborted.out) == (0, f"aborted the transaction of producer {producer_id}\n")
    assert lakelog("transactions", "list").out == ""
    again = lakelog("transactions", "abort", f"{producer_id}")
    assert again.status == 1
    assert f"transaction of producer {producer_id}: is not open on any partition." in again.err
    assert offsets(lakelog) == [0]


@pytest.mark.posix("settles the view")
def test_settling_aborts_what_has_timed_out(lakelog: Lakelog, topics: Topics, tmp_path: Path) -> None:
    topics.clock = ManualClock(1_700_000_000_000)
    begun(topics)
    assert lakelog("topics", "settle", "a").status == 0
    assert len(lakelog("transactions", "list").records[0]["partitions"]) == 1
    if topics.storage.root is not None:
        assert (topics.storage.root / "log/a-0/00000000000000000002.txnindex").stat().st_size == 34
    assert lakelog("transactions", "finish").out == "ended transactions on 1 partition\n"
    lakelog("append", "--topic", "a", stdin=[line(b"k", b"after")])
    assert offsets(lakelog) == [0, 3]


def test_lines_of_several_topics_are_appended_in_one_transaction(lakelog: Lakelog, topics: Topics) -> None:
    lines = [line(b"k", b"%d" % number, topic="ab"[number % 2], headers=[["n", None]]) for number in range(10)]
    appended = lakelog("append", "--transactional", stdin=lines)
    assert (appended.status, appended.err) == (0, "")
    assert appended.out == "appended 5 records to topic a\nappended 5 records to topic b\n"
    for topic, first in (("a", 0), ("b", 1)):
        read = lakelog("read", "--topic", topic).records[1:]
        expected = [text(b"%d" % number) for number in range(first, 10, 2)]
        assert [record["value"] for record in read] == expected
        assert {str(record["headers"]) for record in read} == {"[['n', None]]"}
    assert lakelog("transactions", "list").out == ""


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (line(b"k", b"v"), "line 2: the field topic must contain a topic's name, found null"),
        (line(b"k", b"v", topic=7), "line 2: the field topic must contain a topic's name, found a number"),
        (line(b"k", b"v", topic="c"), "topic c: not found"),
        (line(b"k", b"v", topic="a", timestamp=2**62), "line 2"),
    ],
)
def test_one_wrong_line_aborts_the_whole_transaction(lakelog: Lakelog, topics: Topics, bad: str, problem: str) -> None:
    ended = lakelog("append", "--transactional", stdin=[line(b"k", b"v", topic="b"), bad])
    assert (ended.status, ended.out) == (1, "")
    assert problem in ended.err
    for topic in ("a", "b"):
        assert len(lakelog("read", "--topic", topic).records) == 1
    assert lakelog("transactions", "list").out == ""
    verified = lakelog("verify")
    assert (verified.status, verified.err) == (0, ""), verified.out


@pytest.mark.posix("reads the view")
@pytest.mark.parametrize("command", ["abort", "finish"])
def test_the_view_shows_what_a_command_has_ended(lakelog: Lakelog, topics: Topics, command: str) -> None:
    if command == "finish":
        topics.clock = ManualClock(1_700_000_000_000)
    producer_id = begun(topics).producer_id
    assert lakelog("verify").status == 4
    arguments = ("abort", f"{producer_id}") if command == "abort" else ("finish",)
    assert lakelog("transactions", *arguments).status == 0
    verified = lakelog("verify")
    assert verified.status == 0, verified.out


@pytest.mark.parametrize(
    "arguments", [(), ("--transactional", "--topic", "a"), ("--transactional", "--partition", "0")]
)
def test_a_transaction_takes_its_topics_from_the_lines_alone(lakelog: Lakelog, arguments: tuple[str, ...]) -> None:
    assert lakelog("append", *arguments).status == 2


@pytest.mark.posix("settles the view")
def test_a_damaged_begun_record_is_found_and_holds_up_no_transaction(
    lakelog: Lakelog, topics: Topics, tmp_path: Path
) -> None:
    damaged, other = begun(topics).producer_id, begun(topics).producer_id
    record = f"meta/@transactions/{damaged:020d}.begun.json"
    topics.storage.replace(record, b"{")
    assert lakelog("topics", "settle").status == 0
    verified = lakelog("verify")
    assert verified.status == 4
    assert f"{topics.storage.uri}/{record} at position 0: expected a record of a transaction" in verified.out
    assert "1 problem (1 state)" in verified.out
    listed = {each["producerId"]: each["begunMs"] is None for each in lakelog("transactions", "list").records}
    assert listed == {damaged: True, other: False}
    for producer_id in (other, damaged):
        assert lakelog("transactions", "abort", f"{producer_id}").status == 0
    assert lakelog("transactions", "list").out == ""
    assert offsets(lakelog) == [0]
    topics.storage.delete(record)
    lakelog("topics", "settle")
    assert lakelog("verify").status == 0


@pytest.mark.posix("settles the view")
def test_a_damaged_decision_is_an_error_of_its_topics_and_log_is_settled_all_the_same(
    lakelog: Lakelog, topics: Topics, tmp_path: Path
) -> None:
    transaction = TransactionWriter(topics)
    transaction.append("a", to_table([Row(b"k", b"within", timestamp=2)]))
    record = f"meta/@transactions/{transaction.producer_id:020d}.ended.json"
    topics.storage.replace(record, b"{}")
    settled = lakelog("topics", "settle")
    assert settled.status == 1
    assert f"{transaction.producer_id:020d}.ended.json" in settled.err
    verified = lakelog("verify")
    assert (verified.status, "1 problem (1 state)" in verified.out) == (4, True)
    assert str(record) in verified.out

    further = TransactionWriter(topics)
    further.append("b", to_table([Row(b"k", b"within", timestamp=2)]))
    assert further.commit() == ()
    assert lakelog("read", "--topic", "b").status == 0
    assert lakelog("read", "--topic", "a").status == 1
    assert transaction.producer_id is not None
    told = lakelog("transactions", "decide", str(transaction.producer_id), "commit")
    assert told == (0, f"recorded for the transaction of producer {transaction.producer_id}: commit\n", "")
    assert lakelog("topics", "settle").status == 0
    assert offsets(lakelog) == [0, 1]
    assert lakelog("verify").status == 0


def test_only_a_damaged_decision_is_put_on_record_again(lakelog: Lakelog, topics: Topics) -> None:
    transaction = TransactionWriter(topics)
    transaction.append("a", to_table([Row(b"k", b"within", timestamp=2)]))
    assert transaction.producer_id is not None
    decide = ("transactions", "decide", str(transaction.producer_id))
    undecided = lakelog(*decide, "commit")
    assert (undecided.status, "has no recorded decision" in undecided.err) == (1, True)
    transaction_files.decide(topics.storage, topics.clock, transaction.producer_id, committed=False)
    for word in ("commit", "abort"):
        decided = lakelog(*decide, word)
        assert (decided.status, "is aborted. Only a damaged record can be replaced." in decided.err) == (
            1,
            True,
        )
    assert offsets(lakelog) == [0]


@pytest.mark.posix("settles the view")
def test_a_decision_that_can_be_known_is_not_put_on_record_otherwise(
    lakelog: Lakelog, topics: Topics, tmp_path: Path
) -> None:
    """A repair restores a document with one changed byte. Otherwise, a topic with a marker shows how the transaction
    ends in all topics."""
    producer_id = ended_in(topics, "a", committed=True)
    record = f"meta/@transactions/{producer_id:020d}.ended.json"
    whole = topics.storage.read(record)
    decide = ("transactions", "decide", str(producer_id))

    topics.storage.replace(record, whole.replace(b"true", b"tr5e"))
    told = lakelog(*decide, "abort")
    assert (told.status, "`lakelog verify --repair` restores the record" in told.err) == (1, True)

    topics.storage.replace(record, whole.replace(b'"format":2', b'"format":3')[: whole.rindex(b',"digest"')] + b"}")
    told = lakelog(*decide, "abort")
    assert (told.status, "Use a newer Lakelog." in told.err) == (1, True)

    topics.storage.replace(record, b"{}")
    told = lakelog(*decide, "abort")
    assert (told.status, "is committed, as its marker in topic a says" in told.err) == (1, True)
    assert topics.storage.read(record) == b"{}"
    assert lakelog(*decide, "commit").status == 0
    (aside,) = topics.storage.list("meta/@transactions/damaged/")
    assert topics.storage.read(aside.key) == b"{}"
    assert lakelog("topics", "settle").status == 0
    for topic in ("a", "b"):
        assert [each["offset"] for each in lakelog("read", "--topic", topic).records] == [0, 1]
    assert lakelog("verify").status == 0


def test_an_aborted_transaction_is_not_put_on_record_as_committed(
    lakelog: Lakelog, topics: Topics, tmp_path: Path
) -> None:
    producer_id = ended_in(topics, "b", committed=False)
    topics.storage.replace(f"meta/@transactions/{producer_id:020d}.ended.json", b"{}")
    told = lakelog("transactions", "decide", str(producer_id), "commit")
    assert (told.status, "is aborted, as its marker in topic b says" in told.err) == (1, True)
