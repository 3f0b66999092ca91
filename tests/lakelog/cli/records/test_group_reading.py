"""`lakelog read --group`: positions move only with --commit, and only after the records were printed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typing_extensions import Buffer

from lakelog.cli.options import topic_readers
from lakelog.cli.records.group_reading import group_reading
from lakelog.opening import open_topics
from storage_engine.clock import ManualClock
from storage_engine.config import BrokerConfig
from storage_engine.errors import StorageError
from storage_engine.log.filenames import data_key
from storage_engine.storage.posix import PosixStorage
from storage_engine.topic.clean.topic_retention import delete_records
from storage_engine.topic.readers.consumer_files import STREAM_KIND, put_positions
from storage_engine.topic.readers.membership import find_group
from storage_engine.topic.topics import Topics
from tests.lakelog.cli.conftest import Lakelog, line
from tests.stores import root_at, storage_at

READ = ("read", "--topic", "t", "--group", "g")
COMMIT = (*READ, "--commit")
LARGE = bytes(300_000)
"""A value whose output line is too large for a pipe's buffer. So a command cannot end while no process reads its
output."""

BEGINS_ELSEWHERE = (
    "--group is given, too, and the group's positions decide where to begin. Leave out one of the two. `lakelog groups"
    " reset-offsets` moves a group to other positions."
)


def append(lakelog: Lakelog, partition: int, *values: bytes) -> None:
    lakelog(
        "append",
        "--topic",
        "t",
        "--partition",
        str(partition),
        stdin=[line(b"k", value, timestamp=5) for value in values],
    )


@pytest.fixture
def t(lakelog: Lakelog) -> None:
    """Topic t: records 0 to 2 in partition 0, and 0 and 1 in partition 1."""
    lakelog("topics", "create", "t", "--partitions", "2", "--config", f"message.timestamp.before.max.ms={2**63 - 1}")
    append(lakelog, 0, b"a", b"b", b"c")
    append(lakelog, 1, b"x", b"y")


def positions(lakelog: Lakelog) -> list[tuple[int, int, str]]:
    found = lakelog("groups", "describe", "--group", "g", "--json").records
    return [(each["current_offset"], each["lag"], each["member"]) for each in found]


def test_a_group_gets_what_it_has_not_read_and_moves_only_with_commit(lakelog: Lakelog, t: None) -> None:
    everything = lakelog("read", "--topic", "t").out.splitlines(keepends=True)
    assert lakelog(*READ).out == "".join(everything)
    assert lakelog("groups", "list").out == ""

    first = lakelog(*COMMIT, "--max", "2")
    assert (first.status, first.out, first.err) == (0, "".join(everything[:2]), "")
    assert positions(lakelog) == [(2, 1, ""), (0, 2, "")]
    assert lakelog(*COMMIT, "--partition", "1", "--format", "table").out.split("\n")[0].rstrip() == "t, partition 1"
    assert positions(lakelog) == [(2, 1, ""), (2, 0, "")]

    for _ in range(2):
        assert lakelog(*READ).out == everything[2]
    assert lakelog(*COMMIT).out == everything[2]
    assert lakelog(*COMMIT).out == ""
    append(lakelog, 0, b"later")
    assert lakelog(*COMMIT).out == lakelog("read", "--topic", "t", "--partition", "0", "--from", "3").out != ""
    assert positions(lakelog) == [(4, 0, ""), (2, 0, "")]

    lakelog("groups", "reset-offsets", "--group", "g", "--topic", "t:1", "--to-offset", "1", "--execute")
    assert lakelog(*COMMIT).out == everything[4]


def test_what_aborted_transactions_left_is_behind_the_group_after_a_read(lakelog: Lakelog, t: None, tmp_path) -> None:
    from lakelog.given_records import record_batches
    from storage_engine.topic.append.transaction_writer import TransactionWriter

    (batch,) = record_batches([{"value": "aborted"}], 5)
    with TransactionWriter(open_topics(root_at(tmp_path / "root"), None, print), 10**9) as transaction:
        transaction.append("t", batch, 1)
        assert len(lakelog(*COMMIT).records) == 5
        assert positions(lakelog) == [(3, 0, ""), (2, 1, "")]
    assert lakelog(*COMMIT).out == ""
    assert [lag for _, lag, _ in positions(lakelog)] == [0, 0]


def test_a_reader_that_is_killed_or_fenced_between_print_and_commit_repeats_and_misses_nothing(
    lakelog: Lakelog, t: None, tmp_path: Path
) -> None:
    append(lakelog, 1, LARGE)
    everything = lakelog("read", "--topic", "t").out
    large = lakelog("read", "--topic", "t", "--partition", "1", "--from", "2").out
    environment = {**os.environ, "LAKELOG_ROOT": root_at(tmp_path / "root")}
    command = [sys.executable, "-m", "lakelog.cli", *COMMIT]

    def start() -> subprocess.Popen[bytes]:
        """A reader that waits with its last positions until somebody takes the large record."""
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    with start() as killed:
        assert killed.stdout
        printed = b"".join(killed.stdout.readline() for _ in range(5))
        assert printed.decode() == lakelog("read", "--topic", "t", "--max", "5").out
        assert killed.stdout.read(1) == b"{", "the large record is on its way"
        killed.send_signal(signal.SIGKILL)
    repeated = lakelog(*READ).out
    assert everything.endswith(repeated), "what was printed may come again"
    assert repeated.endswith(large), "what was not printed comes"

    with start() as fenced:
        assert fenced.stdout
        assert fenced.stderr
        begun = fenced.stdout.read(1)
        other = lakelog(*COMMIT).out
        assert repeated.endswith(other)
        assert other.endswith(large)
        assert (begun + fenced.stdout.read()).decode() == repeated
        told = fenced.stderr.read()
    assert fenced.returncode == 3
    assert told.decode() == (
        "lakelog: group g, topic t: has generation 3, found a member of generation 2. Another reader has joined the group,"
        " or its positions were reset. Only one reader at a time can commit.\n"
    )
    assert positions(lakelog) == [(3, 0, ""), (3, 0, "")]


class Counting(PosixStorage):
    """Counts the writes of groups' files."""

    writes = 0

    def put_new(self, key: str, data: Buffer) -> None:
        self.writes += "/groups/" in key
        super().put_new(key, data)

    def replace(self, key: str, data: Buffer) -> None:
        self.writes += "/groups/" in key
        super().replace(key, data)


