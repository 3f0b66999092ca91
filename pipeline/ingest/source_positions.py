"""Tracks the positions of rows in their source. If an ingest stores positions, the ingest does not depend on its
checkpoint.

`ingest.position.columns` names the columns that contain the position. For each partition of the source, the topic's
state stores the highest committed position (storage_engine/topic/append/committed_positions.py). When tasks stage rows,
they skip each row at or below this position. Each micro-batch commits, for each partition of the source, the highest
position that the batch reached. These positions also include rows that were skipped, and rows that became dead letters.

    rows/            passes the columns on, as `position` and `position_of_0`, `position_of_1`, ... (position_columns)
    staging_task.py  compares the rows of a task with the committed positions (RowPositions)
    micro_batch.py   reads the committed positions from the state, and adds the new positions to the commit (SourceEnds)

For sources of the kinds kafka and lakelog, the checkpoint's offsets file contains the end offset of every partition,
including partitions without a row in the micro-batch. So every partition has a position from the first micro-batch on.
For sources of the kind lakelog, the stored name of a partition contains the topic's id, because the offsets of a topic
that was deleted and created again begin at 0. Kafka's rows have no topic id.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakelog.spark.data_source import LAKELOG, may_read
from lakelog.spark.sink.streaming_checkpoint import batch_offsets
from pipeline.ingest.rows.source_options import source_options
from pipeline.settings import Settings
from storage_engine.errors import (
    ConfigError,
    CorruptionError,
    NotFoundError,
    OffsetOutOfRangeError,
    PositionsError,
)
from storage_engine.storage import Storage
from storage_engine.topic.append.committed_positions import (
    LONGEST_SOURCE_PARTITION,
    MOST_SOURCE_PARTITIONS,
    Advance,
    check_kept,
    source_partition,
)
from storage_engine.topic.chain.topic_state import TopicState

POSITION = "position"
"""The column of a row's position, bigint."""
POSITION_OF = "position_of_"
"""The prefix of the columns that name the source's partition. After the prefix comes a number: 0, 1, 2 and so on. The
columns are bigint or text."""

_OF_MESSAGES = ("topic", "partition", "offset")
_KAFKA = "kafka"
_SUBSCRIPTIONS = ("subscribe", "subscribepattern", "assign")
"""The options of kafka and lakelog that choose the topics, in lower case."""


