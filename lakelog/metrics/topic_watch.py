"""Follows one topic, and makes its figures.

Usually nothing has changed since the last look. Then a look is one read, which finds that the next version of the
state does not exist, and one listing of the topic's consumers. On an object store, where each request costs, a look is
only one listing of all files of the topic after its newest version. After a change, each new version is read. For a
long look (lakelog.metrics.root_watch), RootWatch reads the state in the same way as a job that starts, and passes the
state to TopicWatch. Only a long look notices two cases. In the first case, the newest version was damaged after the
last look had read it. In the second case, so many versions were committed between two looks that some of them are
deleted already.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lakelog.metrics.change_kinds import CLEANING, RecentChanges, kind_of, recent_changes
from lakelog.metrics.consumer_lag import LagMeter
from lakelog.metrics.figures import PartitionFigures, TopicFigures
from storage_engine.config import TopicConfig
from storage_engine.errors import CorruptionError
from storage_engine.log.partition_state import PartitionState
from storage_engine.log.segment_retention import decide_retention, due_times
from storage_engine.storage import StoredFile
from storage_engine.topic.chain.state_chain import StateChain
from storage_engine.topic.chain.topic_state import TopicState
from storage_engine.topic.chain.version_files import version_key
from storage_engine.topic.chain.version_notes import VersionNote, note_of, notes_before
from storage_engine.topic.ingest_reports import FoundReports
from storage_engine.topic.readers.consumer_files import Consumers, group_folder
from storage_engine.topic.topics import Topics
from storage_engine.topic.witnesses import ShownOffsets

MOST_LOOKED_BACK = 10_000
"""At most this many earlier versions are read, once, to find the last changes. A thousand versions are kept, and each is a
small read. One read returns a hundred older versions."""
LOOKED_BACK_MS = 2 * 86_400_000
"""If a change by maintenance was found, versions that are older than the newest by more than this are not read."""


class TopicWatch:
    """The watch over one topic. Only one thread may use it."""

    def __init__(self, topics: Topics, chain: StateChain, state: TopicState) -> None:
        """
        Args:
            state: the topic's newest state, which `chain` has just read.

        Raises:
            StorageError: the storage refused or failed.
        """
        self._topics = topics
        self._chain = chain
        self._state = state
        self._lag = LagMeter(topics.storage, chain)
        self._changes = self._look_back()
        self._versions_kept, self._clock_skew_ms = self._listed()
        self._later: Mapping[str, StoredFile] | None = None

    def restart(self, chain: StateChain, state: TopicState) -> None:
        """Continue with a state that was read again. Raises the errors of the constructor."""
        self.follow()
        self._chain = chain
        if (state.topic_id, state.id) != (self._state.topic_id, self._state.id):
            self._state = state
            self._lag = LagMeter(self._topics.storage, chain)
            self._changes = self._look_back()
        self._versions_kept, self._clock_skew_ms = self._listed()

    def follow(self) -> bool:
        """Read the versions that were committed since the last look.

        Returns:
            Whether the topic still exists.

        Raises:
            CorruptionError: a version is damaged.
            StorageError: the storage refused or failed.
        """
        notes: list[VersionNote] = []
        self._later = self._later_files()
        while (following := self._following()) is not None:
            if following.parent != self._state.id:
                break  # the version does not count
            self._state = following
            notes.insert(0, note_of(following))
        if notes:
            self._changes = recent_changes(notes, self._changes)
        return not self._state.deleted

    def _later_files(self) -> Mapping[str, StoredFile] | None:
        """The files of the topic after its newest version, by key; None on a storage where a read costs less."""
        storage, state = self._topics.storage, self._state
        if storage.folders is not None:
            return None
        return {
            file.key: file for file in storage.list(f"meta/{state.topic}/", version_key(state.topic, state.version))
        }

    def _following(self) -> TopicState | None:
        """The next version; None if it does not exist."""
        following = self._state.version + 1
        if self._later is not None and version_key(self._state.topic, following) not in self._later:
            return None
        return self._chain.at(following)

    def figures(self, shown: ShownOffsets, reports: FoundReports, now_ms: int) -> TopicFigures:
        """The figures of the topic.

        Args:
            shown: the offsets that the view shows.
            reports: the reports of ingests.

        Raises:
            LogError: the consumers cannot be listed, or the topic's settings are wrong.
        """
        state = self._state
        config = self._topics.config(state)
        later, self._later = self._later, None
        groups = group_folder(state.topic)
        listed = None if later is None else [file for key, file in later.items() if key.startswith(groups)]
        lag = self._lag.measure(state, now_ms, listed)
        due_ms = _due(state, config, lag.known, now_ms)
        return TopicFigures(
            name=state.topic,
            version=state.version,
            written_ms=state.written_ms,
            versions_kept=self._versions_kept,
            has_ingest=state.writer.query is not None,
            epoch=state.writer.epoch,
            partitions=tuple(_partition(number, part, config) for number, part in enumerate(state.partitions)),
            consumers=lag.consumers,
            damaged_consumers=tuple(str(error) for error in lag.known.damaged),
            changes=self._changes,
            waiting_segments=len(state.dropped),
            due_segments=len(due_ms),
            due_since_ms=min(due_ms, default=None),
            view_behind=_behind(state, shown),
            clock_skew_ms=self._clock_skew_ms,
            lag_error=lag.error,
            ingest=reports.of(state.writer.query),
        )

    def _look_back(self) -> RecentChanges:
        def notes() -> Iterator[VersionNote]:
            yield note_of(self._state)
            is_cleaned = False
            try:
                for note in notes_before(self._topics.storage, self._state, MOST_LOOKED_BACK):
                    yield note
                    is_cleaned = is_cleaned or kind_of(note.change) in CLEANING
                    if is_cleaned and self._state.written_ms - note.written_ms > LOOKED_BACK_MS:
                        return
            except CorruptionError:
                return  # no record depends on an old version; `lakelog verify` reports the damage

        return recent_changes(notes())

    def _listed(self) -> tuple[int, int | None]:
        """The number of versions in storage, and the skew of the writer's clock at the newest version."""
        storage, state = self._topics.storage, self._state
        key, before = (version_key(state.topic, each) for each in (state.version, max(0, state.version - 1)))
        listed = storage.list(f"meta/{state.topic}/", before if state.version else "")
        file = next((file for file in listed if file.key == key), None)
        kept = sum(1 for _ in self._chain.versions())
        return kept, state.written_ms - file.modified_ms if file else None