@pytest.mark.parametrize(("step_ms", "commits"), [(0, 0), (75, 2)])
def test_positions_are_written_once_per_second_and_at_the_end(tmp_path: Path, step_ms: int, commits: int) -> None:
    storage, clock = Counting(tmp_path), ManualClock(10_000)
    topics = Topics(storage, BrokerConfig(), clock)
    topics.create("t", 40, {})
    state = topics.state("t")
    with group_reading(topics, "t", "g", commits=True) as reading:
        reading.first_offsets(topic_readers(topics, "t", None))
        before = storage.writes
        for number in range(40):
            clock.advance(step_ms)
            reading.done(number, number + 1)
        assert storage.writes - before == commits
    assert storage.writes - before == commits + 2, "leaving the group is a write, too"
    found = find_group(storage, state, "g")
    assert found is not None
    assert found.positions == {number: number + 1 for number in range(40)}


@pytest.mark.parametrize("error", [KeyboardInterrupt, StorageError("disk", "failed")])
def test_positions_are_written_if_the_command_ends_with_an_error(tmp_path: Path, error: BaseException) -> None:
    topics = Topics(storage_at(tmp_path), BrokerConfig(), ManualClock(10_000))
    topics.create("t", 2, {})
    state = topics.state("t")

    def read() -> None:
        with group_reading(topics, "t", "g", commits=True) as reading:
            reading.first_offsets(topic_readers(topics, "t", None))
            reading.done(1, 7)
            raise error

    with pytest.raises((KeyboardInterrupt, StorageError)):
        read()
    found = find_group(topics.storage, state, "g")
    assert found is not None
    assert (found.positions, found.member) == ({0: 0, 1: 7}, "")


