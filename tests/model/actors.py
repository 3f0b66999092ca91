"""The simulated processes: they run the project's own writers, cleaners and readers, and report to the model."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from storage_engine.clock import ManualClock
from storage_engine.config import BrokerConfig, TopicConfig, topic_config
from storage_engine.errors import (
    FencedError,
    NotFoundError,
    StorageError,
    WriterRefusedError,
)
from storage_engine.record.compression import Codec
from storage_engine.record.encoding import EncodedRun, encode_records
from storage_engine.topic.append.appending import append_records
from storage_engine.topic.append.staged_run import StagingWriter, by_partition, delete_staged, staging_folder
from storage_engine.topic.append.topic_writer import BatchIdentity, TopicWriter, take_over
from storage_engine.topic.chain.pruning import prune
from storage_engine.topic.chain.state_chain import StateChain
from storage_engine.topic.chain.transaction_files import newest_decided
from storage_engine.topic.clean.sweeping import sweep_topic
from storage_engine.topic.clean.topic_compaction import CompactionResult, compact_topic
from storage_engine.topic.clean.topic_merging import MergeResult, merge_topic
from storage_engine.topic.clean.topic_retention import retain_topic
from storage_engine.topic.dropped_files import delete_dropped
from storage_engine.topic.readers.reader import PartitionReader
from storage_engine.topic.topics import Topics
from tests.model.scheduler import Character, Killed, Process, Scheduler, Violation
from tests.model.simulated_storage import Disk, FileSystem, ObjectStore
from tests.model.truth import Offered, Record, Truth
from tests.storage_engine.record_tables import Row, to_table

START_MS = 1_700_000_000_000
TOPIC = "orders"
KEPT_VERSIONS = 2
"""So many versions stay; outside of the model it is a thousand, and holes are rare."""
_KEYS = 5
_REST = 80
_WEEK_MS = 7 * 24 * 3_600_000
_SOURCES = 2


@dataclass(frozen=True)
class Content:
    """What one append brings. runs: by partition, already encoded."""

    offered: Mapping[int, list[bytes]]
    runs: Mapping[int, EncodedRun]
    rows: Mapping[int, list[Row]]


@functools.cache
def content(source: str, number: int, partitions: int) -> Content:
    """The content of append `number` of a source. It is always the same, like the content of a replay."""
    chance = random.Random(f"{source} {number} {partitions}")
    rows: dict[int, list[Row]] = {}
    for feed in range(_SOURCES):
        for place in range(chance.choice([0, 1, 1, 3])):
            count = 10 * number + place
            key = chance.randrange(_KEYS)
            value = b"%s.%d-%d %s" % (source.encode(), feed, count, bytes(chance.choice([0, 250, 500])))
            row = Row(b"key %d" % key, value, timestamp=START_MS + 1_000 * number + chance.randrange(3_000))
            rows.setdefault(key % partitions, []).append(row)
    runs = {number: encode_records(to_table(part), 300, Codec.NONE) for number, part in rows.items()}
    return Content({number: [row.value or b"" for row in part] for number, part in rows.items()}, runs, rows)


@dataclass(eq=False)
class Stream:
    """A streaming query and its checkpoint. The checkpoint remains when a process of the query dies. next_batch: the
    first micro-batch that the checkpoint does not record as done."""

    query: str
    batches: int
    next_batch: int = 0


@dataclass(eq=False)
class World:
    """One schedule's storage, processes and model."""

    scheduler: Scheduler
    storage: ObjectStore
    disk: Disk
    clock: ManualClock
    truth: Truth
    topics: Topics
    names: dict[str, int] = field(default_factory=dict)

    @classmethod
    def made(cls, chance: random.Random, character: Character, *, appendable: bool) -> World:
        clock = ManualClock(START_MS + 60_000)
        scheduler = Scheduler(chance, character, clock)
        disk = Disk(clock)
        truth = Truth(scheduler, disk)
        storage = (FileSystem if appendable else ObjectStore)(scheduler, disk)
        broker = BrokerConfig(
            log_cleaner_dedupe_buffer_bytes=4096, sweep_delay_ms=chance.choice([0, 3_600_000, 24 * 3_600_000])
        )
        return cls(scheduler, storage, disk, clock, truth, Topics(storage, broker, clock))

    @property
    def chance(self) -> random.Random:
        return self.scheduler.chance

    def chain(self) -> StateChain:
        return StateChain(self.storage, TOPIC, self.clock)

    def config(self, configs: Mapping[str, str]) -> TopicConfig:
        return topic_config(self.topics.broker, configs)

    def start(
        self, name: str, body: Callable[[Process], object], restarts: int = 0, *, after: int = 0, twins: bool = False
    ) -> None:
        """Run a function as a process. If the process dies or its storage fails, it is started again, at most
        `restarts` times.

        Args:
            twins: whether a successor can begin while the process pauses for long, as if the process were dead.
        """
        self.names[name] = self.names.get(name, 0) + 1
        process = Process(f"{name}.{self.names[name]}")
        left = restarts

        def succeed() -> None:
            nonlocal left
            if left > 0 and self.scheduler.violation is None:
                self.start(name, body, left - 1, after=self.chance.randrange(60), twins=twins)
                left = 0

        def sleeps() -> None:
            if self.chance.random() < 0.4:
                succeed()

        def run() -> None:
            try:
                body(process)
            except Killed:
                succeed()
                raise
            except StorageError as error:
                if isinstance(error, NotFoundError) and not error.place.startswith("staging/"):
                    self.unexpected(process, error)  # what is staged may be swept while its maker sleeps
                succeed()
            except Exception as error:  # noqa: BLE001 - a defect, of whatever kind
                self.unexpected(process, error)

        process.on_sleep = sleeps if twins else None
        self.scheduler.spawn(process, run, after)

    def unexpected(self, process: Process, error: Exception) -> None:
        """Report an error that the body of the process does not expect. Only errors of the storage are allowed to end a
        process."""
        violation = Violation(f"{process.name} ended by {type(error).__name__}: {error}")
        violation.__cause__ = error
        self.scheduler.fail(violation)