@dataclass(frozen=True)
class PositionedSource:
    """The source of an ingest, if its positions are stored.

    name: the name of the source in the topic's state.
    columns: columns of the source's rows; the last one is the position.
    kind: Spark's name of the source's format.
    options: the options that Spark receives, with names in lower case.
    """

    name: str
    columns: tuple[str, ...]
    kind: str
    options: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: Settings) -> Self | None:
        """The source of the settings; None if the settings name no position columns.

        Raises:
            ConfigError: this kind of source has different position columns, or the source needs a name.
        """
        ingest = settings.required_ingest()
        if ingest.position_columns is None:
            return None
        columns, kind = ingest.position_columns, ingest.source.format.lower()
        if kind in (_KAFKA, LAKELOG) and tuple(column.lower() for column in columns) != _OF_MESSAGES:
            raise ConfigError(
                settings.place_of("ingest.position.columns"), f"found {', '.join(columns)}",
                f"The position columns of a {kind} source are {', '.join(_OF_MESSAGES)}.",
            )  # fmt: skip
        options = {name.lower(): value for name, value in source_options(settings).items()}
        servers = sorted(server.strip() for server in options.get("kafka.bootstrap.servers", "").split(","))
        name = ingest.position_source or {
            _KAFKA: f"{_KAFKA} {','.join(servers)}",
            LAKELOG: LAKELOG,
        }.get(kind, f"{kind} {ingest.source.path}" if ingest.source.path else None)
        if name is None:
            raise ConfigError(
                settings.place_of("ingest.position.columns"),
                f"the topic stores positions under the name of the source, but a {kind} source has no name",
                "Give the source a name with ingest.position.source.",
            )  # fmt: skip
        return cls(name, columns, kind, options)

    @property
    def selection(self) -> str:
        """What the query reads of the source. For kafka and lakelog these are the topics, because two streams from one
        cluster have the same source name. For other sources these are the position columns of the settings."""
        if not self.tells_ends:
            return f"by {', '.join(self.columns)}"
        return ", ".join(f"{option} {self.options[option]}" for option in _SUBSCRIPTIONS if option in self.options)

    @property
    def tells_ends(self) -> bool:
        """Whether the offsets file contains the end offset of every partition."""
        return self.kind in (_KAFKA, LAKELOG)

    def is_known(self, state: TopicState) -> bool:
        """Whether a topic has positions of this stream, so that the stream continues after them.

        Another stream may have the same source name and other source topics. Its positions do not count.
        """
        if self.name not in state.positions:
            return False
        writer = state.writer
        if not self.tells_ends or (writer.source, writer.reads) == (self.name, self.selection):
            return True
        topics = {partition.rpartition("/")[0].rpartition("/")[2] for partition in state.positions[self.name]}
        try:
            return any(may_read(self.options, topic) for topic in topics)
        except ConfigError:  # Kafka's pattern has syntax that only Java knows
            return True

    def reached(self, storage: Storage, checkpoint: str, batch_id: int) -> SourceEnds:
        """The end offsets of the source's partitions in a micro-batch; empty if the source does not report them.

        Raises:
            PositionsError: a partition ends at a lower offset than in the micro-batch before this one.
        """
        place = f"{checkpoint}/offsets/{batch_id}"
        ends = self.ends(batch_offsets(storage, checkpoint, batch_id), place)
        with suppress(NotFoundError):
            ends.check_not_before(self.ends(batch_offsets(storage, checkpoint, batch_id - 1), place), place)
        return ends

    def check_start(self, storage: Storage, checkpoint: str, positions: Mapping[str, int]) -> None:
        """Check that a stream with a new checkpoint begins at or before the first row after these positions of a state.

        Raises:
            OffsetOutOfRangeError: the stream began after these rows, and the options make that an error.
        """
        if positions and self.options.get("failondataloss", "true").strip().lower() == "true":
            place = f"source {self.name}, checkpoint {checkpoint}"
            self.starts(storage, checkpoint).check_reach(positions, place)

    def ends(self, offsets: bytes, place: str) -> SourceEnds:
        """The end offsets of the source's partitions in a micro-batch; empty if the source does not report them.

        Args:
            offsets: the checkpoint's offsets file.

        Raises:
            CorruptionError: the file does not contain the end offsets.
        """
        if not self.tells_ends:
            return SourceEnds()
        return self._partitions(offsets.splitlines()[-1:], place)

    def starts(self, storage: Storage, checkpoint: str) -> SourceEnds:
        """The offsets at which the stream of a checkpoint began; empty if they are not known.

        After Spark has planned the first micro-batch, they are in the checkpoint: for kafka in a file of their own, for
        lakelog in the end of the first micro-batch (lakelog/spark/stream_position.py).
        """
        if not self.tells_ends:
            return SourceEnds()
        if self.kind == LAKELOG:
            offsets = batch_offsets(storage, checkpoint, 0)
            return self._partitions(offsets.splitlines()[-1:], f"{checkpoint}/offsets/0", of_start=True)
        place = f"{checkpoint}/sources/0/0"
        with suppress(NotFoundError):
            return self._partitions(storage.read(place).splitlines()[-1:], place)
        return SourceEnds()

    def _partitions(self, lines: Sequence[bytes], place: str, *, of_start: bool = False) -> SourceEnds:
        try:
            topics = json.loads(b"".join(lines))
            if self.kind == LAKELOG:
                ids = {topic: position["topic_id"] for topic, position in topics.items()}
                topics = {
                    topic: position.get("begun", {}) if of_start else position["offsets"]
                    for topic, position in topics.items()
                }
            else:
                ids = {}
            offsets = {
                source_partition((topic, number)): int(offset)
                for topic, partitions in topics.items()
                for number, offset in partitions.items()
            }
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptionError(
                place, 0, "a JSON object that has, for each topic, the offsets of its partitions", "something else",
                "Choose one: (1) restore the checkpoint from a backup; (2) delete the whole checkpoint and start again. No"
                " row is lost or appended twice: the topic stores which rows are committed.",
            ) from error  # fmt: skip
        return SourceEnds(offsets, ids)


