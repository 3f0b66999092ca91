"""The operations that must survive a fault at any of their calls.

Each operation has a separate root, and describes four things:

- the contents before the operation;
- the actions of a process until it fails or dies;
- the following actions of an operator or of Spark;
- the contents that a reader may see during the operation.

The naive model lists all permitted contents in advance. A reader must see one of the listed contents, and never
contents from before an acknowledged change. At the end, a reader must see the last of the listed contents.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar
from unittest.mock import patch

import pyarrow as pa
import pytest
from typing_extensions import Buffer

from lakelog.spark.sink.committing import CheckpointFolder, commit_batch
from lakelog.spark.sink.sink_staging import StagedRows
from pipeline.ingest.rows.record_rows import ROWS
from pipeline.ingest.staging_task import StagingTask, StagingTopic
from storage_engine.errors import FencedError
from storage_engine.log.isolation import Isolation
from storage_engine.storage import Storage
from storage_engine.topic.append.appending import Encoding, append_records
from storage_engine.topic.append.staged_list import (
    StagedBatch,
    StagedTopic,
    check_list,
    delete_list,
    pending_lists,
    put_list,
    read_list,
)
from storage_engine.topic.append.staged_run import StagedRun, by_partition, staging_folder
from storage_engine.topic.append.topic_writer import BatchIdentity, TopicWriter
from storage_engine.topic.append.transaction_writer import TransactionWriter, finish_transactions
from storage_engine.topic.chain import segment_lists
from storage_engine.topic.chain.history_reader import HistoryReader
from storage_engine.topic.chain.pruning import prune
from storage_engine.topic.chain.state_chain import StateChain
from storage_engine.topic.clean.applying_plans import check_current, cleaning_tasks_of, retain_as_planned
from storage_engine.topic.clean.cleaning_plan import plan_topics
from storage_engine.topic.clean.split_compaction import compact_split
from storage_engine.topic.clean.state_swap import CleaningResult
from storage_engine.topic.clean.sweeping import sweep_topic, unnamed_files
from storage_engine.topic.clean.topic_compaction import (
    CompactionResult,
    cleaning_tasks,
    compact_partitions,
    compact_topic,
    swap_cleaned,
)
from storage_engine.topic.clean.topic_merging import merge_topic
from storage_engine.topic.clean.topic_retention import delete_records, retain_topic
from storage_engine.topic.dropped_files import delete_dropped
from storage_engine.topic.kafka.view import settle
from storage_engine.topic.readers.consumer_files import put_positions, read_consumers
from storage_engine.topic.readers.membership import Membership, join
from tests.faults.world import (
    BROKER,
    START,
    Batch,
    Contents,
    Feed,
    Naive,
    NaiveTopic,
    PartitionContents,
    Record,
    ViolatedError,
    World,
    require,
    stages,
    with_retries,
)
from tests.storage_engine.record_tables import Row, to_table
from tests.storage_engine.topic.wrapped_storage import PlainStorage

Made = TypeVar("Made")
Acknowledge = Callable[[int], None]
"""A function. It is called with the number of the contents that an acknowledged change has just made."""

DAY_MS = 24 * 3_600_000
SWEEPING = 4_000_000_000_000
"""A time that is later than the times of temporary files. Those are times of the machine's clock."""


def batch(name: str, *counts: int, timestamp: int = START, size: int = 40) -> list[Record]:
    """As many records for each partition as `counts` says. Their values begin with the name."""
    return [
        Record(partition, f"{name}-{number}", f"{name}-{partition}-{number}".ljust(size, "."), timestamp)
        for number in range(max(counts, default=0))
        for partition, count in enumerate(counts)
        if number < count
    ]


class Operation:
    """One of them. An object belongs to one trial. isolation: of its readers."""

    name: str
    isolation = Isolation.READ_UNCOMMITTED

    def prepare(self, world: World) -> list[Contents]:
        """Make the root that the operation begins with. Returns the contents that a reader is allowed to see until the
        end of the trial."""
        raise NotImplementedError

    def act(self, world: World, acknowledge: Acknowledge) -> None:
        """The actions of the process in which the fault happens."""
        raise NotImplementedError

    def run_on(self, world: World) -> None:
        """The actions of a second process after the first one has ended, been killed or failed."""
        self.act(world, lambda _: None)

    def look(self, world: World) -> Contents:
        """What a reader sees."""
        return world.look(self.isolation)

    def check(self, world: World, acknowledged: int) -> None:
        """Check the other conditions that must be true after the first process is gone."""


