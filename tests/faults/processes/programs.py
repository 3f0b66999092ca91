"""Starts, stops and kills programs for a test, and reads their last output. No program outlives its test."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

from storage_engine.clock import SystemClock
from storage_engine.config import BrokerConfig
from storage_engine.log.filenames import LOG
from storage_engine.storage.storage_opening import open_storage
from storage_engine.topic.chain.topic_state import TopicState
from storage_engine.topic.topics import Topics
from tests.faults.processes.driver import READY
from tests.faults.processes.source import TOPIC, Source, files_up_to
from tests.java_options import JAVA_OPTIONS

PROJECT = Path(__file__).resolve().parents[3]
PATIENCE = 300
WORKERS = "pipeline.python_daemon"
_MARK = "PROGRAM_OF_TEST"


class Process(NamedTuple):
    """A process as /proc shows it."""

    pid: int
    parent: int
    command: str

    def signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def has_open(self, files: set[Path]) -> bool:
        """Whether it has one of these files open."""
        with suppress(OSError):
            return any(entry.readlink() in files for entry in Path(f"/proc/{self.pid}/fd").iterdir())
        return False


class Program:
    """A Python module that runs as a separate process. Its standard error goes to a file.

    The environment has the name of this file, so the processes of a program are recognized, although Linux gives the ids
    of dead processes to new ones.
    """

    def __init__(
        self, folder: Path, module: str, *arguments: object, environment: Mapping[str, str] | None = None
    ) -> None:
        self._said = folder / f"{module.rpartition('.')[2]}.{time.monotonic_ns()}.stderr"
        with self._said.open("w") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, *map(str, arguments)],
                stdout=subprocess.PIPE, stderr=said, text=True, cwd=PROJECT, start_new_session=True,
                env={**os.environ, **(environment or {}), _MARK: str(self._said)},
            )  # fmt: skip

    @property
    def said(self) -> str:
        return self._said.read_text()

    def wait_for(self, text: str) -> None:
        """Wait until standard error contains this text. Fails if the program ends without it."""
        self.wait_until(lambda: text in self.said)

    def wait_until(self, happened: Callable[[], object], pause: float = 0.002) -> None:
        """Wait until a condition is true. Fails if the program ends before that. pause: seconds between two looks."""
        deadline = time.monotonic() + PATIENCE
        while not happened():
            assert self.process.poll() is None, f"ended with {self.process.returncode}: {self.said}"
            assert time.monotonic() < deadline, self.said
            time.sleep(pause)

    @property
    def has_failed(self) -> bool:
        """Whether it has ended with an error."""
        return bool(self.process.poll())

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the program and to its child processes that are still in its process group."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    @property
    def descendants(self) -> list[Process]:
        """All processes that the program has started, also executors and Python's workers: they belong to its
        session."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                    if int(fields[3]) != self.process.pid or int(entry.name) == self.process.pid:
                        continue
                    if f"{_MARK}={self._said}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                        command = (entry / "cmdline").read_text().replace("\0", " ")
                        found.append(Process(int(entry.name), int(fields[1]), command))
        return found

    @property
    def workers(self) -> list[Process]:
        """The Python processes that run Spark's tasks. Each is a child of a daemon, and the daemon has the same command
        line."""
        python = [each for each in self.descendants if WORKERS in each.command]
        daemons = {each.pid for each in python}
        return [each for each in python if each.parent in daemons]

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def kill_whole(self) -> None:
        """Kill it together with all processes that it has started, as the loss of its host does."""
        started = self.descendants
        self.kill()
        for process in (*started, *self.descendants):
            process.signal(signal.SIGKILL)

    def result(self) -> tuple[int, dict[str, Any]]:
        """Wait for the end of the program. Returns its exit status and its JSON line."""
        out, _ = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, json.loads(out.splitlines()[-1]) if out.strip() else {}

    def end(self) -> dict[str, Any]:
        """Ask the program to end, and return its JSON line. Fails if the program found something wrong."""
        self.process.terminate()
        status, result = self.result()
        assert status == 0, self.said
        return result


class Gated(Program):
    """A program that starts Spark, and then waits at a gate (tests.faults.processes.driver)."""

    def __init__(
        self, folder: Path, module: str, *arguments: object, environment: Mapping[str, str] | None = None
    ) -> None:
        self._gate = folder / f"gate.{time.monotonic_ns()}"
        super().__init__(folder, module, self._gate, *arguments, environment={**JAVA_OPTIONS, **(environment or {})})

    def ready(self) -> Self:
        self.wait_until(lambda: READY in self.said, pause=0.05)  # takes seconds, and nothing depends on the moment
        return self

    def go(self, text: str = "") -> None:
        """Let it begin. text: the content of the gate."""
        (written := self._gate.with_suffix(".part")).write_text(text)
        written.rename(self._gate)


