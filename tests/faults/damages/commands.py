"""Runs operations on a root through the command line, in this process. Each result is what a user of `lakelog` sees.

An exit status other than 0 means that the command refused its work. Then the command must print the reason as one line
on standard error, and its earlier output does not count. A command that ends with 0 must have the same output and
effect as on the undamaged root.
"""

from __future__ import annotations

import base64
import io
import json
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from lakelog import cli
from storage_engine.errors import LogError, StateError
from tests.faults.damages.uses import HELD, Outcome, contents, files_of
from tests.faults.damages.whole_root import HOUR_MS, NAMES, rows, topics_of


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it printed."""

    status: int
    out: str
    err: str


def run(path: Path, *arguments: str, stdin: bytes = b"", place: str = "--root") -> Ended:
    """Run a command on a root, or what else is named. An exception that is no exit goes through: a user would see a
    traceback.
    """
    streams = [io.TextIOWrapper(io.BytesIO(content), encoding="utf-8") for content in (stdin, b"", b"")]
    given, out, err = streams
    status = 0
    with (
        mock.patch.object(sys, "argv", ["lakelog", *arguments, place, str(path)]),
        mock.patch.multiple(sys, stdin=given, stdout=out, stderr=err),
    ):
        try:
            cli.main()
        except SystemExit as end:
            status = int(end.code or 0)
    texts = []
    for stream in (out, err):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode(errors="replace").replace(str(path), "ROOT"))
    return Ended(status, *texts)


def _refusal(ended: Ended) -> LogError | None:
    """The error that a command ended with; None if it ended well."""
    if not ended.status:
        return None
    lines = ended.err.splitlines()
    if not lines or "Traceback" in ended.err or "Traceback" in ended.out:
        raise AssertionError(f"status {ended.status}, and no error: {ended.err[-300:]}")
    return StateError("lakelog", lines[-1])


def _each(path: Path, names: Sequence[str], *arguments: str) -> dict[str, object]:
    """What a command prints about each topic."""
    outcomes: dict[str, object] = {}
    for name in names:
        ended = run(path, *arguments, "--topic", name)
        outcomes[name] = _refusal(ended) or ended.out
    return outcomes


def read(path: Path, now_ms: int, names: Sequence[str] = NAMES) -> Outcome:
    return _each(path, names, "read")


def uncommitted(path: Path, now_ms: int, names: Sequence[str] = NAMES) -> Outcome:
    return _each(path, names, "read", "--isolation", "read_uncommitted")


def offsets(path: Path, now_ms: int, names: Sequence[str] = NAMES) -> Outcome:
    return _each(path, names, "offsets", "--time", str(now_ms - 40 * HOUR_MS))


def plan(path: Path, now_ms: int, names: Sequence[str] = NAMES) -> Outcome:
    ended = run(path, "plan", "--now", str(now_ms), "--format", "json")
    if (refusal := _refusal(ended)) is not None:
        return refusal
    return json.dumps(json.loads(ended.out) | {"root": ""}).encode()


def describe(path: Path, now_ms: int, names: Sequence[str] = NAMES) -> Outcome:
    outcomes: dict[str, object] = {}
    for name in names:
        ended = run(path, "topics", "describe", name)
        # How many versions are kept is one less where one was deleted.
        told = [line for line in ended.out.splitlines() if not line.startswith("versions ")]
        outcomes[name] = _refusal(ended) or told
    return outcomes


def _then_read(
    path: Path, now_ms: int, names: Sequence[str], command: Callable[[str], Sequence[str]], stdin: bytes = b""
) -> dict[str, object]:
    """Run a command on each topic, and read the topic afterwards."""
    outcomes: dict[str, object] = {}
    for name in names:
        ended = run(path, *command(name), stdin=stdin)
        outcomes[name] = _refusal(ended) or _contents_or_refusal(path, now_ms, name)
        if not ended.status and HELD in ended.err:
            outcomes[f"{HELD} {name}"] = True
    return outcomes


def _contents_or_refusal(path: Path, now_ms: int, name: str) -> object:
    try:
        return contents(topics_of(path, now_ms), name, with_times=False)
    except LogError as error:
        return error


def append_then_read(path: Path, now_ms: int, names: Sequence[str] = NAMES) -> Outcome:
    def text(data: bytes | None) -> str | None:
        return None if data is None else base64.b64encode(data).decode()

    lines = [
        json.dumps({"key": text(row.key), "value": text(row.value), "timestamp": row.timestamp})
        for row in rows(950, 3, now_ms)
    ]
    stdin = "".join(f"{line}\n" for line in lines).encode()
    return _then_read(path, now_ms, names, lambda name: ("append", "--topic", name, "--partition", "0"), stdin)


def compact_then_read(path: Path, now_ms: int, names: Sequence[str] = NAMES) -> Outcome:
    return _then_read(path, now_ms, names, lambda name: ("compact", "--topic", name, "--force", "--now", str(now_ms)))


def apply_then_read(path: Path, now_ms: int, names: Sequence[str] = NAMES) -> Outcome:
    """Retention, compaction and merging, by a plan that was made from the root as it is."""
    outcomes: dict[str, object] = {}
    for name in names:
        saved = path.parent / f"{path.name}.{name}.plan.json"
        made = run(path, "plan", "--topic", name, "--now", str(now_ms), "--save", str(saved))
        try:
            if (refusal := _refusal(made)) is not None:
                outcomes[name] = refusal
                continue
            outcomes |= _then_read(path, now_ms, [name], lambda _: ("plan", "--apply", str(saved)))  # noqa: B023
            if HELD in saved.read_text():
                outcomes[f"{HELD} {name}"] = True
        finally:
            saved.unlink(missing_ok=True)
    return outcomes


def export_then_read(path: Path, now_ms: int, names: Sequence[str] = NAMES) -> Outcome:
    """What the exported directory holds. The markers that end open transactions there have the time of the export."""
    outcomes: dict[str, object] = {}
    for name in names:
        out = path.parent / f"{path.name}.{name}.exported"
        try:
            ended = run(path, "topics", "export", str(out), "--topic", name)
            records = run(out, "read", "--isolation", "read_uncommitted", place="--kafka-dir")
            outcomes[name] = _refusal(ended) or _refusal(records) or (records.out, sorted(files_of(out)))
        finally:
            shutil.rmtree(out, ignore_errors=True)
    return outcomes


READING: dict[str, Callable[..., Outcome]] = {
    "lakelog read": read, "lakelog read uncommitted": uncommitted, "lakelog offsets": offsets, "lakelog plan": plan,
    "lakelog topics describe": describe,
}  # fmt: skip
WRITING: dict[str, Callable[..., Outcome]] = {
    "lakelog append": append_then_read, "lakelog compact": compact_then_read, "lakelog plan --apply": apply_then_read,
    "lakelog topics export": export_then_read,
}  # fmt: skip