class Feeding(Operation):
    """A query that is started again and continues."""

    before: Sequence[Batch] = (batch("first", 3, 2),)
    batches: Sequence[Batch]
    configs: Mapping[str, Any] = {}

    def prepare(self, world: World) -> list[Contents]:
        naive: Naive = {"t": NaiveTopic.of(2)}
        world.create("t", **self.configs)
        feed = Feed(world, "t")
        for number, each in enumerate(self.before):
            feed.offer(number, each)
            naive["t"].append(each)
        feed.close()

        def appending(each: Batch) -> Callable[[Naive], None]:
            return lambda naive: naive["t"].append(each)

        return stages(naive, *(appending(each) for each in self.batches))

    def act(self, world: World, acknowledge: Acknowledge) -> None:
        feed = Feed(world, "t")
        for number, each in enumerate(self.batches):
            feed.offer(len(self.before) + number, each)
            acknowledge(number + 1)
        feed.close()

    def run_on(self, world: World) -> None:
        # Spark may not have noted the last one as done, and then offers it again.
        feed = Feed(world, "t")
        last = feed.last()
        for number, each in enumerate([*self.before, *self.batches]):
            if number >= last:
                skipped = feed.offer(number, each)
                require(skipped == (number == last), f"batch {number} is offered, where {last} is committed")
        require(feed.last() == len(self.before) + len(self.batches) - 1, "the last batch is not committed")
        feed.close()


class Publishing(Feeding):
    """Micro-batches that are published into new files, then into the open files of two partitions, and then into those
    of one partition."""

    name = "publish"
    batches = (batch("new", 3, 4), batch("open", 4, 3), batch("one", 0, 2))


class Rolling(Feeding):
    """A micro-batch for a partition with an open segment: it fills two segments and begins a third."""

    name = "roll"
    batches = (batch("small", 3, 2), batch("large", 80, 60, size=100))


class Committing(Feeding):
    """Micro-batches without records."""

    name = "commit"
    batches = (batch("none"), batch("none"))


class Listing(Feeding):
    """One commit that moves older segments to a list file, and one commit of a state that has such a list. Here 9
    segments are enough for a list, instead of 65."""

    name = "commit with a list"
    before = (batch("many", 1, 42, size=100),)
    batches = (batch("more", 1, 12, size=100), batch("last", 2, 1))
    configs = {"segment.bytes": 1024}  # noqa: RUF012

    def prepare(self, world: World) -> list[Contents]:
        contents = super().prepare(world)
        assert 6 < len(world.topics.state("t").partitions[1].segments) <= 8
        return contents

    def act(self, world: World, acknowledge: Acknowledge) -> None:
        with self._short_lists():
            super().act(world, acknowledge)

    def run_on(self, world: World) -> None:
        with self._short_lists():
            super().run_on(world)

    def check(self, world: World, acknowledged: int) -> None:
        if acknowledged:
            require(world.topics.state("t").partitions[1].listed, "no list was made")

    @staticmethod
    def _short_lists() -> AbstractContextManager[object]:
        return patch.multiple(segment_lists, _NEWEST_SEGMENTS=4, _MOST_SEGMENTS=8)


class TakingOver(Operation):
    """A take-over by the same query, and a take-over by another query with --take-over. The earlier writer can no
    longer commit."""

    name = "take-over"

    def prepare(self, world: World) -> list[Contents]:
        naive: Naive = {"t": NaiveTopic.of(2)}
        world.create("t")
        feed = Feed(world, "t")
        feed.offer(0, batch("first", 2, 2))
        naive["t"].append(batch("first", 2, 2))
        feed.close()
        return stages(naive, lambda _: None, lambda _: None)

    def act(self, world: World, acknowledge: Acknowledge) -> None:
        Feed(world, "t").close()
        acknowledge(1)
        Feed(world, "t", "other", take_over_others=True).close()
        acknowledge(2)

    def run_on(self, world: World) -> None:
        Feed(world, "t", "other", take_over_others=True).close()

    def check(self, world: World, acknowledged: int) -> None:
        if acknowledged:
            chain = world.topics.chain("t")
            config = world.topics.config(chain.newest())
            writer = TopicWriter(world.storage, chain, config, world.clock, epoch=1)
            runs = world.stage("t", batch("zombie", 1, 1))
            try:
                writer.append(by_partition(runs), BatchIdentity("q", 1, f"{1:064x}"))
            except FencedError:
                return
            raise ViolatedError("a writer of before the take-over commits")