def ingest(world: World, stream: Stream, process: Process, *, take_over_others: bool = False) -> None:
    """A driver: take the topic over, then one micro-batch after another, as pipeline.ingest.ingesting does."""
    chain = world.chain()
    try:
        state = take_over(chain, stream.query, take_over_others)
        world.truth.state_counts(TOPIC, state.id)
        process.epoch = state.writer.epoch
        writer = TopicWriter(world.storage, chain, world.config(state.configs), world.clock, state.writer.epoch)
        while stream.next_batch < stream.batches:
            number = stream.next_batch
            _micro_batch(world, stream.query, number, chain, writer)
            world.scheduler.pause("note", f"batch {number}")
            stream.next_batch = max(stream.next_batch, number + 1)
        writer.close()
    except (FencedError, WriterRefusedError):
        return


def _micro_batch(world: World, query: str, number: int, chain: StateChain, writer: TopicWriter) -> None:
    state = chain.newest()
    new = content(query, number, len(state.partitions))
    offered = world.truth.offer(Offered(f"batch {number} of {query}", dict(new.offered)))
    identity = BatchIdentity(query, number, f"{number:064x}")
    if writer.is_done(state, identity):
        world.truth.acknowledged(TOPIC, offered, state.id)
        return
    writer.prepare()
    with StagingWriter(world.storage, staging_folder(state.topic_id, state.version)) as staging:
        for partition, run in new.runs.items():
            staging.stage(partition, run)
    committed = writer.append(by_partition(staging.runs), identity)
    world.truth.acknowledged(TOPIC, offered, committed.state.id)
    delete_staged(world.storage, staging.runs)


def append(world: World, source: str, appends: int, process: Process) -> None:
    """`lakelog append`, several times. A failed append is not repeated; its records are in the topic once or not at
    all."""
    for number in range(appends):
        name = f"{source}.{process.name}"
        chain = world.chain()
        state = chain.newest()
        partition = world.chance.randrange(len(state.partitions))
        rows = [row for part in content(name, number, 1).rows.values() for row in part]
        if not rows:
            continue
        offered = world.truth.offer(
            Offered(f"append {number} of {name}", {partition: [row.value or b"" for row in rows]})
        )
        committed = append_records(
            world.storage, chain, world.config(state.configs), world.clock, to_table(rows), partition
        )
        world.truth.acknowledged(TOPIC, offered, committed.state.id)


def maintain(world: World, runs: int, process: Process) -> None:
    """Maintenance, its parts in any order."""
    chain = world.chain()
    for _ in range(runs):
        world.scheduler.rest(_REST)
        world.chance.choice(_MAINTENANCE)(world, chain)


def _retain(world: World, chain: StateChain) -> None:
    world.truth.state_counts(TOPIC, retain_topic(chain, world.topics.broker).state.id)


