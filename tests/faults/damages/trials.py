"""Runs all operations for one damage after another. Each operation runs on a damaged copy of the root, and its result
is compared with the result on the undamaged root.
"""

from __future__ import annotations

import functools
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from storage_engine.errors import LogError
from storage_engine.verify.findings import problems
from storage_engine.verify.root.root_check import check_root
from storage_engine.verify.root.root_repair import repair_root
from storage_engine.verify.root.state_repair import repair_documents
from storage_engine.verify.segment_check import Options
from tests.faults.damages import commands, uses
from tests.faults.damages.changes import Damage, Instead, make_damage, small_files
from tests.faults.damages.uses import HELD, Outcome, contents
from tests.faults.damages.whole_root import (
    DENSE,
    DENSE_ROWS,
    NAMES,
    NEVER,
    build,
    dense_rows,
    topics_of,
    topics_to_verify,
)

READING = uses.READING | commands.READING
WRITING = uses.WRITING | commands.WRITING
_COMMAND = "lakelog "


@dataclass
class Trial:
    """The results of one damage.

    outcomes: for each operation, `refused`, `same`, or a text that says what is wrong.
    found: whether `verify` found the damage.
    """

    damage: Damage
    seed: int
    outcomes: dict[str, str] = field(default_factory=dict)
    found: bool = False

    @property
    def wrong(self) -> dict[str, str]:
        return {name: outcome for name, outcome in self.outcomes.items() if outcome not in ("refused", "same")}

    @property
    def must_be_found(self) -> bool:
        """Whether `verify` must find the damage. A deleted version, group or decision leaves no trace, unless another
        file names it."""
        return self.damage.key.startswith(("meta/", "staging/")) and not self.damage.deletes