class Staging(Operation):
    """One task of a micro-batch, dead letters among its rows; then the driver commits what another attempt staged."""

    name = "stage"
    rows = batch("staged", 5, 4)

    def prepare(self, world: World) -> list[Contents]:
        naive: Naive = {"t": NaiveTopic.of(2)}
        world.create("t")
        return stages(naive, lambda naive: naive["t"].append(self.rows))

    def _stage(self, world: World) -> list[StagedRun]:
        state = world.topics.state("t")
        config = world.topics.config(state)
        folder = staging_folder(state.topic_id, state.version)
        to = StagingTopic("t", folder, 2, config, Encoding.of(config, START, 200), {})
        task = StagingTask(
            world.storage.uri,
            (to,),
            spreads=False,
            listed=False,
            positioned=False,
            now_ms=START,
            query_id="q",
            batch_id=0,
        )
        columns = {
            "key": [each.key.encode() for each in self.rows] + [b"dead", b"letter"],
            "value": [each.value.encode() for each in self.rows] + [b"dead", b"letter"],
            "timestamp": [each.timestamp for each in self.rows] + [-2, START],
            "partition": [each.partition for each in self.rows] + [0, 7],
            "headers": [[]] * (len(self.rows) + 2),
        }
        empty = [None] * (len(self.rows) + 2)
        arrays = [pa.array(columns.get(each.name, empty), each.type) for each in ROWS]
        rows = pa.RecordBatch.from_arrays(arrays, schema=ROWS)
        with patch("pipeline.ingest.staging_task.open_storage", lambda uri: world.storage):
            (report,) = task([rows])
        return [StagedRun.from_json(run) for run in json.loads(report["runs"][0].as_py())["t"]]

    def act(self, world: World, acknowledge: Acknowledge) -> None:
        with_retries(lambda: self._stage(world))

    def run_on(self, world: World) -> None:
        runs = self._stage(world)
        feed = Feed(world, "t")
        chain = world.topics.chain("t")
        state = chain.newest()
        writer = TopicWriter(world.storage, chain, world.topics.config(state), world.clock, state.writer.epoch)
        writer.append(by_partition(runs), BatchIdentity("q", 0, f"{0:064x}"))
        writer.close()
        feed.close()


class Appending(Operation):
    """An append without a query, like that of `lakelog append`. A repeated append would not be recognized, so a user
    first looks whether the records are there."""

    name = "append"
    rows = batch("appended", 6, 5)

    def prepare(self, world: World) -> list[Contents]:
        naive: Naive = {"t": NaiveTopic.of(1)}
        world.create("t", 1)
        return stages(naive, lambda naive: naive["t"].append(batch("appended", 6)))

    def act(self, world: World, acknowledge: Acknowledge) -> None:
        topics = world.topics
        state = topics.state("t")
        rows = [Row(each.key.encode(), each.value.encode(), (), START) for each in batch("appended", 6)]
        append_records(world.storage, topics.chain("t"), topics.config(state), world.clock, to_table(rows), 0)
        acknowledge(1)

    def run_on(self, world: World) -> None:
        if not world.topics.state("t").partitions[0].high_watermark:
            self.act(world, lambda _: None)


def _segments(world: World, naive: Naive, *batches: Batch) -> None:
    """Append these, each by a writer of its own, so that each is a segment."""
    for number, each in enumerate(batches):
        feed = Feed(world, "t")
        feed.offer(number, each)
        naive["t"].append(each)
        feed.close()


def require_all_done(result: CleaningResult[Any]) -> None:
    """Raise the error of what could not be cleaned."""
    if result.failed:
        raise result.failed[0].error


class Retaining(Operation):
    """Two old segments go, a young one stays."""

    name = "retention"

    def prepare(self, world: World) -> list[Contents]:
        naive: Naive = {"t": NaiveTopic.of(2)}
        world.create("t", retention_ms=30 * DAY_MS, segment_ms=DAY_MS)
        old, young = START - 90 * DAY_MS, START
        _segments(
            world,
            naive,
            batch("a", 3, 2, timestamp=old),
            batch("b", 2, 2, timestamp=old),
            batch("c", 2, 3, timestamp=young),
        )

        def retain(naive: Naive) -> None:
            naive["t"].retain(0, 5)
            naive["t"].retain(1, 4)

        return stages(naive, retain)

    def act(self, world: World, acknowledge: Acknowledge) -> None:
        with_retries(lambda: retain_topic(world.topics.chain("t"), BROKER))
        acknowledge(1)


