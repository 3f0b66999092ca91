"""A topic, as Python programs use it: append records, read rows.

An append is one commit: its records become visible all at the same time, or not at all. `read` returns the rows that
are committed when it is called, and no later rows. `append` and `read` work with columns; use dicts only for a few
records.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal, TypedDict, TypeVar, Unpack

import pyarrow as pa

from lakelog.following import Follower, Following, Pieces, Record, check_id, in_batches, in_records
from lakelog.given_records import record_batches
from lakelog.rows import ROWS, ArrowRows, as_rows
from storage_engine.arguments import boolean, known_options, refused, seconds, whole_numbers
from storage_engine.errors import ConfigError, UnknownTopicError
from storage_engine.log.isolation import Isolation
from storage_engine.quantities import next_millisecond
from storage_engine.storage import Storage
from storage_engine.topic.append.appending import Append
from storage_engine.topic.chain.state_chain import StateChain
from storage_engine.topic.chain.topic_state import TopicState
from storage_engine.topic.chain.transaction_files import newest_decided
from storage_engine.topic.kafka.view import settle_committed
from storage_engine.topic.readers.consumer_files import encoded_group
from storage_engine.topic.readers.group_positions import GroupPosition, group_positions
from storage_engine.topic.readers.reader import PartitionReader
from storage_engine.topic.topics import Topics

if TYPE_CHECKING:
    import pyarrow.compute as pc

    from lakelog.inspection.describing import TopicDescription
    from lakelog.tables import FreshTable

Start = Literal["earliest", "latest"] | datetime | Mapping[int, int]
"""The start of a read.

earliest    the log start offset
latest      the end
a datetime  the first record at or after that time, as in Kafka: records with higher offsets follow, even if they are
                older, and the first one may be an aborted record. The datetime must have a time zone
