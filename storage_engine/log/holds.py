"""How far the registered consumers of a partition have read, which holds back what cleaning may take from it. Pure.

    tombstones, markers    from the lowest position on they stay consumer.max.hold.ms longer than their delete horizon
    whole segments         only under retention.respect.consumers: those not read through stay as long beyond their time

Without consumers nothing is held back, and cleaning is Kafka's. A consumer that stands still holds back for that long
and no longer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from storage_engine.config import LONG_MAX


@dataclass(frozen=True)
class Holds:
    """A partition's consumers. positions: by name, the offset up to which one has read, excluded."""

    positions: Mapping[str, int] = field(default_factory=dict)

    @property
    def offset(self) -> int:
        """Up to where all have read; no bound without consumers."""
        return min(self.positions.values(), default=LONG_MAX)

    def behind(self, end_offset: int) -> Holds:
        """Those that have not read up to this offset."""
        return Holds({name: position for name, position in self.positions.items() if position < end_offset})

    def __bool__(self) -> bool:
        return bool(self.positions)

    @property
    def names(self) -> str:
        """Who they are, as a text."""
        return " and ".join(sorted(self.positions))

    def verb(self, plural: str) -> str:
        """What they do: "holds" of one, "hold" of several."""
        return plural if len(self.positions) > 1 else f"{plural}s"

    def __str__(self) -> str:
        return " and ".join(f"{name}, at offset {position:,}," for name, position in sorted(self.positions.items()))


NO_HOLDS = Holds()
"""Of a partition that no registered consumer reads."""