@dataclass(frozen=True)
class SourceEnds:
    """An offset in each partition of a source: the end of a micro-batch, or the start of a stream.

    ends: the next offset, by the name of the source partition in the rows.
    ids: the ids of Lakelog topics, by the name of the topic.
    """

    ends: Mapping[str, int] = field(default_factory=dict)
    ids: Mapping[str, str] = field(default_factory=dict)

    def name_in_state(self, partition: str) -> str:
        """The name that a source partition has in the state. partition: the name that it has in the rows."""
        topic_id = self.ids.get(partition.rpartition("/")[0])
        return partition if topic_id is None else f"{topic_id}/{partition}"

    def as_rows_say(self, positions: Mapping[str, int]) -> dict[str, int]:
        """The positions of a state, by the name that the source partition has in the rows. Positions of other topic ids
        are left out."""
        if not self.ids:
            return dict(positions)
        named = {self.name_in_state(partition): partition for partition in self.ends}
        return {named[name]: position for name, position in positions.items() if name in named}

    def check_not_before(self, earlier: SourceEnds, place: str) -> None:
        """Check that no partition ends at a lower offset than in the micro-batch before this one.

        Raises:
            PositionsError: a partition ends at a lower offset, so its offsets began again.
        """
        for partition, end in self.ends.items():
            if earlier.ids == self.ids and end < earlier.ends.get(partition, 0):
                raise PositionsError(
                    place, f"the end offset of partition {partition} of the source has decreased from"
                    f" {earlier.ends[partition]} to {end}",
                    "A source topic that was deleted and created again begins at offset 0, so its new rows would"
                    " be treated as committed rows. Give the source another name with ingest.position.source.",
                )  # fmt: skip

    def check_reach(self, positions: Mapping[str, int], place: str) -> None:
        """Check that a stream from these offsets begins at or before the first offset that is not committed.

        Args:
            positions: the positions of a state.

        Raises:
            OffsetOutOfRangeError: the stream does not read the records between the two offsets.
        """
        for partition, begin in self.ends.items():
            position = positions.get(self.name_in_state(partition))
            if position is not None and begin > position + 1:
                raise OffsetOutOfRangeError(
                    place, f"the stream begins at offset {begin} of the source partition {partition}, but rows are committed"
                    f" only up to offset {position}",
                    "If the source still has the messages between these offsets, delete the whole checkpoint, and start"
                    " again. If the source deleted these messages, set the source's option failOnDataLoss to false to"
                    " continue without them.",
                )  # fmt: skip

    def behind(self, positions: Mapping[str, int]) -> list[str]:
        """The source partitions whose committed position in a state is at or beyond this end, by their names in the
        rows."""
        return [
            partition for partition, end in self.ends.items() if positions.get(self.name_in_state(partition), -1) >= end
        ]

    def advance(self, source: str, compared_with: Mapping[str, int], highest: Mapping[str, int]) -> Advance:
        """The change that a micro-batch with these end offsets makes to a state's positions.

        Args:
            compared_with: the positions of that state.
            highest: the highest positions that the tasks found, by the name of the source partition in the rows.

        Raises:
            PositionsError: the source has no fixed set of partitions.
        """
        reached = {self.name_in_state(partition): position for partition, position in highest.items()}
        for partition, end in self.ends.items():
            name = self.name_in_state(partition)
            if end > 0:
                reached[name] = max(end - 1, reached.get(name, 0))
        check_kept("ingest.position.columns", source, reached)
        return Advance(source, compared_with, reached)


@dataclass(frozen=True)
class RowPositions:
    """The positions of some rows in their source.

    names: the names of the source partitions.
    partitions: int64, shape (rows,): the index of the row's partition in `names`; -1 if the row has no partition or no
        position.
    positions: int64, shape (rows,).
    """

    names: tuple[str, ...]
    partitions: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]

    @classmethod
    def of(cls, rows: pa.RecordBatch, untold: npt.NDArray[np.bool_] | None = None) -> Self:
        """The positions of rows with the columns POSITION and POSITION_OF.

        Args:
            untold: marks rows whose position is to be ignored; by default no row.
        """
        codes = np.zeros(rows.num_rows, np.int64)
        names: list[tuple[str, ...]] = [()]
        known = rows[POSITION].is_valid().to_numpy(zero_copy_only=False)
        known = known if untold is None else known & ~untold
        number = 0
        while f"{POSITION_OF}{number}" in rows.schema.names:
            column = rows[f"{POSITION_OF}{number}"]
            known = known & column.is_valid().to_numpy(zero_copy_only=False)
            values = column.dictionary_encode()
            texts = [str(value) for value in values.dictionary.to_pylist()] or [""]
            pairs = pa.array(codes * len(texts) + values.indices.fill_null(0).to_numpy()).dictionary_encode()
            codes = pairs.indices.to_numpy().astype(np.int64)
            names = [(*names[pair // len(texts)], texts[pair % len(texts)]) for pair in pairs.dictionary.to_pylist()]
            number += 1
        positions = rows[POSITION].fill_null(0).to_numpy()
        return cls(tuple(map(source_partition, names)), np.where(known, codes, -1), positions)

    @property
    def unknown(self) -> npt.NDArray[np.bool_]:
        """Marks the rows without a position."""
        return self.partitions < 0

    def committed(self, positions: Mapping[str, int]) -> npt.NDArray[np.bool_]:
        """Marks the rows at or below these positions."""
        has = np.array([name in positions for name in self.names] + [False])  # the last element is for the index -1
        upto = np.array([positions.get(name, 0) for name in self.names] + [0], np.int64)
        return has[self.partitions] & (self.positions <= upto[self.partitions])

    def raise_highest(self, highest: dict[str, int]) -> None:
        """Raise `highest`, by source partition, to the positions of these rows. If there are more partitions than a
        state may store, the rest is skipped, because the commit will raise an error."""
        least = np.iinfo(np.int64).min
        reached = np.full(len(self.names) + 1, least)
        np.maximum.at(reached, self.partitions, self.positions)
        for name, position in zip(self.names, reached.tolist(), strict=False):
            if len(highest) > MOST_SOURCE_PARTITIONS:
                return
            if position > least:
                short = name[: LONGEST_SOURCE_PARTITION + 1]  # the name is still too long, so the commit refuses it
                highest[short] = max(position, highest.get(short, position))
