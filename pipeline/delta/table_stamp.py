"""Defines the stamp. A stamp is the metadata in a commit to an exported Delta table: the topic and the exported
positions.

Each commit of an export has a stamp in Delta's user metadata, so rows and position change in one atomic step:

    {"lakelog": {"topic": "flights", "topic_id": "...", "table_id": "...", "mode": "upsert",
                 "positions": {"0": 52110, "1": 50932}, "version": 7, "id": "9f3ac1...", "format": 2,
                 "recent": {"records": 1000, "dead_letters": 12}, "began": {"offsets": {}, "partitions": 2}}}

`positions` contains, for each partition, the next offset to read. The newest stamp contains the positions of the table,
with one exception: RESTORE brings back older rows, so stamps after the restored version are ignored.

If the rows of the table have digests, the stamp has another field, `chain` (`pipeline.delta.chain.stamp_chain`).

`began` describes the first export of the table. A proof (`pipeline.delta.proof`) needs the field `began`.

The release of Lakelog that introduced stale rows (decision 0037) also introduced `format` 2. Stamps of format 1 have
none of the fields `format`, `recent` and `began`. If an older release finds a stamp with these fields, the older
release stops with an error. So an older release cannot delete rows that a newer release wrote. Stamps with a `chain`
have format 3, so an older release cannot break the chain. All other stamps still have format 2.

The commit of a rebuild also has `"lakelog_rebuild": true` beside `lakelog`. Other programs, and older releases, ignore
this field. A proof needs it: a rebuild writes all columns of all rows, but a commit that widens a column does not. For a
proof, a commit of new rows also has `"lakelog_without": ["_headers", ["delivery", "city"]]` if the table has columns, or
fields inside columns, that the rows do not have. And a commit of an export has `"lakelog_model": "9c1f2e..."`, a hash of
the schemas that decoded its records (`schemas.event_schema.model_hash`).

This module needs no Spark. `pipeline.delta.table_history` finds the stamps in the table's history.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from dataclasses import fields as dataclass_fields
from typing import Any

from pipeline.delta.chain.stamp_chain import Chain, PartitionCounts, RowChangeSums, RowSums, next_chain, seal_of
from pipeline.delta.rows.field_paths import Field
from storage_engine.errors import StateError

STAMP_FORMAT = 2
CHAIN_FORMAT = 3
"""The formats of stamps without and with a chain. The number is increased if an older exporter could damage a newer table."""

_KEY = "lakelog"
_REBUILD_KEY = "lakelog_rebuild"
_WITHOUT_KEY = "lakelog_without"
_MODEL_KEY = "lakelog_model"


class NewerTableError(StateError):
    """A newer Lakelog exported to the table, and this version of Lakelog does not know the rules of the newer one."""


@dataclass(frozen=True)
class Recent:
    """Counts of the last exported records, up to a thousand. The share of dead letters is also counted over these
    records.

    records: number of records, without tombstones.
    dead_letters: number of these records that could not be decoded. This is not a whole number if only a part of an
        earlier increment counts.
    """

    records: int = 0
    dead_letters: float = 0


@dataclass(frozen=True)
class Began:
    """How the first export of a table began.

    offsets: by partition, the first offset that was exported; only partitions in which older records were left out.
    partitions: the number of the topic's partitions at that time.
    """

    offsets: Mapping[int, int]
    partitions: int


@dataclass(frozen=True)
class Stamp:
    """The stamp of one commit."""

    topic: str
    topic_id: str
    table_id: str
    """Delta's id of the exported table. A move of the directory does not change the id; a CLONE has another id."""
    mode: str
    positions: Mapping[int, int]
    """Partition to next offset."""
    version: int
    """The guard."""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    format: int = STAMP_FORMAT
    recent: Recent = Recent()
    began: Began | None = None
    """None: not known."""
    chain: Chain | None = None
    """The sums of the rows' digests; None: the rows have no digests, or the chain has ended."""
    model: str = ""
    """The hash of the schemas that decoded the records (`schemas.event_schema.model_hash`); empty: not known."""

    @property
    def app_id(self) -> str:
        """The application id of the guard. It contains the id of the exported table, because several tables may share
        one dead-letter table."""
        return f"{_KEY}:{self.topic_id}:{self.table_id}"

    def with_chain(self, chain: Chain) -> Stamp:
        """The same stamp with a sealed chain."""
        open_stamp = replace(self, chain=chain, format=CHAIN_FORMAT)
        return replace(open_stamp, chain=replace(chain, seal=seal_of(open_stamp.document())))

    def to_json(self, *, of_rebuild: bool = False, without: Collection[Field] = ()) -> str:
        """The user metadata of the commit.

        Args:
            of_rebuild: the commit makes all rows again from the log.
            without: columns of the table, and fields inside columns, that are null in all rows of the commit.
        """
        columns = [each for each in without if isinstance(each, str)]
        inner = [each for each in without if not isinstance(each, str)]
        beside = {
            **({_MODEL_KEY: self.model} if self.model else {}),
            **({_REBUILD_KEY: True} if of_rebuild else {}),
            **({_WITHOUT_KEY: [*sorted(columns), *sorted(inner)]} if without else {}),
        }
        return json.dumps({_KEY: self.document(), **beside})

    def document(self) -> dict[str, Any]:
        """The stamp as it is written, without the key `lakelog`."""
        began = self.began and {**asdict(self.began), "offsets": _with_text_keys(self.began.offsets)}
        names = [each.name for each in dataclass_fields(self) if each.name not in ("chain", "model")]
        fields = {name: getattr(self, name) for name in names}
        document = {
            **fields, "positions": _with_text_keys(self.positions), "recent": asdict(self.recent), "began": began,
        }  # fmt: skip
        return document if self.chain is None else {**document, "chain": self.chain.to_document()}

    @classmethod
    def from_json(cls, user_metadata: str | None) -> Stamp | None:
        """The stamp in a commit's user metadata; None if there is no stamp. Other writers may write any text as user
        metadata.

        Raises:
            NewerTableError: the stamp has a newer format.
        """
        fields = stamp_document(user_metadata)
        if fields is None:
            return None
        found = fields.get("format", 1)
        if found > CHAIN_FORMAT:
            raise NewerTableError(
                f"the table of topic {fields.get('topic')}",
                f"a newer Lakelog exported to this table (its stamp has format {found}; this Lakelog knows format"
                f" {CHAIN_FORMAT})",
                "Use the newer Lakelog. Nothing was changed.",
            )
        began, chain = fields.get("began"), fields.get("chain")
        known = {
            "table_id": str(fields["table_id"]),
            "positions": _with_number_keys(fields["positions"]),
            "format": found,
            "recent": Recent(**fields.get("recent", {})),
            "began": None if began is None else Began(_with_number_keys(began["offsets"]), int(began["partitions"])),
            "chain": None if chain is None else Chain.from_document(chain),
            "model": str(_parsed(user_metadata).get(_MODEL_KEY, "")),
        }
        return cls(**{**fields, **known})


