"""Derives a schedule from a seed: the processes, the faults, and the checks at the end."""

from __future__ import annotations

import hashlib
import random
import secrets
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial

from storage_engine.errors import LogError
from storage_engine.topic.append import (
    appending_publisher,
    new_files_publisher,
    publishing,
    replaced_files,
    topic_writer,
)
from storage_engine.topic.chain import history_file, pruning, segment_lists
from storage_engine.topic.chain.pruning import PruningShare
from tests.model.actors import (
    KEPT_VERSIONS,
    TOPIC,
    Stream,
    World,
    append,
    clean_up,
    follow,
    ingest,
    maintain,
    note,
    prune_on,
    read_all,
    watch,
)
from tests.model.replacing import replaced
from tests.model.scheduler import Character, Process, ProcessThreads, Violation, wait_for_all

_DAY_MS = 24 * 3_600_000


@dataclass(frozen=True)
class Outcome:
    """What a schedule consisted of. digest: of its storage calls, in order. versions: of the chain."""

    calls: int
    versions: int
    reads: int
    kills: int
    sleeps: int
    digest: str


@contextmanager
def reproducible(chance: random.Random) -> Iterator[None]:
    """While it is entered, names that are drawn at random come from a seed."""
    with (
        replaced(uuid, "uuid4", lambda: uuid.UUID(int=chance.getrandbits(128), version=4)),
        replaced(secrets, "token_hex", lambda size: f"{chance.getrandbits(8 * size):0{2 * size}x}"),
        replaced(secrets, "randbelow", chance.randrange),
    ):
        yield


def run(seed: str, *, chain_only: bool = False) -> Outcome:
    """Run one schedule.

    Args:
        chain_only: nothing but commits, pruning and looks at the chain, which a quarter of the schedules is anyway.

    Raises:
        Violation: with the seed, and the last storage calls.
    """
    chance = random.Random(seed)
    chain_only = chain_only or chance.random() < 0.25
    character = Character.drawn(chance)
    if chain_only and chance.random() < 0.5:
        character = replace(character, kill=0.0, sleep=0.06, longest_sleep=120)
    world = World.made(chance, character, appendable=chance.random() < 0.75)
    with ExitStack() as stack:
        stack.enter_context(reproducible(random.Random(f"names of {seed}")))
        for module in (appending_publisher, new_files_publisher, replaced_files):
            stack.enter_context(replaced(module, "ThreadPoolExecutor", partial(ProcessThreads, world.scheduler)))
        stack.enter_context(replaced(publishing, "wait", wait_for_all))
        stack.enter_context(replaced(topic_writer, "PruningShare", partial(PruningShare, keep=KEPT_VERSIONS)))
        stack.enter_context(replaced(pruning, "_EVERY", 2))
        stack.enter_context(replaced(pruning, "_STEPS_A_COMMIT", chance.choice([3, 100])))
        stack.enter_context(replaced(history_file, "VERSIONS_PER_FILE", 2))
        if chance.random() < 0.3:
            stack.enter_context(replaced(segment_lists, "_NEWEST_SEGMENTS", 1))
            stack.enter_context(replaced(segment_lists, "_MOST_SEGMENTS", 2))
        try:
            streams = _cast(world, chain_only=chain_only)
            world.scheduler.run()
            try:
                _end(world, streams)
            except LogError as error:
                raise Violation(f"nothing goes wrong any more, and yet: {error!r}") from error
        except Violation as violation:
            last = "\n".join(f"    {' '.join(call)}" for call in world.scheduler.trace[-40:])
            raise Violation(
                f"{violation}\n{_repeated(seed)}, {character}, the last storage calls:\n{last}"
            ) from violation
    calls = world.scheduler.trace
    return Outcome(
        len(calls), sum(len(topic.lineage) for topic in world.truth.topics.values()), world.truth.reads,
        world.scheduler.kills, world.scheduler.sleeps, hashlib.sha256(repr(calls).encode()).hexdigest(),
    )  # fmt: skip


def _repeated(seed: str) -> str:
    number, _, only = seed.partition(" ")
    return f"--seed {number} --only {only}" if only else f"seed {seed}"


def _cast(world: World, *, chain_only: bool) -> list[Stream]:
    """Create the topic, and start 2 to 4 writers, cleaners and readers; or nothing but what the chain needs."""
    chance = world.chance
    if chain_only:
        world.topics.create(TOPIC, 1, {})
        for _ in range(chance.choice([2, 3, 4])):
            world.start("note", partial(note, world, chance.choice([3, 6])), 1)
        world.start("prune", partial(prune_on, world, 6), 1)
        for _ in range(chance.choice([1, 2])):
            world.start("watch", partial(watch, world, 8))
        return []
    configs = {
        "cleanup.policy": chance.choice(["delete", "compact", "compact,delete"]),
        "segment.bytes": chance.choice([1024, 4096]),
        "index.interval.bytes": chance.choice([0, 200]),
        "retention.bytes": chance.choice([-1, 1500, 20_000]),
        "retention.ms": -1,
        "file.delete.delay.ms": chance.choice([0, 0, 60_000]),
    }
    world.topics.create(TOPIC, chance.choice([1, 2, 2, 3]), configs)
    streams = [Stream("q0", chance.choice([3, 6, 9]))]
    world.start("q0", partial(ingest, world, streams[0]), 3, twins=True)
    others: list[Callable[[], None]] = [
        lambda: _second_stream(world, streams),
        lambda: world.start("append", partial(append, world, "a", chance.choice([1, 3])), 1),
        lambda: world.start("maintain", partial(maintain, world, chance.choice([2, 4])), 1, after=chance.randrange(80)),
        lambda: world.start("read", partial(read_all, world, chance.choice([1, 3])), after=chance.randrange(80)),
        lambda: world.start("follow", partial(follow, world, chance.choice([2, 5])), after=chance.randrange(40)),
    ]
    world.start("maintain", partial(maintain, world, chance.choice([3, 6])), 2)
    for start in chance.sample(others, chance.choice([1, 2, 2])):
        start()
    return streams


def _second_stream(world: World, streams: list[Stream]) -> None:
    """Another query, which replaces the first one."""
    streams.append(Stream("q1", 3))
    body = partial(ingest, world, streams[1], take_over_others=True)
    world.start("q1", body, 2, after=world.chance.randrange(80), twins=True)


def _end(world: World, streams: list[Stream]) -> None:
    """With nothing going wrong any more: what is unfinished is finished, and all must be there."""
    alone = Process("end")
    writer = world.chain().newest().writer.query
    for stream in streams:
        if writer in (stream.query, None):
            ingest(world, stream, alone)
            if stream.next_batch < stream.batches:
                raise Violation(f"{stream.query} ended at batch {stream.next_batch} of {stream.batches}")
    read_all(world, 1, alone)
    clean_up(world)
    read_all(world, 1, alone)
    world.truth.sources_are_in_order()