class DeletingRecords(Retaining):
    """A log is made to begin in the middle of a segment."""

    name = "delete-records"

    def prepare(self, world: World) -> list[Contents]:
        naive: Naive = {"t": NaiveTopic.of(2)}
        world.create("t")
        _segments(world, naive, batch("a", 3, 2), batch("b", 2, 2))
        return stages(naive, lambda naive: naive["t"].retain(0, 4))

    def act(self, world: World, acknowledge: Acknowledge) -> None:
        with_retries(lambda: delete_records(world.topics.chain("t"), 0, 4))
        acknowledge(1)


class MovingAConsumer(Operation):
    """A registered consumer stores new positions. Its file always has either all old positions or all new positions."""

    name = "consumer"
    before, after = {0: 1, 1: 0}, {0: 3, 1: 2}

    def prepare(self, world: World) -> list[Contents]:
        naive: Naive = {"t": NaiveTopic.of(2)}
        world.create("t")
        _segments(world, naive, batch("a", 3, 2))
        self._put(world, self.before)
        return stages(naive)

    @staticmethod
    def _put(world: World, positions: Mapping[int, int]) -> None:
        put_positions(
            world.storage, world.topics.state("t"), "tables/t", "delta export", positions, START, holds_back=True
        )

    def act(self, world: World, acknowledge: Acknowledge) -> None:
        with_retries(lambda: self._put(world, self.after))
        acknowledge(0)

    def check(self, world: World, acknowledged: int) -> None:
        consumers = read_consumers(world.storage, world.topics.state("t"))
        found = [each.positions for each in consumers.known]
        require(not consumers.damaged and found in ([self.before], [self.after]), f"the consumer is at {found}")


class JoiningAGroup(Operation):
    """A member of a group takes over from another member, and commits. The other member commits right before each put of
    the new member. The positions are always those of the last commit, or of a later commit."""

    name = "group"
    positions = ({0: 1, 1: 0}, {0: 2, 1: 1}, {0: 3, 1: 2})
    """Before the operation, after the commit of the other member, and after the commit of the new member."""

    def prepare(self, world: World) -> list[Contents]:
        naive: Naive = {"t": NaiveTopic.of(2)}
        world.create("t")
        _segments(world, naive, batch("a", 3, 2))
        self._join(world, world.storage).commit(world.topics.state("t"), self.positions[0], START)
        return stages(naive, lambda _: None, lambda _: None)

    @staticmethod
    def _join(world: World, storage: Storage) -> Membership:
        return join(storage, world.topics.state("t"), "g", "member", "host", START)

    def act(self, world: World, acknowledge: Acknowledge) -> None:
        other = with_retries(lambda: self._join(world, world.storage))
        state = with_retries(lambda: world.topics.state("t"))
        acknowledged: list[Mapping[int, int]] = []

        class CommitsFirst(PlainStorage):
            def put_new(self, key: str, data: Buffer) -> None:
                with suppress(FencedError):
                    other.commit(state, JoiningAGroup.positions[1], START)
                    acknowledged.append(other.consumer.positions)
                    acknowledge(1)
                super().put_new(key, data)

        member = with_retries(lambda: self._join(world, CommitsFirst(world.storage)))
        found = member.consumer.positions
        require(found in (acknowledged or self.positions), f"joined at {found}, where {acknowledged} was committed")
        with_retries(lambda: member.commit(state, self.positions[2], START))
        acknowledge(2)

    def check(self, world: World, acknowledged: int) -> None:
        consumers = read_consumers(world.storage, world.topics.state("t"))
        found = [each.positions for each in consumers.known]
        is_right = not consumers.damaged and found in [[each] for each in self.positions[acknowledged:]]
        require(is_right, f"the group is at {found}, where commit {acknowledged} was acknowledged")


class Deleting(Retaining):
    """The files of segments that retention dropped go."""

    name = "deletion of dropped files"

    def prepare(self, world: World) -> list[Contents]:
        contents = super().prepare(world)
        retain_topic(world.topics.chain("t"), BROKER)
        return contents[-1:]

    def act(self, world: World, acknowledge: Acknowledge) -> None:
        chain = world.topics.chain("t")
        config = world.topics.config(chain.newest())
        with_retries(lambda: delete_dropped(world.storage, chain, config, START + DAY_MS))


