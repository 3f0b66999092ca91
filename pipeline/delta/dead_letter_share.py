"""Stops an increment of an export if too many of its records do not decode.

The share of dead letters is counted over the increment and over the records before it, up to a thousand, so that many
small increments are judged like one large increment. Tombstones are not counted, because they need no decoding. Above
the share nothing is committed: neither rows nor dead letters nor a position. The operator accepts the dead letters by
naming the end offsets that the message printed. So the acceptance covers the records of that message and no later ones.
After it the count begins again at zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.delta.export_plan import ExportRefusedError
from pipeline.delta.table_stamp import Recent

RECENT_RECORDS = 1_000
"""So many records before an increment count with it."""
_SHOWN = 5
"""So many reasons and partitions are named."""


class TooManyDeadLettersError(ExportRefusedError):
    """More records than allowed do not decode. Nothing was committed."""


@dataclass(frozen=True)
class Reason:
    """Dead letters of one reason: `detail` says where in the value."""

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


def followed_by(recent: Recent, records: int, dead_letters: int) -> Recent:
    """The last records once an increment came after them.

    Of those that are more than a thousand the earlier ones no longer count, dead letters taken to be spread evenly.
    """
    if records >= RECENT_RECORDS:
        return Recent(RECENT_RECORDS, round(dead_letters * RECENT_RECORDS / records, 3))
    kept = min(recent.records, RECENT_RECORDS - records)
    share = recent.dead_letters / recent.records if recent.records else 0
    return Recent(kept + records, round(kept * share + dead_letters, 3))


def is_too_much(recent: Recent, records: int, dead_letters: int, max_share: float) -> bool:
    """Whether an increment with these dead letters is to be stopped. One without any never is."""
    counted = recent.records + records
    return dead_letters > 0 and recent.dead_letters + dead_letters > max_share * counted


def too_many_dead_letters(
    table: str,
    records: int,
    recent: Recent,
    max_share: float,
    reasons: Sequence[Reason],
    places: Sequence[Place],
    end: Mapping[int, int],
) -> TooManyDeadLettersError:
    """What an operator needs to choose: reasons, counts, coordinates, and how to go on.

    Args:
        records: of the increment, tombstones left out.
        reasons, places: of all its dead letters.
        end: the increment's end offsets by partition.
    """
    dead = sum(place.count for place in places)
    before = f", with {recent.dead_letters:,.0f} of the {recent.records:,} before them" if recent.records else ""
    share = (recent.dead_letters + dead) / (recent.records + records)
    whys = [f"{each.count:,} {each.reason}{f', {each.detail}' if each.detail else ''}" for each in reasons]
    wheres = [
        f"partition {each.partition} offsets {each.first_offset} to {each.last_offset} ({each.count:,})"
        for each in places
    ]
    offsets = ",".join(f"{partition}:{offset}" for partition, offset in sorted(end.items()))
    return TooManyDeadLettersError(
        table,
        f"{dead:,} of {records:,} records to export do not decode{before}: {share:.1%}, and"
        f" export.max.dead.letter.share allows {max_share:.1%} ({_listed(whys, 'reasons')}; in"
        f" {_listed(wheres, 'partitions')})",
        "Nothing was exported. Choose: mend the model in schemas/ or the producer and start again; accept these dead"
        f' letters, once, with --accept-dead-letters "{offsets}"; or raise export.max.dead.letter.share.',
    )


def _listed(items: Sequence[str], noun: str) -> str:
    shown = "; ".join(items[:_SHOWN])
    return shown if len(items) <= _SHOWN else f"{shown}; and {len(items) - _SHOWN} more {noun}"
