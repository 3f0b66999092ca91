"""Starts a program of streaming queries again and again, and kills each one at a chosen moment."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from storage_engine.clock import SystemClock
from storage_engine.config import BrokerConfig
from storage_engine.storage.storage_opening import open_storage
from storage_engine.topic.chain.state_chain import StateChain
from storage_engine.topic.topics import Topics
from tests.faults.processes.programs import Gated
from tests.faults.processes.streams.copier import ONCE

START, WORK, BATCH, RESULT = "at the start", "at work", "in a micro-batch", "at a result"
LONGEST_START_SECONDS, LONGEST_WORK_SECONDS, LONGEST_BATCH_SECONDS = 1.5, 3.0, 0.4
TOO_BUSY = "Python worker failed to connect back"
"""Spark says this if one of its Python processes needs longer than ten seconds for its start."""
WHOLE_SHARE = 0.5
"""The share of the kills that also kill Python's workers, which otherwise notice the driver's death by themselves."""


class Query(NamedTuple):
    """A streaming query, as its checkpoint shows it.

    results: one function for each place into which the query writes. It returns whether the place has the result of a
        micro-batch.
    """

    name: str
    checkpoint: Path
    results: Sequence[Callable[[int], bool]]

    @property
    def begun(self) -> int:
        """The number of the last micro-batch that Spark has begun; -1 before the first."""
        return self._last("offsets")

    @property
    def completed(self) -> int:
        return self._last("commits")

    @property
    def is_open(self) -> bool:
        """Whether a restart repeats a micro-batch."""
        return self.begun > self.completed

    @property
    def open_results(self) -> int:
        """How many places have the result of a micro-batch that a restart repeats."""
        begun = self.begun
        return sum(has_result(begun) for has_result in self.results) if begun > self.completed else 0

    def _last(self, folder: str) -> int:
        path = self.checkpoint / folder
        names = [each.name for each in path.iterdir()] if path.exists() else []
        return max((int(name) for name in names if name.isdigit()), default=-1)


def query_into(root: str, topics: Sequence[str], name: str, checkpoint: Path) -> Query:
    """A query that writes to topics."""
    opened = Topics(open_storage(root), BrokerConfig(), SystemClock())

    def has_result(chain: StateChain, number: int) -> bool:
        query = json.loads((checkpoint / "metadata").read_text())["id"]
        state = chain.newest_or_none()
        return state is not None and query in state.queries and state.queries[query].batch_id >= number

    return Query(name, checkpoint, [partial(has_result, opened.chain(topic)) for topic in topics])


class Restarts:
    """A program with some queries, which is killed many times.

    kills: by the moment of the kill.
    too_busy: how many programs ended by themselves, because Spark gave up waiting for a Python process.
    repeated: how often a restart found an open micro-batch: by the query, and how many places had its result.
    """

    def __init__(
        self,
        queries: Sequence[Query],
        start: Callable[[], Gated],
        chance: random.Random,
        began: Callable[[Gated], None],
    ) -> None:
        """
        Args:
            start: starts a program that waits at its gate. If the gate contains the text of ONCE, the program
                processes what exists at its start, and then ends.
            began: is called for each program when it has begun.
        """
        self._queries = queries
        self._start = start
        self._chance = chance
        self._began = began
        self.kills: Counter[str] = Counter()
        self.repeated: Counter[str] = Counter()
        self.too_busy = 0
        self._started: list[Gated] = []

    def run(self, kills: int, finish: Callable[[], None]) -> None:
        """Kill so many programs. The next one completes the work that is there after `finish`."""
        moments = self._moments()
        following = self._next()
        while self.kills.total() < kills:
            query, moment = next(moments)
            program = following.ready()
            self._look()
            begun, completed = query.begun, query.completed
            program.go()
            following = self._next()  # starts while this one works
            self._began(program)
            self._await(program, query, moment, begun, completed)
            if not self._was_too_busy(program):
                (program.kill_whole if self._chance.random() < WHOLE_SHARE else program.kill)()
                self.kills[moment] += 1
        finish()
        while True:
            following.ready()
            self._look()
            following.go(ONCE)
            following.process.wait()
            if not self._was_too_busy(following):
                return
            following = self._next()

    def _was_too_busy(self, program: Gated) -> bool:
        """Whether a program ended by itself because the machine was too busy for Spark. It is then started again, as the
        handbook says. Fails if the program ended for another reason."""
        if not program.has_failed:
            return False
        assert TOO_BUSY in program.said, program.said
        self.too_busy += 1
        return True

    def end(self) -> None:
        for program in self._started:
            if program.process.poll() is None:
                program.kill_whole()

    def __str__(self) -> str:
        batches = {query.name: query.begun + 1 for query in self._queries}
        return (
            f"{self.kills.total()} kills {dict(self.kills)}, {len(self._started)} starts, micro-batches {batches}, "
            f"repeated {dict(self.repeated)}, too busy {self.too_busy}"
        )

    def _next(self) -> Gated:
        self._started.append(self._start())
        return self._started[-1]

    def _moments(self) -> Iterator[tuple[Query, str]]:
        """Even a few kills hit a result of each query."""
        while True:
            others = [(self._chance.choice(self._queries), moment) for moment in (START, WORK, BATCH)]
            yield from [(query, RESULT) for query in self._queries]
            yield from self._chance.sample(others, len(others))

    def _await(self, program: Gated, query: Query, moment: str, begun: int, completed: int) -> None:
        """Wait until a program is to be killed. begun, completed: of the query, before the program began."""
        if moment == START:
            longest = LONGEST_START_SECONDS
        elif moment == WORK:
            program.wait_until(lambda: program.has_failed or query.completed > completed)
            longest = LONGEST_WORK_SECONDS
        elif moment == BATCH:
            program.wait_until(lambda: program.has_failed or (query.begun > begun and query.is_open))
            longest = LONGEST_BATCH_SECONDS
        else:
            program.wait_until(lambda: program.has_failed or (query.begun > begun and query.open_results))
            longest = 0
        time.sleep(self._chance.uniform(0, longest))

    def _look(self) -> None:
        for query in self._queries:
            if query.is_open:
                self.repeated[f"{query.name}, {query.open_results} of {len(query.results)} results"] += 1