class Compacting(Operation):
    """Two partitions of a few segments each."""

    name = "compaction"
    key_size = 1
    broker = BROKER
    configs: Mapping[str, Any] = {}

    def prepare(self, world: World) -> list[Contents]:
        naive: Naive = {"t": NaiveTopic.of(2)}
        world.create("t", cleanup_policy="compact", **self.configs)

        def keyed(name: str, *keys: str) -> list[Record]:
            return [Record(number, key * self.key_size, f"{name}-{number}-{key}") for key in keys for number in (0, 1)]

        _segments(world, naive, keyed("1", *"abcd"), keyed("2", *"aec"), keyed("3", *"ba"), keyed("4", *"ab"))

        def compact(naive: Naive) -> None:
            for number in (0, 1):
                naive["t"].compact(number, 9)

        return stages(naive, compact)

    def act(self, world: World, acknowledge: Acknowledge) -> None:
        chain = world.topics.chain("t")
        with_retries(lambda: require_all_done(self.compact(world, chain)))
        acknowledge(1)

    def compact(self, world: World, chain: StateChain) -> CompactionResult:
        config = world.topics.config(chain.newest())
        return compact_topic(world.storage, chain, config, self.broker, world.clock, force=True)


class CompactingInPasses(Compacting):
    """The same with more bytes of keys than the map of keys may have."""

    name = "compaction in passes"
    key_size = 300
    broker = replace(BROKER, log_cleaner_dedupe_buffer_bytes=1024)


class CompactingInParts(Compacting):
    """The same by several tasks, each of which writes some of the new segments."""

    name = "compaction in parts"
    key_size = 200
    configs: Mapping[str, Any] = {"segment_bytes": 1024}  # no two segments fit into one

    def compact(self, world: World, chain: StateChain) -> CompactionResult:
        state = chain.newest()
        tasks = cleaning_tasks(world.storage, state, world.topics.config(state), BROKER, START, force=True)

        def run(do: Callable[[Storage, int], Made], count: int) -> list[Made]:
            return [do(world.storage, number) for number in range(count)]

        return swap_cleaned(world.storage, chain, [compact_split(world.storage, task, 3, run) for task in tasks])


class ApplyingAPlan(Operation):
    """Retention and compaction by a saved plan. If a part of the plan is done, the next plan contains the rest."""

    name = "applied plan"

    def prepare(self, world: World) -> list[Contents]:
        naive: Naive = {"t": NaiveTopic.of(1)}
        world.create("t", 1, cleanup_policy="compact,delete", retention_ms=30 * DAY_MS, segment_ms=DAY_MS)
        old = START - 90 * DAY_MS
        keyed = [
            [Record(0, key, f"{number}-{key}", time) for key in keys]
            for number, (keys, time) in enumerate([("ab", old), ("abc", START), ("ad", START), ("e", START)])
        ]
        _segments(world, naive, *keyed)
        return stages(naive, lambda naive: naive["t"].retain(0, 2), lambda naive: naive["t"].compact(0, 7))

    def act(self, world: World, acknowledge: Acknowledge) -> None:
        topics, chain = world.topics, world.topics.chain("t")
        plan = with_retries(lambda: plan_topics(topics, [topics.state("t")], START, force=True))
        with_retries(lambda: check_current(plan, topics))
        (planned,) = plan.topics
        with_retries(lambda: retain_as_planned(chain, BROKER, planned))
        acknowledge(1)

        def compact() -> CompactionResult:
            return compact_partitions(world.storage, chain, cleaning_tasks_of(planned, topics, chain.newest()))

        with_retries(lambda: require_all_done(compact()))
        acknowledge(2)


class CompactingTransactions(Compacting):
    """Committed and aborted transactions, as a reader of committed records sees them."""

    name = "compaction of transactions"
    isolation = Isolation.READ_COMMITTED

    def prepare(self, world: World) -> list[Contents]:
        naive: Naive = {"t": NaiveTopic.of(1)}
        world.create("t", 1, cleanup_policy="compact")
        topic = naive["t"]
        for number, (keys, commits) in enumerate(
            [("abc", True), ("abd", False), ("ce", True), ("ab", False), ("d", True)]
        ):
            values = [f"{number}-{key}" for key in keys]
            rows = [Row(key.encode(), value.encode(), (), START) for key, value in zip(keys, values, strict=True)]
            with TransactionWriter(world.topics, timeout_ms=60_000) as transaction:
                transaction.append("t", to_table(rows), 0)
                (transaction.commit if commits else transaction.abort)()
            finish_transactions(world.topics)
            if commits:
                topic.records[0] += [
                    (topic.ends[0] + at, key, value) for at, (key, value) in enumerate(zip(keys, values, strict=True))
                ]
            topic.ends[0] += len(keys) + 1
        active = world.topics.state("t").partitions[0].segments[-1]
        return stages(naive, lambda naive: naive["t"].compact(0, active.base_offset))


