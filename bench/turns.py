"""Runs peers in turns. Each peer has its own process, and in each round one peer runs after another.

A peer is a program that reads cases from standard input, one line of JSON for each case, and answers each case with one
line of JSON. The program is a module of this package whose last call is `answer(...)`, or another program that reads
and answers in the same way. Peers are separate processes, so nothing that one peer imports, compiles or keeps in memory
affects another peer. Because the peers take turns in every round, a slow machine affects all peers and not only one.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from types import TracebackType
from typing import Any, Self

ROUNDS = 5


class Peer:
    """A process that measures each case that it gets. The process ends when the `with` block ends."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    @classmethod
    def module(cls, name: str, *arguments: str) -> Self:
        """A peer that is a module of this package, in a separate Python process."""
        return cls([sys.executable, "-m", name, *arguments])

    def ask(self, case: Mapping[str, Any]) -> Any:
        """The peer's answer to a case. If a peer dies, the benchmark ends."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(case) + "\n")
        self._process.stdin.flush()
        while line := self._process.stdout.readline():
            if line.startswith("{"):  # any other line was printed by a library
                return json.loads(line)["answer"]
        raise SystemExit(f"bench: the peer {self._process.args!r} ended with status {self._process.wait()}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def answer(measure: Callable[[dict[str, Any]], object]) -> None:
    """Answer cases until standard input ends. This is the loop of a peer's process."""
    for line in sys.stdin:
        print(json.dumps({"answer": measure(json.loads(line))}), flush=True)


def take_turns(
    peers: Mapping[str, Peer],
    case: Mapping[str, Any],
    rounds: int = ROUNDS,
    own: Mapping[str, Mapping[str, Any]] | None = None,
    warm_up: int = 1,
) -> dict[str, float]:
    """Give the case to each peer in turn, for several rounds. Returns the median of each peer's answers.

    Args:
        own: by peer, the fields that are added only to the case of this peer.
        warm_up: the number of rounds at the beginning that are not measured. These rounds prepare the data and warm up
            the processes.
    """
    answers: dict[str, list[float]] = {name: [] for name in peers}
    for _ in range(warm_up + rounds):
        for name, peer in peers.items():
            answers[name].append(peer.ask({**case, **(own or {}).get(name, {})}))
    return {name: median(found[warm_up:]) for name, found in answers.items()}