def stamp_document(user_metadata: str | None) -> dict[str, Any] | None:
    """The stamp in a commit's user metadata, as it was written; None if there is no stamp."""
    document = _parsed(user_metadata)
    if _KEY not in document:
        return None
    fields: dict[str, Any] = document[_KEY]
    return fields


def is_of_rebuild(user_metadata: str | None) -> bool:
    """Whether a commit's user metadata say that the commit is a rebuild. Rebuilds of older releases do not say it."""
    return _parsed(user_metadata).get(_REBUILD_KEY) is True


def columns_left_out(user_metadata: str | None) -> list[Field]:
    """The columns of the table, and the fields inside columns, that are null in all rows of a commit, according to its user
    metadata. Older releases do not say it, or name only columns."""
    found = _parsed(user_metadata).get(_WITHOUT_KEY)
    named = found if isinstance(found, list) else []
    return [each if isinstance(each, str) else tuple(map(str, each)) for each in named if isinstance(each, str | list)]


def _parsed(user_metadata: str | None) -> dict[str, Any]:
    """The user metadata as JSON; empty if they are no JSON object."""
    try:
        document = json.loads(user_metadata or "null")
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _with_text_keys(offsets: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): offset for partition, offset in sorted(offsets.items())}


def _with_number_keys(offsets: Mapping[str, int]) -> dict[int, int]:
    return {int(partition): int(offset) for partition, offset in offsets.items()}