a mapping   an offset for each partition; the other partitions start at their log start offsets
"""

_YEAR = 365 * 24 * 3600.0
_Item = TypeVar("_Item")


class FollowOptions(TypedDict, total=False):
    """The options of Topic.follow.

    start: the place at which a group without a position begins to read; see Start. The default is earliest.
    isolation: as in Topic.read.
    stop_at_end: end the loop when all records are read. By default, the loop waits for more records.
    poll_seconds: how long to wait before looking for more records; by default half a second.
    holds_back: if true, cleaning keeps the records that this group has not read, in the same way as for an export. By
        default, an existing group keeps its earlier value, and a new group has the value false.
    skip_deleted: if retention deleted records before the group read them, continue after these records. By default, the
        loop raises an error.
    """

    start: Start
    isolation: Literal["read_committed", "read_uncommitted"]
    stop_at_end: bool
    poll_seconds: float
    holds_back: bool
    skip_deleted: bool


class Topic:
    """A topic of a root. Several threads and several processes may use the same topic at the same time.

    name: the name.
    id: the topic id. If a topic is deleted and then created again with the same name, the new topic has another id.
    """

    def __init__(self, topics: Topics, state: TopicState) -> None:
        self._topics = topics
        self.name = state.topic
        self.id = state.topic_id

    @property
    def partitions(self) -> int:
        """The current number of partitions.

        Raises:
            UnknownTopicError: the topic was deleted.
        """
        return len(self._state().partitions)

    @property
    def config(self) -> dict[str, str]:
        """The settings that the topic itself has: Kafka's keys and their values.

        Raises:
            UnknownTopicError: the topic was deleted.
        """
        return dict(self._state().configs)

    def append(self, records: object, *, partition: int | None = None) -> dict[int, range]:
        """Append records as one commit.

        Args:
            records: an Arrow table or record batch, a pandas or Polars frame, any other object that implements Arrow's
                C stream interface, or a list of dicts. The column `value` is required; the columns `key`, `headers` and
                `timestamp` are optional (docs/API.md). The other columns that `read` returns are ignored, so rows from
                `read` can be appended if each of them has a timestamp.
            partition: the partition of all records. By default the key of a record determines its partition, as in
                Kafka. Records without a key go to one partition, which is chosen at random for each append.

        Returns:
            For each partition, the offsets of the new records.

        Raises:
            InvalidRecordError: a column or a record has the wrong type or form. Nothing was appended.
            RecordTooLargeError, InvalidTimestampError: the topic does not accept a record. Nothing was appended.
            ConfigError: `partition` is no whole number. Nothing was appended.
            UnknownTopicError: the topic was deleted.
            AmbiguousPutError: it is unknown whether the records were committed. Read the topic before you append again.
            StorageError: any other failure of the storage. Nothing was committed.
        """
        state = self._state()
        config, clock = self._topics.config(state), self._topics.clock
        chain = self._topics.chain(self.name)
        with Append(self._topics.storage, chain, config, clock, partition, state=state) as append:
            for batch in record_batches(records, clock.now_ms()):
                append.stage(batch)
            offsets = append.offsets(append.commit())
        if offsets:
            settle_committed(self._topics, (self.name,), warn)
        return offsets

    def read(
        self,
        start: Start = "earliest",
        *,
        partitions: Sequence[int] | None = None,
        where: pc.Expression | None = None,
        isolation: Literal["read_committed", "read_uncommitted"] = "read_committed",
    ) -> Rows:
        """The rows from `start` to the end of the topic. The end is determined when `read` is called.

        Args:
            start: see Start.
            partitions: only these partitions; by default all.
            where: only rows for which this expression on the columns is true. If the expression limits `partition`,
                `offset` or `timestamp`, most rows outside these limits are not read. All other rows are read and then
                filtered.
            isolation: with read_committed, the rows do not include records of aborted transactions. In each partition,
                the rows end before the first record of an open transaction.

        Raises:
            UnknownTopicError: the topic was deleted, or has no such partition.
            OffsetOutOfRangeError: an offset in `start` is below the log start offset, or after the end.
            ConfigError: `start`, `partitions` or `isolation` has a wrong value, or `where` cannot be evaluated on the
                columns.
        """
        level = _isolation(isolation)
        storage, chain = self._topics.storage, self._topics.chain(self.name)
        state = newest_decided(storage, chain)
        check_id(state, self.id)
        named: Iterable[int] = range(len(state.partitions))
        if partitions is not None:
            named = dict.fromkeys(
                whole_numbers("partitions", partitions, "Give the numbers of partitions, such as [0].")
            )
        if isinstance(start, Mapping):
            start = _checked_offsets(state, start)
        ranges = {}
        for number in named:
            reader = PartitionReader(storage, chain, number, state)
            end = reader.end_offset(level)
            first = _first_offset(reader, start, number, end, level)
            reader.read(first, end, level)  # this checks the offset, and reads nothing yet
            ranges[number] = range(first, end)
        if where is not None:
            from lakelog.filtering import check_filter, offsets_that_can_match

            check_filter(where)
            ranges = {
                number: offsets_that_can_match(where, storage, state, number, each) for number, each in ranges.items()
            }
        return Rows(storage, chain, state, ranges, level, where)

    def table(
        self,
        table: str | os.PathLike[str] | None = None,
        *,
        schema: str | None = None,
        registry: str | None = None,
        key_schema: str | None = None,
        key_registry: str | None = None,
    ) -> FreshTable:
        """The current rows of an exported Delta table: the rows that the table would have after an export of all
        committed records. The result combines the rows of the table with the records that are not exported yet. Each
        committed record counts once, even if an export commits at the same time. Records that cannot be decoded are
        left out.

        The records that are not exported yet are read when `table` is called, and stay in memory. This function needs a
        checkout of Lakelog. It does not need Spark.

        Args:
            table: the path of the table below the root, or a URI; by default tables/NAME, with the name of the topic.
            schema: the topic's schema, written as in the setting topics.NAME.schema. Leave this argument out if the
                topic has no schema.
            registry: the registry of the topic's schemas, written as in the setting topics.NAME.schema.registry. The
                user and the password are in LAKELOG_SCHEMAS_REGISTRY_USER and LAKELOG_SCHEMAS_REGISTRY_PASSWORD.
            key_schema: the schema of the topic's keys, written as in the setting topics.NAME.key.schema. Leave this
                argument out if the topic has no such setting.
            key_registry: the registry of the schemas of the keys, as in the setting topics.NAME.key.schema.registry.

        Raises:
            StateError: the table does not exist, the table belongs to another topic, the table's position in the topic
                is not known, or retention deleted records that no export had read. The error message says what to do.
            ConflictError: retention or compaction changed the log during each attempt to read it.
            ConfigError: the table needs a schema, or a schema or a registry cannot be used, or an argument has a wrong type.
            MissingPackageError: this is not a checkout of Lakelog, or deltalake is not installed.
            UnsupportedError: only Spark can read this table; use lakelog.table.
            UnknownTopicError: the topic was deleted.
            LogError: the schema registry does not answer, or refuses access.
        """
        from lakelog.tables import fresh_table

        check_id(self._topics.chain(self.name).newest(), self.id)
        texts = (schema, registry), (key_schema, key_registry)
        return fresh_table(self._topics, self.name, self.id, table, *texts)

    def follow(self, group: str, **options: Unpack[FollowOptions]) -> Iterator[Record]:
        """The records of the topic, one by one: first the records that the group has not read yet, then the records
        that are appended later.

        When the loop asks for the next record, the position after the current record is committed. Each commit waits
        for the storage, so use follow_batches for more than a few hundred records per second. If the loop fails or ends
        by `break`, the next loop gets the current record again.

        Args:
            group: the name of the group. This loop is the group's only member, until another loop joins the same group.
                Only one thread may use the loop.
            options: see FollowOptions.

        Raises, while the loop runs:
            FencedError: another reader has joined the group.
            OffsetOutOfRangeError: retention has deleted records that the group had not read.
            StateError: the group is an export or a stream, which `follow` cannot continue.
            ConfigError: an option has a wrong value, or does not exist.
            CorruptionError: committed bytes have changed, or the file of the group is damaged.
            UnknownTopicError: the topic was deleted.
        """
        return self._follow(group, options, in_records)

    def follow_batches(self, group: str, **options: Unpack[FollowOptions]) -> Iterator[pa.RecordBatch]:
        """Reads as a group, like follow, but returns Arrow record batches instead of records. The batches have the
        columns of `read`, and each batch is from one partition. When the loop asks for the next batch, the position
        after the current batch is committed.

        Args:
            group, options: as in follow.

        Raises, while the loop runs:
            LogError: the same errors as in follow.
        """
        return self._follow(group, options, in_batches)

    def _follow(self, group: str, options: FollowOptions, pieces: Pieces[_Item]) -> Iterator[_Item]:
        known_options("follow", options, FollowOptions.__annotations__.keys())
        level, start = _isolation(options.get("isolation", "read_committed")), options.get("start", "earliest")
        _check_group(group)
        holds_back = options.get("holds_back")
        if holds_back is not None:
            boolean("holds_back", holds_back)
        poll_seconds = options.get("poll_seconds", 0.5)
        poll_seconds = seconds("poll_seconds", poll_seconds, 0, _YEAR, "Give 0 or more, and at most a year.")
        if isinstance(start, Mapping):
            start = _checked_offsets(self._state(), start)
        following = Following(
            isolation=level,
            first_offset=lambda reader, number: _first_offset(reader, start, number, reader.end_offset(level), level),
            stop_at_end=boolean("stop_at_end", options.get("stop_at_end", False)),
            poll_seconds=poll_seconds,
            skip_deleted=boolean("skip_deleted", options.get("skip_deleted", False)),
        )
        follower = Follower(self._topics, self.name, self.id, following)
        return follower.read(group, holds_back, pieces)

    def groups(self, *, unread: bool = False) -> list[GroupPosition]:
        """The positions of the groups that read this topic, in each partition. A group is a loop of `follow`, an
        export, or a stream.

        Args:
            unread: also return the number, the size in bytes and the age of the unread records. To count these records,
                the call reads the unread part of the log.

        Raises:
            ConfigError: `unread` is no boolean.
            CorruptionError: the file of a group, or a part of the log, is damaged.
            UnknownTopicError: the topic was deleted.
        """
        boolean("unread", unread)
        self._state()
        chain, now_ms = self._topics.chain(self.name), self._topics.clock.now_ms()
        return group_positions(self._topics.storage, chain, now_ms, unread=unread)

    def describe(self) -> TopicDescription:
        """The partitions, segments, writer and settings of the topic, as `lakelog topics describe` shows them.

        Raises:
            UnknownTopicError: the topic was deleted.
            CorruptionError: the topic's state is damaged.
        """
        from lakelog.inspection import describing

        return describing.describe(self._topics, self._state())

    def _state(self) -> TopicState:
        state = self._topics.state(self.name)
        check_id(state, self.id)
        return state

    def __repr__(self) -> str:
        return f"<topic {self.name} of {self._topics.storage.uri}>"


@dataclass(frozen=True)
class Rows(ArrowRows):
    """Rows of a topic: in each partition, the rows between two offsets. The rows are ordered by partition, and by
    offset within a partition.

    Rows are read when the program iterates, some megabytes at a time. Each iteration reads the rows again. Rows that
    retention or compaction has deleted before an iteration are missing.

    ranges: for each partition, the offsets that are read. There may be fewer rows than offsets, because compaction
        leaves gaps, and because `where` excludes rows.
    """

    _storage: Storage
    _chain: StateChain
    _state: TopicState
    ranges: Mapping[int, range]
    _isolation: Isolation
    _where: pc.Expression | None = None

    @property
    def schema(self) -> pa.Schema:
        """The columns, the same as in Spark's Kafka source (lakelog.rows)."""
        return ROWS

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """The rows in Arrow record batches.

        Raises:
            CorruptionError: committed bytes have changed.
            UnknownTopicError: the topic was deleted after the call of `read`, and its files are deleted, too.
            ConfigError: `where` cannot be evaluated on one of the rows.
        """
        for number, offsets in self.ranges.items():
            if offsets:
                reader = PartitionReader(self._storage, self._chain, number, self._state)
                for records in reader.read(offsets.start, offsets.stop, self._isolation):
                    rows = as_rows(records, self._state.topic, number)
                    if self._where is not None:
                        from lakelog.filtering import filtered

                        rows = filtered(rows, self._where)
                    if rows.num_rows:
                        yield rows