def _partition(number: int, part: PartitionState, config: TopicConfig) -> PartitionFigures:
    first_dirty = part.first_dirty_offset or 0
    dirty = sum(segment.size for segment in part.segments if segment.end_offset > first_dirty)
    return PartitionFigures(
        number=number,
        oldest_offset=part.log_start_offset,
        current_offset=part.high_watermark,
        segments=len(part.segments),
        bytes=part.size,
        dirty_bytes=dirty if config.compact else None,
    )


def _due(state: TopicState, config: TopicConfig, consumers: Consumers, now_ms: int) -> list[int]:
    """When segments became due: those that the next maintenance would drop, and dropped segments whose files it would
    delete."""
    dropped = [each.dropped_ms + config.file_delete_delay_ms for each in state.dropped]
    due_ms = [each for each in dropped if each <= now_ms]
    for number, part in enumerate(state.partitions):
        plan = decide_retention(part, config, now_ms, consumers.holds(number))
        due_ms += due_times(part, config, plan.deletions)
    return due_ms


def _behind(state: TopicState, shown: ShownOffsets) -> int | None:
    """The number of offsets that the view does not show yet; None if there is no view."""
    if not shown.ends:
        return None
    ends = shown.ends.get(state.topic, {})
    return sum(max(0, part.high_watermark - ends.get(number, 0)) for number, part in enumerate(state.partitions))
