"""Defines Holds: how far the registered consumers of a partition have read.

If a registered consumer has not read some records, cleaning waits before it deletes these records. Cleaning waits for
at most consumer.max.hold.ms:

    tombstones, markers    those at or above the lowest position of all consumers are kept after their delete horizon
    whole segments         with retention.respect.consumers, unread segments are kept when retention would delete them

Without registered consumers, cleaning is the same as in Kafka. All functions are pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from storage_engine.config import LONG_MAX


@dataclass(frozen=True)
class Holds:
    """The registered consumers of a partition.

    positions: by name, the offset after the last record that the consumer has read.
    """

    positions: Mapping[str, int] = field(default_factory=dict)

    @property
    def offset(self) -> int:
        """The offset up to which all consumers have read; LONG_MAX without consumers."""
        return min(self.positions.values(), default=LONG_MAX)

    def behind(self, end_offset: int) -> Holds:
        """Return the consumers that have not read up to this offset."""
        return Holds({name: position for name, position in self.positions.items() if position < end_offset})

    def __bool__(self) -> bool:
        return bool(self.positions)

    @property
    def names(self) -> str:
        """The names of the consumers as text."""
        return " and ".join(sorted(self.positions))

    def verb(self, plural: str) -> str:
        """Return the verb form for the number of consumers: "holds" for one, "hold" for several."""
        return plural if len(self.positions) > 1 else f"{plural}s"

    def __str__(self) -> str:
        return " and ".join(f"{name}, at offset {position:,}," for name, position in sorted(self.positions.items()))


NO_HOLDS = Holds()
"""The value for a partition without registered consumers."""
