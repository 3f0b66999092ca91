"""One trial: an honest table, which `prove` must not call different, and a change of this table, which it must find."""

from __future__ import annotations

import random
import traceback
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from storage_engine.errors import LogError
from tests.pipeline.delta.order_models import schema_of
from tests.pipeline.delta.proof.tampering.histories import History
from tests.pipeline.delta.proof.tampering.models import Goods, StrictGoods
from tests.pipeline.delta.proof.tampering.tamperings import TAMPERINGS

HONEST, FOUND, MISSED, UNCHANGED, WRONG = "equal", "found", "missed", "unchanged", "called different"


@dataclass(frozen=True)
class Trial:
    """The result of a trial.

    seed: makes the same trial again.
    steps: the steps that made the table.
    honest: how `prove` called the honest table.
    tampering: the name of the change.
    outcome: whether `prove` found the change; UNCHANGED: the table has nothing that can be changed.
    detail: what `prove` said.
    """

    seed: int
    steps: tuple[str, ...]
    honest: str
    tampering: str
    outcome: str
    detail: str

    @property
    def failed(self) -> bool:
        return self.honest != HONEST or self.outcome == MISSED

    def __str__(self) -> str:
        return (
            f"seed {self.seed}: {self.honest}; {self.tampering}: {self.outcome}: {self.detail}; {', '.join(self.steps)}"
        )


def trial(folder: Path, seed: int) -> Trial:
    """Make a table, prove it, change it, and prove it again."""
    chance = random.Random(seed)
    try:
        history = History(folder, chance)
        honest = _honest(history)
    except Exception:  # noqa: BLE001 - each failure is a result
        return Trial(seed, (), "failed", "", MISSED, traceback.format_exc())
    steps = tuple(history.steps)
    names = list(TAMPERINGS)
    chance.shuffle(names)
    for name in names:
        if TAMPERINGS[name](history):
            return Trial(seed, steps, honest, name, *_outcome(history, name))
    return Trial(seed, steps, honest, "none is possible", UNCHANGED, "")


def _honest(history: History) -> str:
    """Prove the table, also with a stricter model, and the part that changed since a version."""
    topic = history.topic
    proofs = [topic.prove()]
    if topic.export.schema == schema_of(Goods):
        proofs.append(topic.prove(replace(topic.export, schema=schema_of(StrictGoods))))
    if history.stamp.chain is not None and (version := history.some_stamped_version()) is not None:
        proofs.append(topic.prove(since=version))
    found = [each.problem for proof in proofs for each in proof.findings.differences]
    found += [f"another writer committed version {proof.foreign}" for proof in proofs if proof.foreign is not None]
    return f"{WRONG}: {found[0]}" if found else HONEST


def _outcome(history: History, name: str) -> tuple[str, str]:
    try:
        proof = history.topic.prove()
    except LogError as error:
        return FOUND, type(error).__name__
    except Exception:  # noqa: BLE001 - a crash is no answer
        return MISSED, traceback.format_exc()
    if proof.findings.differing:
        return FOUND, proof.findings.differences[0].problem
    if name == "column dropped" and proof.not_compared:  # the digests do not cover _stale_since
        return FOUND, "a column is not compared"
    if name == "type narrowed" and proof.foreign is not None:  # no value was lost
        return FOUND, "another writer"
    if name == "dead letter lost" and proof.answer != "equal":
        return FOUND, proof.answer
    if name == "RESTORE" and proof.was_restored:
        return FOUND, "restored"
    return MISSED, f"{proof.answer}, {history.topic.export.mode}, digest {history.topic.export.digest}"


def table(trials: Iterable[Trial]) -> list[str]:
    """By tampering, how many were made and found."""
    made, found = Counter[str](), Counter[str]()
    for each in trials:
        made[each.tampering] += 1
        found[each.tampering] += each.outcome == FOUND
    return [f"{name:28} {found[name]:5} of {made[name]:5}" for name in sorted(made)]