@dataclass(frozen=True)
class TableHead:
    """The newest version of a table, and the stamps that describe its rows."""

    version: int
    current: Stamp | None
    """The stamp of the current rows; None if the history does not contain it."""
    newest: Stamp | None
    """The last stamp that was written, even if the table was restored after this."""
    next_guard: int
    """The guard of the next export's commit. All exports that continue from the same stamp have the same guard."""
    table_id: str | None = None
    """Delta's id of the table, if the commits that were read contain the id."""
    is_new: bool = False
    """Whether the table was only created, and has no rows."""
    foreign: int | None = None
    """The first commit of another writer that changed rows after the `current` stamp, or after the commit on which its
    chain rests; None if there is no such commit."""


@dataclass(frozen=True)
class NextLink:
    """What the next commit needs to continue the chain.

    head: the head of the table from which the rows that go are read.
    first: by partition, the first offset that was read; only partitions that were read.
    counts: by partition, the counts of the records.
    """

    head: TableHead
    first: Mapping[int, int] = field(default_factory=dict)
    counts: Mapping[int, PartitionCounts] = field(default_factory=dict)

    def add_to(
        self,
        stamp: Stamp,
        came: RowSums | None = None,
        went: RowSums | None = None,
        stale: Mapping[int, int] | None = None,
    ) -> Stamp:
        """The stamp with the chain.

        Args:
            came, went: by partition, the rows that the commit adds and removes.
            stale: by partition, the number of rows that become stale.
        """
        counts = dict(self.counts)
        for each, number in (stale or {}).items():
            counts[each] = replace(counts.get(each, PartitionCounts()), stale=number)
        before = self.head.current.chain if self.head.current is not None else None
        changes = RowChangeSums(came or {}, went or {}, counts)
        return stamp.with_chain(next_chain(before, self.head.version, stamp.positions, self.first, changes))


def known_positions(head: TableHead | None) -> Mapping[int, int] | None:
    """The table's positions; empty if there is no table, and None if the positions can only be computed from the
    rows."""
    if head is None:
        return {}
    return head.current.positions if head.current is not None else None


def known_began(head: TableHead | None) -> Began | None:
    """How the first export of a table began; None if there is no table, or if this is not known."""
    return head.current.began if head is not None and head.current is not None else None


def perhaps_written(head: TableHead | None, start: Mapping[int, int], end: Mapping[int, int]) -> dict[int, int]:
    """By partition, the offset below which the dead-letter table can already contain dead letters of the offsets that are
    read. Only partitions that have such offsets.

    If the log of the dead-letter table has no stamp of the exported table any more, nothing is known: maintenance keeps
    only the newest stamp of the dead-letter table, which can be the stamp of another exported table.

    Args:
        head: the head of the dead-letter table; None if there is no table yet.
        start: by partition, the first offset that is read.
        end: by partition, the offset after the last one that is read.
    """
    if head is None:
        return {}
    positions = end if head.current is None else head.current.positions
    return {each: position for each, position in positions.items() if start.get(each, position) < position}


def letters_stamp(stamp: Stamp, head: TableHead | None) -> Stamp:
    """The stamp of an append to the dead-letter table: all dead letters of the exported table are below its positions.

    Args:
        stamp: the stamp of the exported table.
        head: the head of the dead-letter table, as for `perhaps_written`.
    """
    before = head.current.positions if head is not None and head.current is not None else {}
    return replace(stamp, positions={each: max(at, before.get(each, 0)) for each, at in stamp.positions.items()})