def _compact(world: World, chain: StateChain) -> None:
    config = world.config(chain.newest().configs)
    _check(world, compact_topic(world.storage, chain, config, world.topics.broker, world.clock, force=True))


def _merge(world: World, chain: StateChain) -> None:
    _check(world, merge_topic(world.storage, chain, world.config(chain.newest().configs)))


def _check(world: World, result: CompactionResult | MergeResult) -> None:
    world.truth.state_counts(TOPIC, result.state.id)
    for failure in result.failed:
        if not isinstance(failure.error, StorageError):
            raise failure.error


def _delete(world: World, chain: StateChain) -> None:
    delete_dropped(world.storage, chain, world.config(chain.newest().configs), world.clock.now_ms())


def _prune(world: World, chain: StateChain) -> None:
    prune(world.storage, chain, KEPT_VERSIONS)


def _sweep(world: World, chain: StateChain) -> None:
    world.truth.state_counts(TOPIC, sweep_topic(world.storage, chain, world.topics.broker).state.id)


_MAINTENANCE = (_retain, _compact, _compact, _delete, _merge, _prune, _sweep, _sweep)


def clean_up(world: World) -> None:
    """The maintenance of a week. After that, there must be no file that the state does not name."""
    chain = world.chain()
    for _ in range(2):
        world.clock.advance(_WEEK_MS)
        for part in (_retain, _compact, _merge, _delete, _prune, _sweep):
            part(world, chain)
    world.truth.nothing_is_left()


def note(world: World, commits: int, process: Process) -> None:
    """Commit changes that change nothing in the state. Each must make exactly one version."""
    chain = world.chain()
    for number in range(commits):
        world.scheduler.rest(_REST // 4)
        what = f"{process.name} {number}"
        state = chain.commit(lambda state: state.model_copy(), what)
        world.truth.noted(TOPIC, what, state.id)
        if world.chance.random() < 0.3:
            chain = world.chain()


def watch(world: World, looks: int, process: Process) -> None:
    """Follow the chain, or begin with a listing: what is found is of the chain, and never older than before."""
    chain = world.chain()
    last = -1
    for _ in range(looks):
        world.scheduler.rest(_REST)
        if world.chance.random() < 0.5:
            chain = world.chain()
        found = world.truth.state_counts(TOPIC, chain.newest().id).number
        if found < last:
            raise Violation(f"version {found} was the newest after version {last}")
        last = found


def prune_on(world: World, runs: int, process: Process) -> None:
    """Nothing but pruning."""
    chain = world.chain()
    for _ in range(runs):
        world.scheduler.rest(_REST // 4)
        _prune(world, chain)


def read_all(world: World, passes: int, process: Process) -> None:
    """Read all partitions of one state, again and again: a micro-batch is there whole, or not at all."""
    chain = world.chain()
    for _ in range(passes):
        world.scheduler.rest(_REST)
        state = newest_decided(world.storage, chain)
        world.truth.state_counts(TOPIC, state.id)
        world.scheduler.rest(_REST)
        for number, part in enumerate(state.partitions):
            reader = PartitionReader(world.storage, chain, number, state)
            _read(world, reader, number, part.log_start_offset, state.id)
            _look_up(world, reader, number)


def follow(world: World, passes: int, process: Process) -> None:
    """Read one partition on and on, from where the last pass ended."""
    chain = world.chain()
    state = newest_decided(world.storage, chain)
    number = world.chance.randrange(len(state.partitions))
    reader = PartitionReader(world.storage, chain, number, state)
    position = 0
    for _ in range(passes):
        world.scheduler.rest(_REST)
        part = reader.refresh()
        position = max(position, part.log_start_offset)
        _read(world, reader, number, position, reader._state.id)
        position = part.high_watermark


def _read(world: World, reader: PartitionReader, number: int, first: int, state_id: str) -> None:
    records: list[Record] = []
    for table in reader.read(first):
        columns = (table[name].to_pylist() for name in ("offset", "key", "value", "timestamp", "leader_epoch"))
        records += [Record(*fields) for fields in zip(*columns, strict=True)]
    world.truth.was_read(TOPIC, number, records, first, state_id)


def _look_up(world: World, reader: PartitionReader, number: int) -> None:
    """The first record not older than a timestamp."""
    time = START_MS + world.chance.randrange(12_000)
    found = reader.offset_at(time)  # may continue with a newer version of the state, if a file was deleted
    world.truth.was_looked_up(TOPIC, number, time, reader.partition.high_watermark, found)
