"""Records the position of a stream as a group, so that `lakelog groups` shows the position and the lag.

The position in the checkpoint decides where the stream continues; the group's file is only a report. So a stream
continues if the file cannot be written, for example because the root is read-only. Then the stream prints a warning on
standard error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from lakelog.spark.options.source_options import StreamGroup
from lakelog.spark.read_topics import States
from lakelog.spark.stream_position import Position, is_same
from storage_engine.clock import SystemClock
from storage_engine.errors import StorageError
from storage_engine.storage import Storage
from storage_engine.topic.readers.consumer_files import STREAM_KIND, put_positions


class GroupRecord:
    """The record of one stream, for one thread."""

    def __init__(self, storage: Storage, group: StreamGroup, states: Callable[[], States]) -> None:
        """
        Args:
            states: returns the newest states of the topics.
        """
        self._storage = storage
        self._group = group
        self._states = states
        self._recorded: Position = {}
        self._warning = ""

    def record(self, position: Position) -> None:
        """Record that everything before a position was processed. If the position is recorded already, do nothing.

        Raises:
            StateError: a group that is not a stream has this name.
            CorruptionError: a state, or the file of a group of this name, is damaged.
        """
        if self._recorded and is_same(position, self._recorded):
            return
        group, states, now_ms = self._group, self._states(), SystemClock().now_ms()
        try:
            for topic, entry in position.items():
                if topic in states and states[topic].topic_id == entry["topic_id"]:  # else the topic was deleted
                    offsets = {int(number): offset for number, offset in entry["offsets"].items()}
                    put_positions(
                        self._storage,
                        states[topic],
                        group.name,
                        STREAM_KIND,
                        offsets,
                        now_ms,
                        holds_back=group.holds_back,
                    )
        except StorageError as error:
            warning = f"source lakelog: the position of group {group.name} is not recorded: {error}"
            if warning != self._warning:
                print(warning, file=sys.stderr)
            self._warning = warning
        else:
            self._recorded, self._warning = position, ""