class Damages:
    """The root, what is done with it while it is whole, and the damages."""

    def __init__(self, folder: Path, commands_share: float = 1.0) -> None:
        """
        Args:
            commands_share: the share of the trials in which the commands are run, too.
        """
        self._folder = folder
        self._commands_share = commands_share
        self.root = folder / "whole"
        self.now_ms = build(self.root)
        self.kinds = small_files(self.root)
        self._expected: dict[str, Outcome] = {
            name: _outcome(act, self.root, self.now_ms) for name, act in READING.items()
        }
        for name, act in WRITING.items():
            with self._copy() as copy:
                self._expected[name] = _outcome(act, copy, self.now_ms)
        refused = [name for name, outcome in self._expected.items() if isinstance(outcome, LogError)]
        assert not refused, (refused, [str(self._expected[name]) for name in refused])
        self._read = uses.read(self.root, self.now_ms)
        self._check_dense()
        self._ids = {name: topics_of(self.root, self.now_ms).state(name).topic_id for name in NAMES}
        left = check_root(topics_of(self.root, self.now_ms), None, None, Options(), 1).findings
        assert not problems(left), [str(each) for each in problems(left)]

    def _check_dense(self) -> None:
        """Compare the expected contents of the dense topic with the records that were appended."""
        for partition in range(2):
            *_, records = next(each for each in self._read[DENSE] if isinstance(each, tuple) and each[0] == partition)
            found = [(row["offset"], row["key"], row["value"], row["timestamp"]) for row in records[:DENSE_ROWS]]
            appended = enumerate(dense_rows(partition))
            assert found == [(offset, row.key, row.value, row.timestamp) for offset, row in appended]

    def _copy(self) -> _Copy:
        return _Copy(self.root, self._folder / "copy")

    def trial(self, seed: int) -> Trial:
        """Damage a copy, and do everything with it."""
        damage = make_damage(self.root, self.kinds, seed)
        done = Trial(damage, seed)
        chance = random.Random(seed + 1)
        keeps_time = chance.random() < 0.5
        with_commands = chance.random() < self._commands_share
        concerned = self._concerned(damage)
        with self._copy() as copy:
            _apply(copy, damage, keeps_time=keeps_time)
            for name, act in _chosen(READING, with_commands=with_commands):
                outcome = _outcome(functools.partial(act, names=concerned), copy, self.now_ms)
                done.outcomes[name] = self._judged(name, outcome, damage, keeps_time, concerned)
        for name, act in _chosen(WRITING, with_commands=with_commands):
            with self._copy() as copy:
                _apply(copy, damage, keeps_time=keeps_time)
                outcome = _outcome(functools.partial(act, names=concerned), copy, self.now_ms)
                done.outcomes[name] = self._judged(name, outcome, damage, keeps_time, concerned)
        with self._copy() as copy:
            _apply(copy, damage, keeps_time=keeps_time)
            done.found, done.outcomes["repair"] = self._repaired(copy)
        return done

    def _concerned(self, damage: Damage) -> tuple[str, ...]:
        """The topics that a damage may matter to: those of its files, or all."""
        ids = {self._ids[name]: name for name in NAMES}
        found = set()
        for key in damage.contents:
            folders = key.split("/")
            own = {"meta": folders[1], "data": ids.get(folders[1]), "log": folders[1].rpartition("-")[0]}
            found.add(own.get(folders[0]))
        return tuple(name for name in NAMES if name in found) if found <= set(NAMES) else NAMES

    def _judged(
        self, name: str, outcome: Outcome, damage: Damage, keeps_time: bool, concerned: Sequence[str] = NAMES
    ) -> str:
        expected = self._expected[name]
        if isinstance(expected, dict) and name != "settle":
            expected = {key: value for key, value in expected.items() if key in concerned}
        if isinstance(outcome, LogError):
            return "refused"
        if isinstance(outcome, Exception):
            return f"{type(outcome).__name__}: {outcome}"[:300]
        if isinstance(outcome, dict) and isinstance(expected, dict):
            other = {key for key in expected.keys() | outcome.keys() if outcome.get(key) != expected.get(key)}
            crashed = [
                each for each in outcome.values() if isinstance(each, Exception) and not isinstance(each, LogError)
            ]
            if crashed:
                return f"{type(crashed[0]).__name__}: {crashed[0]}"[:300]
            other -= {key for key in other if isinstance(outcome.get(key), LogError)}
            # A file of the view that rots and keeps its time is taken for the same, which `verify` finds out.
            other -= {key.removeprefix("log/") for key in damage.contents} if name == "settle" and keeps_time else set()
            held = {key.removeprefix(f"{HELD} ") for key in outcome if key.startswith(HELD)}
            if damage.kind == "groups" and held and other == held | {f"{HELD} {key}" for key in held}:
                lost = [key for key in held if not _is_part(expected[key], outcome[key])]
                return f"held back, and yet less {lost}" if lost else "refused"
            if not other:
                return "refused" if any(isinstance(each, LogError) for each in outcome.values()) else "same"
            return f"other {sorted(other)[:3]}"
        if (
            name in ("plan", "lakelog plan")
            and damage.kind == "groups"
            and isinstance(outcome, bytes)
            and HELD.encode() in outcome
        ):
            return "refused"
        return "same" if outcome == expected else "other"

    def _repaired(self, copy: Path) -> tuple[bool, str]:
        """Whether `verify` finds the damage, and what `verify --repair` leaves."""
        topics = topics_to_verify(copy, self.now_ms)
        try:
            found = check_root(topics, None, None, Options(), 1)
            wrong = problems(found.findings)
            restored, left = [], wrong
            if wrong:
                restored = repair_documents(topics)
                again = check_root(topics, None, None, Options(), 1) if restored else found
                repair_root(topics, again)
                left = problems(check_root(topics, None, None, Options(), 1).findings)
        except LogError:
            return True, "refused"
        is_told = bool(left) or any(each.is_loss for each in restored)
        outcomes = set()
        for name, expected in self._read.items():
            try:
                found_now = contents(topics_of(copy, self.now_ms), name)
            except LogError:
                outcomes.add("refused" if is_told or not wrong else f"repair says that all is well, and {name} is not")
                continue
            if found_now == expected:
                outcomes.add("same")
            elif any(NEVER in repr(each).encode() for each in found_now):
                outcomes.add(f"made bytes of {name} visible that were never committed")
            elif is_told and _is_part(found_now, expected):
                outcomes.add("refused")
            else:
                outcomes.add(f"other {name}, told: {is_told}, found: {bool(wrong)}")
        worst = sorted(outcomes - {"same", "refused"})
        return bool(wrong), worst[0] if worst else "refused" if "refused" in outcomes else "same"