class Merging(Operation):
    """Two partitions, each of small segments that become one; some of an aborted transaction."""

    name = "merge"

    def prepare(self, world: World) -> list[Contents]:
        naive: Naive = {"t": NaiveTopic.of(2)}
        world.create("t")
        _segments(world, naive, batch("a", 3, 2), batch("b", 2, 2))
        _abort(world)
        feed = Feed(world, "t")
        feed.offer(2, batch("c", 2, 3))
        feed.close()
        return stages({"t": _naive_of(world.look()["t"])})

    def act(self, world: World, acknowledge: Acknowledge) -> None:
        chain = world.topics.chain("t")
        config = world.topics.config(chain.newest())

        with_retries(lambda: require_all_done(merge_topic(world.storage, chain, config)))

    def run_on(self, world: World) -> None:
        super().run_on(world)
        merged = all(len(part.segments) == 2 for part in world.topics.state("t").partitions)
        require(merged, "neighbours are not merged")


class Pruning(Operation):
    """A hundred versions are rolled up; the first few are deleted, and a list of segments that only they named."""

    name = "prune"
    keep = 96

    def prepare(self, world: World) -> list[Contents]:
        naive: Naive = {"t": NaiveTopic.of(2)}
        world.create("t", retention_ms=30 * DAY_MS, segment_bytes=1024)
        old, young = batch("old", 0, 700, timestamp=START - 90 * DAY_MS, size=100), batch("young", 1, 1)
        _segments(world, naive, old, young)
        assert world.topics.state("t").partitions[1].listed
        chain = world.topics.chain("t")
        state = retain_topic(chain, BROKER).state
        delete_dropped(world.storage, chain, world.topics.config(state), START + DAY_MS)
        naive["t"].retain(1, 700)
        # Not by a query: that would do a share of the pruning.
        while chain.newest().version < 102:
            chain.commit(lambda state: state, "idle")
        return stages(naive)

    def act(self, world: World, acknowledge: Acknowledge) -> None:
        with_retries(lambda: prune(world.storage, world.topics.chain("t"), self.keep))

    def run_on(self, world: World) -> None:
        super().run_on(world)
        chain = world.topics.chain("t")
        newest = chain.newest().version
        versions = [0, *range(newest + 1 - self.keep, newest + 1)]
        require(list(chain.versions()) == versions, "other versions than the newest are left")
        require(not list(world.storage.list("meta/t/segments/")), "a list is left that no version names")
        self._check_history(world)

    def check(self, world: World, acknowledged: int) -> None:
        self._check_history(world)

    def _check_history(self, world: World) -> None:
        chain = world.topics.chain("t")
        newest = chain.newest().version
        versions = [change.version for change in HistoryReader(world.storage, chain).changes(0, newest)]
        require(versions == list(range(newest + 1)), "history is not whole")


class Sweeping(Operation):
    """The files that a crashed append, a crashed task and a crashed put have left, beside files that a reader still
    needs."""

    name = "sweep"

    def prepare(self, world: World) -> list[Contents]:
        naive: Naive = {"t": NaiveTopic.of(2)}
        world.create("t", cleanup_policy="compact")
        _segments(world, naive, batch("a", 3, 2), batch("b", 3, 2))
        _lose(Feed(world, "t"), world, 2)
        world.stage("t", batch("given up", 2, 1))
        data = "00000000000000000005.1.0123abcd"
        world.storage.put_new(f"data/{world.topics.state('t').topic_id}/0/{data}.log", b"of a task that died")
        world.storage.put_new("meta/t/.tmp-0123456789abcdef", b"of a put that died")
        feed = Feed(world, "t")
        feed.offer(2, batch("b", 3, 2))
        naive["t"].append(batch("b", 3, 2))
        feed.close()
        compact_topic(
            world.storage,
            world.topics.chain("t"),
            world.topics.config(feed.chain.newest()),
            BROKER,
            world.clock,
            force=True,
        )
        return stages({"t": _naive_of(world.look()["t"])})

    def act(self, world: World, acknowledge: Acknowledge) -> None:
        world.clock.advance(SWEEPING - START)
        with_retries(lambda: sweep_topic(world.storage, world.topics.chain("t"), BROKER))

    def run_on(self, world: World) -> None:
        super().run_on(world)
        require(not list(unnamed_files(world.storage, world.topics.state("t"))), "files are left that nothing names")


