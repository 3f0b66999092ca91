"""Defines the chain in the stamps of an exported table: the sums of the row digests, by partition of the topic.

    "chain": {"base": 41, "previous": "5d41402a...", "seal": "7d793037...",
              "partitions": {"0": {"from": 52010, "to": 52110, "records": 100, "tombstones": 3, "dead_letters": 1,
                                   "stale": 1, "came": [96, "9f3a..."], "went": [90, "1b2c..."],
                                   "after": [4043, "77ab..."]}}}

`base` is the version of the table on which the commit rests. `previous` is the seal of the stamp before it; null in the
first stamp of a chain. `seal` is a hash of the whole stamp, except the seal itself. `from` and `to` are the offsets that
were read. The pairs are a number of rows and the sum of their digests (`pipeline.delta.chain.row_digest`) modulo 2^128,
as 32 hexadecimal digits: the rows that the commit added, the rows that it removed, and all rows of the partition after
the commit. A replaced row is in both. So `after` is always the `after` of the stamp before, plus `came`, minus `went`.
Fields that are 0, and partitions that never had rows or records, are missing.

This module needs no Spark. All functions are pure.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

_MODULUS = 1 << 128


@dataclass(frozen=True)
class RowSum:
    """Rows of a table. rows: their number. digest: the sum of their digests modulo 2^128."""

    rows: int = 0
    digest: int = 0

    def __add__(self, other: RowSum) -> RowSum:
        return RowSum(self.rows + other.rows, (self.digest + other.digest) % _MODULUS)

    def __sub__(self, other: RowSum) -> RowSum:
        return RowSum(self.rows - other.rows, (self.digest - other.digest) % _MODULUS)

    def to_pair(self) -> list[int | str]:
        """The form in a stamp."""
        return [self.rows, f"{self.digest:032x}"]

    @classmethod
    def from_pair(cls, pair: list[Any] | None) -> RowSum:
        """The rows of a pair in a stamp; no rows if the pair is missing."""
        return NO_ROWS if pair is None else cls(int(pair[0]), int(pair[1], 16))


NO_ROWS = RowSum()
RowSums = Mapping[int, RowSum]
"""By partition."""


def added(one: RowSums, other: RowSums) -> dict[int, RowSum]:
    """The sums of both."""
    return {each: one.get(each, NO_ROWS) + other.get(each, NO_ROWS) for each in {*one, *other}}


@dataclass(frozen=True)
class PartitionCounts:
    """Counts of one partition in one commit. stale: rows that became stale; the others are records that were read."""

    records: int = 0
    tombstones: int = 0
    dead_letters: int = 0
    stale: int = 0


NO_COUNTS = PartitionCounts()


@dataclass(frozen=True)
class RowChangeSums:
    """What one commit does to the rows of a table, by partition."""

    came: RowSums = field(default_factory=dict)
    went: RowSums = field(default_factory=dict)
    counts: Mapping[int, PartitionCounts] = field(default_factory=dict)


@dataclass(frozen=True)
class PartitionLink:
    """One partition in one stamp. first, end: the first offset that was read, and the offset after the last one."""

    first: int
    end: int
    counts: PartitionCounts = NO_COUNTS
    came: RowSum = NO_ROWS
    went: RowSum = NO_ROWS
    after: RowSum = NO_ROWS

    def to_document(self) -> dict[str, Any]:
        """The form in a stamp."""
        counts = {name: count for name, count in asdict(self.counts).items() if count}
        sums = {"came": self.came, "went": self.went, "after": self.after}
        pairs = {name: each.to_pair() for name, each in sums.items() if each != NO_ROWS}
        return {"from": self.first, "to": self.end, **counts, **pairs}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> PartitionLink:
        """The reverse of `to_document`."""
        counts = PartitionCounts(**{name: document.get(name, 0) for name in asdict(NO_COUNTS)})
        came, went, after = (RowSum.from_pair(document.get(name)) for name in ("came", "went", "after"))
        return cls(int(document["from"]), int(document["to"]), counts, came, went, after)


@dataclass(frozen=True)
class Chain:
    """The chain in one stamp. base: the version of the table on which the commit rests. previous, seal: hashes of the
    stamp before, and of this stamp."""

    base: int
    previous: str | None
    partitions: Mapping[int, PartitionLink]
    seal: str = ""

    @property
    def sums(self) -> dict[int, RowSum]:
        """All rows of the table, by partition."""
        return {each: link.after for each, link in self.partitions.items() if link.after != NO_ROWS}

    def to_document(self) -> dict[str, Any]:
        """The form in a stamp."""
        partitions = {str(each): link.to_document() for each, link in sorted(self.partitions.items())}
        return {"base": self.base, "previous": self.previous, "partitions": partitions, "seal": self.seal}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Chain:
        """The reverse of `to_document`."""
        partitions = {int(each): PartitionLink.from_document(link) for each, link in document["partitions"].items()}
        return cls(int(document["base"]), document["previous"], partitions, document["seal"])

    def follows(self, before: Chain | None) -> bool:
        """Whether the sums of this chain follow from the sums of the stamp before it."""
        rows = {} if before is None else {each: link.after for each, link in before.partitions.items()}
        partitions = {*rows, *self.partitions}
        return all(self._follows(each, rows.get(each, NO_ROWS)) for each in partitions)

    def _follows(self, partition: int, before: RowSum) -> bool:
        link = self.partitions.get(partition, PartitionLink(0, 0))
        return link.after == before + link.came - link.went


def next_chain(
    before: Chain | None,
    base: int,
    positions: Mapping[int, int],
    first: Mapping[int, int],
    changes: RowChangeSums = RowChangeSums(),
) -> Chain:
    """The chain of a commit, without its seal.

    Args:
        before: the chain in the stamp of the current rows; None if the table has no rows yet, or is made again.
        base: the version of the table from which the changes were computed.
        positions: the positions after the commit.
        first: by partition, the first offset that was read; only partitions that were read.
    """
    rows = {} if before is None else {each: link.after for each, link in before.partitions.items()}
    links = {}
    for each in _sorted(rows, first, changes.came, changes.went, changes.counts):
        end = positions.get(each, 0)
        came, went = changes.came.get(each, NO_ROWS), changes.went.get(each, NO_ROWS)
        after = rows.get(each, NO_ROWS) + came - went
        counts = changes.counts.get(each, NO_COUNTS)
        links[each] = PartitionLink(first.get(each, end), end, counts, came, went, after)
    return Chain(base, None if before is None else before.seal, links)


def _sorted(*groups: Iterable[int]) -> list[int]:
    return sorted({each for group in groups for each in group})


def seal_of(document: Mapping[str, Any]) -> str:
    """The seal of a stamp.

    Args:
        document: the stamp as it is in the commit, with or without a seal.
    """
    chain = {name: value for name, value in document["chain"].items() if name != "seal"}
    text = json.dumps({**document, "chain": chain}, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
