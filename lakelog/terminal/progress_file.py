"""Writes the progress of work to a file, one line of JSON after another, for programs that watch a job:

    {"time": "2026-01-31T12:00:00.000Z", "job": "maintenance", "state": "running", "work": "compact orders",
     "records": 1200000, "expected_records": null, "bytes": 340200000, "expected_bytes": 1200000000,
     "records_per_second": 96000, "bytes_per_second": 27300000, "seconds_left": 32, "note": ""}

The lines of an ingest also have the figures of its micro-batches: batches, batch_seconds, phase_seconds, spark_seconds
and dead_letters. Each piece of work has a line at its start and a line at its end. The state of the last line is `done`
or `failed`. Between these two lines, the file gets a line each second if the progress has changed. If the progress has
not changed, the file gets a line each ten seconds. Lines are appended, so several runs can share a file. If the file
can no longer be written, for example because the disk is full, the work continues.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from lakelog.terminal.progress_display import ProgressDisplay
from storage_engine.clock import Clock, SystemClock
from storage_engine.errors import UsageError
from storage_engine.progress import Meter
from storage_engine.quantities import iso_moment

_LOOK_SECONDS = 1.0
_LINE_EVERY_MS = 10_000


class ProgressFile:
    """A display that also writes to a file. It shows one piece of work after another."""

    def __init__(self, display: ProgressDisplay, path: Path, job: str, clock: Clock | None = None) -> None:
        """
        Args:
            display: also shows the work.
            path: the file, which is created if it is missing.

        Raises:
            UsageError: the file cannot be written.
        """
        self._display = display
        self._job = job
        self._clock = clock or SystemClock()
        try:
            self._file: TextIO = path.open("a", encoding="utf-8")
        except OSError as error:
            raise UsageError(
                f"--progress-json {path}", f"cannot be written: {error.strerror}", "Choose another file."
            ) from None

    @contextmanager
    def work(self, name: str, *, plain_lines: bool = True) -> Iterator[Meter]:
        ended = threading.Event()
        with self._display.work(name, plain_lines=plain_lines) as meter:
            watch = threading.Thread(target=self._watch, args=(meter, ended), name="progress-file", daemon=True)
            watch.start()
            state = "failed"
            try:
                yield meter
                state = "done"
            finally:
                ended.set()
                watch.join()
                self._write(state, meter.facts())

    def _watch(self, meter: Meter, ended: threading.Event) -> None:
        shown: Mapping[str, Any] | None = None
        shown_ms = 0
        while True:
            facts, now_ms = meter.facts(), self._clock.now_ms()
            if facts != shown or now_ms - shown_ms >= _LINE_EVERY_MS:
                self._write("running", facts)
                shown, shown_ms = facts, now_ms
            if ended.wait(_LOOK_SECONDS):
                return

    def _write(self, state: str, facts: Mapping[str, Any]) -> None:
        time = iso_moment(self._clock.now_ms())
        with suppress(OSError):
            self._file.write(f"{json.dumps({'time': time, 'job': self._job, 'state': state, **facts})}\n")
            self._file.flush()