_Started = TypeVar("_Started", bound=Program)


class World:
    """A root with one topic, its source, and the programs at work on it."""

    def __init__(
        self,
        folder: Path,
        source: Source,
        root: Path | str | None = None,
        environment: Mapping[str, str] | None = None,
        witness_pause: float = 0.01,
    ) -> None:
        """
        Args:
            root: a directory, which is created, or a URI.
            environment: further variables of the programs' environment.
            witness_pause: seconds between two looks of the witness.
        """
        self.folder = folder
        self.source = source
        self.root = root or folder / "root"
        if isinstance(self.root, Path):
            self.root.mkdir(exist_ok=True)
        self.environment = environment or {}
        self._witness_pause = witness_pause
        self.storage = open_storage(str(self.root))
        self._chain = Topics(self.storage, BrokerConfig(), SystemClock()).chain(TOPIC)
        self._programs: list[Program] = []
        self._watching: list[Program] = []

    @property
    def state(self) -> TopicState | None:
        """The topic's newest state; None before there is a topic."""
        return self._chain.newest_or_none()

    @property
    def batches(self) -> int:
        """How many micro-batches are committed."""
        state = self.state
        return sum(batch.batch_id + 1 for batch in state.queries.values()) if state else 0

    @property
    def files(self) -> int:
        """How many files of the source are committed."""
        return files_up_to(self.storage, self.batches - 1, self.source.files) if self.batches else 0

    @property
    def uncommitted(self) -> int:
        """Bytes under data/ that no version calls committed."""
        state = self.state
        committed = {each.name: each.size for part in state.partitions for each in part.segments} if state else {}
        logs = (file for file in self.storage.list("data/") if file.key.endswith(LOG))
        return sum(max(0, file.size - committed.get(Path(file.key).name.removesuffix(LOG), 0)) for file in logs)

    @property
    def staged(self) -> set[Path]:
        """The files in staging/."""
        return {Path(self.root, file.key) for file in self.storage.list("staging/")}

    def driver(self, *options: str) -> Driver:
        """Start a driver with these options of spark-submit."""
        return self._started(Driver(self, options))

    def witness(self) -> Program:
        return self._watcher("witness", self.root, TOPIC, self.source.rows, self.source.files, self._witness_pause)

    def janitor(self) -> Program:
        return self._watcher("janitor", self.root, TOPIC)

    def check_watchers(self) -> None:
        """Fails if the witness or the janitor has ended."""
        for program in self._watching:
            assert program.process.poll() is None, program.said

    def _watcher(self, name: str, *arguments: object) -> Program:
        module = f"tests.faults.processes.{name}"
        program = self._started(Program(self.folder, module, *arguments, environment=self.environment))
        self._watching.append(program)
        return program

    def _started(self, program: _Started) -> _Started:
        self._programs.append(program)
        return program

    def end(self) -> None:
        """Kill what still runs, executors of dead drivers too."""
        for program in self._programs:
            if program.process.poll() is None:
                program.kill()
            for process in program.descendants:
                process.signal(signal.SIGKILL)


class Driver(Gated):
    """The ingest job behind a gate, ready to work."""

    def __init__(self, world: World, options: tuple[str, ...]) -> None:
        words = [*(options or ("--master", "local[2]")), "pyspark-shell"]
        super().__init__(
            world.folder, "tests.faults.processes.driver",
            "--conf", world.source.conf, "--root", world.root, "--json",
            environment={"PYSPARK_SUBMIT_ARGS": shlex.join(words), **world.environment},
        )  # fmt: skip

    def pause(self) -> None:
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)


@contextmanager
def at_work(world: World, *, with_janitor: bool = True) -> Iterator[World]:
    """While the block runs, a witness reads the topic and a janitor cleans it. Fails if one of the two found something
    wrong."""
    with ExitStack() as stack:
        stack.callback(world.end)
        witness = world.witness()
        janitor = world.janitor() if with_janitor else None
        yield world
        cleaned = f", {janitor.end()}" if janitor else ""
        seen = witness.end()
        print(f"the witness met {seen['versions']} versions, {seen['records']} records{cleaned}", file=sys.stderr)
        assert seen["records"] == world.source.rows * world.files