def _is_part(contents: list[Any], expected: list[Any]) -> bool:
    """Whether no partition has a record that the other contents do not have."""

    def by_partition_of(found: list[Any]) -> dict[tuple[int, str], list[Any]]:
        parts = [each for each in found if isinstance(each, tuple)]
        return {(each[0], each[1]): each[4] for each in parts}

    whole = by_partition_of(expected)
    return all(
        all(record in whole.get(where, ()) for record in records)
        for where, records in by_partition_of(contents).items()
    )


class _Copy:
    """A copy of links, removed at the end. Every file that is changed is written again or renamed, never in place."""

    def __init__(self, root: Path, copy: Path) -> None:
        self._root, self._path = root, copy

    def __enter__(self) -> Path:
        shutil.copytree(self._root, self._path, copy_function=os.link)
        return self._path

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._path)


def _apply(root: Path, damage: Damage, *, keeps_time: bool) -> None:
    for key, content in damage.contents.items():
        path = root / key
        modified = path.stat().st_mtime_ns
        path.unlink()
        if content is Instead.FOLDER:
            path.mkdir()
        elif isinstance(content, bytes):
            path.write_bytes(content)
            if keeps_time:
                os.utime(path, ns=(modified, modified))


def _chosen(
    acts: dict[str, Callable[..., Outcome]], *, with_commands: bool
) -> Iterator[tuple[str, Callable[..., Outcome]]]:
    return ((name, act) for name, act in acts.items() if with_commands or not name.startswith(_COMMAND))


def _outcome(act: Callable[[Path, int], Outcome], path: Path, now_ms: int) -> Outcome:
    try:
        return act(path, now_ms)
    except LogError as error:
        return error
    except Exception as error:  # noqa: BLE001 - an outcome that no damage may have
        return error


def table(trials: list[Trial]) -> Iterator[str]:
    """By kind of file, and by kind of damage."""
    sorts: dict[str, Callable[[Trial], str]] = {
        "file": lambda trial: trial.damage.kind,
        "damage": lambda trial: trial.damage.what,
    }
    for title, of in sorts.items():
        yield f"{title:<42} damages  refused  same  WRONG  found  not found"
        for name in sorted({of(trial) for trial in trials}):
            chosen = [trial for trial in trials if of(trial) == name]
            refused = sum("refused" in trial.outcomes.values() and not trial.wrong for trial in chosen)
            wrong = sum(bool(trial.wrong) for trial in chosen)
            found = sum(trial.found for trial in chosen)
            yield (
                f"{name:<42} {len(chosen):7} {refused:8} {len(chosen) - refused - wrong:5} {wrong:6} {found:6}"
                f" {len(chosen) - found:10}"
            )
        yield ""
    acts = Counter((name, outcome if outcome in ("refused", "same") else "WRONG") for trial in trials
                   for name, outcome in trial.outcomes.items())  # fmt: skip
    for name in dict.fromkeys(name for trial in trials for name in trial.outcomes):
        counts = {what: acts[name, what] for what in ("refused", "same", "WRONG")}
        yield f"{name:<42} {'':7} {counts['refused']:8} {counts['same']:5} {counts['WRONG']:6}"


def failures(trials: list[Trial]) -> Iterator[str]:
    """The failures of each trial, with the seed that repeats the trial."""
    for trial in trials:
        where = f"damage {trial.seed}: {trial.damage.what} of {trial.damage.key}"
        for name, outcome in trial.wrong.items():
            yield f"{where}: {name}: {outcome}"
        if trial.must_be_found and not trial.found:
            yield f"{where}: verify does not find it"
