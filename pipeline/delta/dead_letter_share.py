"""Stops an export if too many of its records cannot be decoded.

To compute the share of dead letters, the export counts the records of the run, and at most a thousand records that
earlier runs exported. So several small runs are treated like one large run. Tombstones are not counted, because they
need no decoding. If the share is too large, the run commits nothing: no rows, no dead letters and no position.

To accept the dead letters, the operator passes the end offsets that the error message contains. So the acceptance
covers only the records that the error counted, and no later records. After an acceptance, the count begins again at
zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pipeline.delta.chain.stamp_chain import PartitionCounts
from pipeline.delta.export_plan import ExportRefusedError
from pipeline.delta.table_stamp import Recent

RECENT_RECORDS = 1_000
"""The largest number of records of earlier runs that are counted together with the records of a run."""
_SHOWN = 5
"""The largest number of reasons, and of partitions, that the error names."""


class TooManyDeadLettersError(ExportRefusedError):
    """More records than allowed cannot be decoded. Nothing was committed."""


@dataclass(frozen=True)
class ReasonCount:
    """Dead letters with the same reason. detail: the kind of error and the field, or None."""

    reason: str
    detail: str | None
    count: int


@dataclass(frozen=True)
class Place:
    """Dead letters of one partition."""

    partition: int
    first_offset: int
    last_offset: int
    count: int


@dataclass(frozen=True)
class Counts:
    """Counts of the records of one run.

    reasons: by reason, the number of dead letters.
    null_values: the number of dead letters that are tombstones, which an append cannot export.
    by_partition: the same counts, by partition of the topic. They are exact only if the rows have digests.
    """

    records: int
    tombstones: int
    reasons: Mapping[str, int]
    null_values: int
    by_partition: Mapping[int, PartitionCounts] = field(default_factory=dict)

    @property
    def dead_letters(self) -> int:
        return sum(self.reasons.values())

    @property
    def decodable(self) -> int:
        """Number of records over which the share of dead letters is computed."""
        return self.records - self.tombstones

    @property
    def not_decoded(self) -> int:
        return self.dead_letters - self.null_values


def recent_after(recent: Recent, counts: Counts, max_share: float, *, accepted: bool) -> Recent | None:
    """The counts of the last records after a run; None if the run must be stopped.

    Args:
        accepted: the command line accepts the dead letters. They do not count in later runs.
    """
    if accepted:
        return Recent()
    if is_too_much(recent, counts.decodable, counts.not_decoded, max_share):
        return None
    return followed_by(recent, counts.decodable, counts.not_decoded)


def followed_by(recent: Recent, records: int, dead_letters: int) -> Recent:
    """The counts of the last records, after the records of an increment were added.

    If there are more than a thousand records, the earliest are dropped. The dead letters are assumed to be spread
    evenly among the records.
    """
    if records >= RECENT_RECORDS:
        return Recent(RECENT_RECORDS, round(dead_letters * RECENT_RECORDS / records, 3))
    kept = min(recent.records, RECENT_RECORDS - records)
    share = recent.dead_letters / recent.records if recent.records else 0
    return Recent(kept + records, round(kept * share + dead_letters, 3))


def is_too_much(recent: Recent, records: int, dead_letters: int, max_share: float) -> bool:
    """Whether an increment with these dead letters is stopped. An increment without dead letters is never stopped."""
    counted = recent.records + records
    return dead_letters > 0 and recent.dead_letters + dead_letters > max_share * counted


def too_many_dead_letters(
    table: str,
    section: str,
    records: int,
    recent: Recent,
    max_share: float,
    reasons: Sequence[ReasonCount],
    places: Sequence[Place],
    end: Mapping[int, int],
) -> TooManyDeadLettersError:
    """The error for the operator, with reasons, counts, offsets and the choices.

    Args:
        section: the section of the settings that declares the export: `export`, or `exports.` and a name.
        records: number of records of the increment, without tombstones.
        reasons, places: the reasons and partitions of all dead letters of the increment.
        end: the end offsets of the increment, by partition.
    """
    dead = sum(place.count for place in places)
    before = f" and {recent.dead_letters:,.0f} of the {recent.records:,} records before them" if recent.records else ""
    share = (recent.dead_letters + dead) / (recent.records + records)
    whys = [f"{each.count:,} {each.reason}{f', {each.detail}' if each.detail else ''}" for each in reasons]
    wheres = [
        f"partition {each.partition} offsets {each.first_offset} to {each.last_offset} ({each.count:,})"
        for each in places
    ]
    only = f"--only {name} " if (name := section.partition(".")[2]) else ""
    offsets = ",".join(f"{partition}:{offset}" for partition, offset in sorted(end.items()))
    return TooManyDeadLettersError(
        table,
        f"{dead:,} of {records:,} records to export{before} cannot be decoded: {share:.1%}, and"
        f" {section}.max.dead.letter.share allows {max_share:.1%} ({_listed(whys, 'reasons')}; in"
        f" {_listed(wheres, 'partitions')})",
        "Nothing was exported. Choose one: (1) fix the model in schemas/ or the producer, and start again; (2) accept these"
        f' dead letters once with {only}--accept-dead-letters "{offsets}"; (3) raise {section}.max.dead.letter.share.',
    )


def _listed(items: Sequence[str], noun: str) -> str:
    shown = "; ".join(items[:_SHOWN])
    return shown if len(items) <= _SHOWN else f"{shown}; and {len(items) - _SHOWN} more {noun}"