def test_records_that_were_deleted_unread_are_an_error_that_names_the_way_on(
    lakelog: Lakelog, t: None, tmp_path: Path
) -> None:
    lakelog(*COMMIT, "--max", "1")
    delete_records(open_topics(root_at(tmp_path / "root"), None, print).chain("t"), 0, 2)
    ended = lakelog(*COMMIT)
    assert (ended.status, ended.out) == (1, "")
    way_on = "groups reset-offsets --group g --topic t:0 --to-earliest --execute"
    assert ended.err == (
        "lakelog: group g, topic t, partition 0: the next offset to read is 1, but the log now starts at 2."
        f" Retention deleted records before the group read them. To continue at the log's start: `lakelog {way_on}`.\n"
    )
    lakelog(*way_on.split())
    assert [each["offset"] for each in lakelog(*COMMIT).records] == [2, 0, 1]


@pytest.mark.posix("a reader of a store has the small segments in memory before it prints the first record")
def test_records_that_are_deleted_while_a_group_reads_are_an_error_with_the_same_way_on(
    lakelog: Lakelog, tmp_path: Path
) -> None:
    lakelog("topics", "create", "t", "--config", "segment.bytes=500000")
    for _ in range(3):  # each has a segment of its own
        lakelog("append", "--topic", "t", stdin=[line(b"k", LARGE)])
    environment = {**os.environ, "LAKELOG_ROOT": root_at(tmp_path / "root")}
    command = [sys.executable, "-m", "lakelog.cli", *COMMIT]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as reading:
        assert reading.stdout
        assert reading.stderr
        begun = reading.stdout.read(1)  # the rest of the first record waits in the pipe
        topics = open_topics(root_at(tmp_path / "root"), None, print)
        state = topics.state("t")
        delete_records(topics.chain("t"), 0, 2)
        for segment in state.partitions[0].segments[:2]:
            topics.storage.delete(data_key(state.topic_id, 0, segment.name))
        assert (begun + reading.stdout.read()).count(b"\n") == 1
        told = reading.stderr.read().decode()
    assert reading.returncode == 1
    assert told == (
        "lakelog: topic t, partition 0: the next offset to read is 1, but the log now starts at 2. Retention or"
        " delete-records deleted the records before they were read. To continue at the log's start:"
        " `lakelog groups reset-offsets --group g --topic t:0 --to-earliest --execute`.\n"
    )


def test_only_the_positions_of_a_group_can_be_moved(lakelog: Lakelog, t: None, tmp_path: Path) -> None:
    topics = open_topics(root_at(tmp_path / "root"), None, print)
    put_positions(topics.storage, topics.state("t"), "g", STREAM_KIND, {0: 2, 1: 2}, 1)
    assert [each["offset"] for each in lakelog(*READ).records] == [2]
    ended = lakelog(*COMMIT)
    assert (ended.status, ended.out) == (1, "")
    assert ended.err.startswith("lakelog: group g, topic t: is of kind 'stream', not 'group'.")
    assert positions(lakelog) == [(2, 1, ""), (2, 0, "")]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("read", "--topic", "t", "--commit"), "--commit: no group is given. Give --group, or leave out --commit."),
        (("read", "--group", "g"), "--topic: no topic is given. Name a topic; `lakelog topics list` prints all names."),
        (("read", "--topic", "t", "--group", ""), "--group: found an empty name. Name the group."),
        ((*READ, "--kafka-dir", "d"), "--group: --kafka-dir is given, too. Only a root has groups: give --root."),
        ((*COMMIT, "--from", "1"), f"--from: {BEGINS_ELSEWHERE}"),
        ((*READ, "--from-timestamp", "1"), f"--from-timestamp: {BEGINS_ELSEWHERE}"),
    ],
)
def test_options_that_contradict_a_group_are_refused(
    lakelog: Lakelog, t: None, arguments: tuple[str, ...], told: str
) -> None:
    ended = lakelog(*arguments)
    assert (ended.status, ended.out, ended.err) == (2, "", f"lakelog: {told}\n")
    assert lakelog("groups", "list").out == ""
