"""Reads a topic's history from its first version to its newest, including pruned versions.

If the changes of a version are in a history file (topic.chain.history_file), they are read from this file. Other
changes are read from the versions themselves. Reading may run during commits and pruning.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from storage_engine.errors import CorruptionError
from storage_engine.storage import Storage
from storage_engine.topic.chain.history_file import VersionChange, change_of, file_start, read_history_file
from storage_engine.topic.chain.state_chain import StateChain
from storage_engine.topic.chain.topic_state import TopicState


class HistoryReader:
    """The history of one topic. Files are read when they are needed. Only one thread may use it."""

    def __init__(self, storage: Storage, chain: StateChain) -> None:
        self._storage = storage
        self._chain = chain
        self._file: dict[int, VersionChange] = {}
        self._file_start = -1
        self._state: TopicState | None = None

    def changes(self, first: int, last: int) -> Iterator[VersionChange]:
        """The changes of the versions from `first` to `last`, both included, in order. If the oldest versions were
        deleted by hand, they are omitted.

        Args:
            last: at most the newest version.

        Raises:
            CorruptionError: a file is damaged, or a version is missing and was not rolled up.
        """
        begun = False
        for version in range(max(0, first), last + 1):
            change = self.change(version)
            if change is None and begun:
                raise _missing(self._chain.topic, version)
            if change is not None:
                begun = True
                yield change

    def change(self, version: int) -> VersionChange | None:
        """The change of a valid version; None if the version was deleted by hand.

        Raises:
            CorruptionError: a file is damaged.
        """
        if (found := self._rolled_up(version)) is not None:
            return found
        before = self._at(version - 1) if version else None
        state = self._at(version)
        self._state = state
        # This check must come after the reads of the versions: pruning may have deleted them meanwhile.
        if (found := self._rolled_up(version)) is not None or state is None:
            return found
        return change_of(before, state)

    def written_before(self, time_ms: int) -> int:
        """The newest version that was written at this time or earlier, by its writer's clock; 0 if there is none."""
        newest = self._chain.newest()
        if newest.written_ms <= time_ms:
            return newest.version
        return max(0, bisect_right(range(newest.version), time_ms, key=self._written_ms) - 1)

    def _written_ms(self, version: int) -> int:
        change = self.change(version)
        return change.written_ms if change else 0

    def _rolled_up(self, version: int) -> VersionChange | None:
        if self._file_start != file_start(version):
            file = read_history_file(self._storage, self._chain.topic, version)
            if file is None:
                return None
            self._file, self._file_start = file, file_start(version)
        return self._file.get(version)

    def _at(self, version: int) -> TopicState | None:
        if self._state is not None and self._state.version == version:
            return self._state
        return self._chain.at(version)


def _missing(topic: str, version: int) -> CorruptionError:
    return CorruptionError(
        f"meta/{topic}", 0, f"version {version} of the state, or its entry in the history", "neither",
        "Restore the missing versions from a backup, or run `lakelog verify --repair`. Nothing was changed.",
    )  # fmt: skip