def warn(problem: str) -> None:
    """Issue a warning at the place where the program called Lakelog."""
    warnings.warn(problem, stacklevel=4)


def _isolation(given: str) -> Isolation:
    if given not in list(Isolation):
        raise ConfigError("isolation", f"found {given!r}", f"Choose {' or '.join(Isolation)}.")
    return Isolation(given)


def _check_group(group: object) -> None:
    if not isinstance(group, str):
        raise refused("group", "expected a text", group, "Name the group.")
    if not group:
        raise ConfigError("group", "found an empty name", "Name the group.")
    encoded_group(group)


def _checked_offsets(state: TopicState, given: Mapping[int, int]) -> dict[int, int]:
    remedy = "Give partitions and offsets as integers, such as {0: 5}."
    numbers, values = (whole_numbers("start", list(each), remedy) for each in (given.keys(), given.values()))
    offsets = dict(zip(numbers, values, strict=True))
    for number in offsets:
        if not 0 <= number < len(state.partitions):
            raise UnknownTopicError(
                f"topic {state.topic}",
                f"has partitions 0 to {len(state.partitions) - 1}, but the argument start names partition {number}",
            )
    return offsets


def _first_offset(reader: PartitionReader, start: Start, number: int, end: int, isolation: Isolation) -> int:
    log_start = reader.partition.log_start_offset
    match start:
        case "earliest":
            return log_start
        case "latest":
            return end
        case datetime() if start.utcoffset() is not None:
            found = reader.offset_at(max(0, next_millisecond(start)), isolation)  # no special time
            return end if found is None else found[0]
        case Mapping():
            return start.get(number, log_start)
    remedy = "Give earliest, latest, a datetime with a zone, or an offset for each partition."
    raise ConfigError("start", f"found {type(start).__name__} {start!r:.60}", remedy)