class Settling(Operation):
    """A root with an older view, a grown file, an aborted transaction, a stray."""

    name = "settle"

    def prepare(self, world: World) -> list[Contents]:
        naive: Naive = {"t": NaiveTopic.of(2)}
        world.create("t")
        _segments(world, naive, batch("a", 3, 2), batch("b", 2, 2))
        _abort(world)
        settle(world.topics)
        world.storage.put_new("log/stray-0/00000000000000000000.log", b"a topic that is gone")
        feed = Feed(world, "t")
        feed.offer(2, batch("c", 4, 1))
        naive["t"] = _naive_of(world.look()["t"])
        _lose(feed, world, 3)
        return stages(naive)

    def act(self, world: World, acknowledge: Acknowledge) -> None:
        with_retries(lambda: settle(world.topics))


def _abort(world: World) -> None:
    """Abort a transaction in partition 0."""
    with TransactionWriter(world.topics) as transaction:
        transaction.append("t", to_table([Row(b"k", b"aborted")]), 0)


def _lose(feed: Feed, world: World, number: int) -> None:
    """Publish a micro-batch and die before its commit."""
    runs = world.stage("t", batch("lost", 3, 3))
    with patch.object(feed.chain, "commit", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        feed.writer.append(by_partition(runs), BatchIdentity("q", number, f"{number:064x}"))


def _naive_of(parts: Sequence[PartitionContents]) -> NaiveTopic:
    return NaiveTopic(
        [part.log_start_offset for part in parts],
        [part.high_watermark for part in parts],
        [list(part.records) for part in parts],
    )


class Transacting(Operation):
    """Appends to two topics. They become visible at the same moment. If they do not become visible, they are appended
    once more."""

    name = "transaction"
    isolation = Isolation.READ_COMMITTED

    def prepare(self, world: World) -> list[Contents]:
        naive: Naive = {"t": NaiveTopic.of(1), "u": NaiveTopic.of(1)}
        for name in naive:
            world.create(name, 1)

        def commit(naive: Naive) -> None:
            for topic in naive.values():
                topic.append(batch("paid", 3))

        return [self._without_offsets(each) for each in stages(naive, commit)]

    @staticmethod
    def _without_offsets(contents: Contents) -> Contents:
        """Aborted records and markers take offsets; what counts is which records committed readers see."""
        return {
            name: tuple(
                part._replace(high_watermark=0, records=tuple((0, key, value) for _, key, value in part.records))
                for part in parts
            )
            for name, parts in contents.items()
        }

    def look(self, world: World) -> Contents:
        return self._without_offsets(super().look(world))

    def act(self, world: World, acknowledge: Acknowledge) -> None:
        rows = to_table([Row(each.key.encode(), each.value.encode(), (), START) for each in batch("paid", 3)])
        with TransactionWriter(world.topics, timeout_ms=60_000) as transaction:
            transaction.append("t", rows, 0)
            transaction.append("u", rows, 0)
            transaction.commit()
            acknowledge(1)

    def run_on(self, world: World) -> None:
        world.clock.advance(DAY_MS)
        finish_transactions(world.topics)
        if not self.look(world)["t"][0].records:
            self.act(world, lambda _: None)
        finish_transactions(world.topics)


class SpreadingOverTopics(Operation):
    """A micro-batch for two topics, by the list of what is staged (pipeline.ingest.micro_batch without Spark)."""

    name = "several topics"
    parts: Mapping[str, Batch] = {"t": batch("to t", 3, 2), "u": batch("to u", 2, 3)}

    def prepare(self, world: World) -> list[Contents]:
        naive: Naive = {name: NaiveTopic.of(2) for name in self.parts}
        for name in naive:
            world.create(name)
        return stages(
            naive,
            lambda naive: naive["t"].append(self.parts["t"]),
            lambda naive: naive["u"].append(self.parts["u"]),
        )

    def act(self, world: World, acknowledge: Acknowledge) -> None:
        storage, topics = world.storage, world.topics
        identity = BatchIdentity("q", 0, f"{0:064x}")
        feeds = {name: Feed(world, name) for name in self.parts}
        listed = with_retries(lambda: read_list(storage, identity))
        if all(feed.last() == 0 for feed in feeds.values()):
            if listed is not None:
                delete_list(storage, listed)
            return
        if listed is None:
            # Staged again it might lie differently: then a topic that has the batch and one that lacks it differ.
            require(all(feed.last() < 0 for feed in feeds.values()), "a batch that a topic has is staged again")
            staged = []
            for name, rows in self.parts.items():
                state = topics.state(name)
                runs = with_retries(lambda name=name, rows=rows: world.stage(name, rows, listed=True))  # type: ignore[misc]
                staged.append(StagedTopic(name, state.topic_id, state.configs, runs))
            attempt = StagedBatch(identity, tuple(staged))
            listed = with_retries(lambda: put_list(storage, attempt))
        check_list(listed, topics, self.parts)
        for number, each in enumerate(listed.topics):
            with_retries(lambda each=each: feeds[each.topic].writer.append(by_partition(each.runs), identity))  # type: ignore[misc]
            acknowledge(number + 1)
        delete_list(storage, listed)
        for feed in feeds.values():
            feed.close()

    def run_on(self, world: World) -> None:
        super().run_on(world)
        require(not list(pending_lists(world.storage)), "a list of staged runs is left")


class WritingThroughASink(Operation):
    """Two micro-batches of a query that takes no topic over: one for two topics, then one without rows for one of them."""

    name = "sink"
    parts: Mapping[str, Batch] = {"t": batch("to t", 3, 2), "u": batch("to u", 2, 3)}
    query = "6f2c3c1e-0000-4000-8000-000000000001"

    def prepare(self, world: World) -> list[Contents]:
        for name in self.parts:
            world.create(name)
        line = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": START})
        files = {
            "metadata": json.dumps({"id": self.query}),
            "offsets/0": f"v1\n{line}\n0",
            "offsets/1": f"v1\n{line}\n1",
        }
        for name, content in files.items():
            world.storage.put_new(f"checkpoint/{name}", content.encode())
        return stages(
            {name: NaiveTopic.of(2) for name in self.parts},
            lambda naive: naive["t"].append(self.parts["t"]),
            lambda naive: naive["u"].append(self.parts["u"]),
        )

    def act(self, world: World, acknowledge: Acknowledge) -> None:
        topics, checkpoint = world.topics, CheckpointFolder(world.storage, "checkpoint")
        runs = {}
        for name, rows in self.parts.items():
            staged = with_retries(partial(world.stage, name, rows, listed=True))
            runs[name, topics.state(name).topic_id] = tuple(staged)
        with_retries(lambda: commit_batch(topics, checkpoint, [StagedRows(self.query, runs)], 0, None))
        acknowledge(2)
        with_retries(lambda: commit_batch(topics, checkpoint, [], 1, "t"))

    def run_on(self, world: World) -> None:
        topics = world.topics
        if topics.state("t").queries.get(self.query) is None or topics.state("u").queries.get(self.query) is None:
            super().run_on(world)
        else:
            commit_batch(topics, CheckpointFolder(world.storage, "checkpoint"), [], 0, None)
        require(not list(pending_lists(world.storage)), "a list of staged runs is left")


class LivingTopic(Operation):
    """A topic is created, gets another partition and is deleted. Then a new topic gets its name."""

    name = "topic: create, alter, delete"

    def prepare(self, world: World) -> list[Contents]:
        world.create("other", 1)
        other = NaiveTopic.of(1)

        def having(partitions: int) -> Callable[[Naive], None]:
            return lambda naive: naive.update(t=NaiveTopic.of(partitions))

        return stages({"other": other}, having(2), having(3), lambda naive: naive.pop("t"), having(1))

    def act(self, world: World, acknowledge: Acknowledge) -> None:
        topics = world.topics
        topics.create("t", 2, {})
        acknowledge(1)
        topics.alter("t", partitions=3)
        acknowledge(2)
        topics.delete("t")
        acknowledge(3)
        topics.create("t", 1, {})
        acknowledge(4)

    def run_on(self, world: World) -> None:
        # An operator looks how far it came, and does the rest.
        topics = world.topics
        state = topics.chain("t").newest_or_none()
        if state is None:
            topics.create("t", 2, {})
        if (state := topics.find("t")) is not None and len(state.partitions) == 2:
            topics.alter("t", partitions=3)
        if (state := topics.find("t")) is not None and len(state.partitions) == 3:
            topics.delete("t")
        if topics.find("t") is None:
            topics.create("t", 1, {})


OPERATIONS: dict[str, type[Operation]] = {
    each.name: each
    for each in (
        Staging, Publishing, Rolling, Committing, Listing, Appending, TakingOver, SpreadingOverTopics, Transacting,
        WritingThroughASink,
        Retaining, DeletingRecords, MovingAConsumer, JoiningAGroup, Compacting, CompactingInPasses, CompactingInParts,
        CompactingTransactions, ApplyingAPlan, Merging, Deleting, Pruning, Sweeping, Settling, LivingTopic,
    )
}  # fmt: skip
