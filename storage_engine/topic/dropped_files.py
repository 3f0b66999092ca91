"""Deletes the files of dropped segments.

Retention, compaction and merging drop segments. A dropped segment remains on storage and in the state's list of
dropped files, because readers can still use an older version. After file.delete.delay.ms, the files of the segment
are deleted. Then a version removes the segment from the list. Deleting a file twice does no harm.
"""

from __future__ import annotations

from storage_engine.config import TopicConfig
from storage_engine.log.filenames import SEGMENT_SUFFIXES, data_key
from storage_engine.storage import Storage
from storage_engine.topic.chain.state_chain import StateChain
from storage_engine.topic.chain.topic_state import DroppedFile, TopicState


def delete_segment(storage: Storage, stem: str) -> None:
    """Delete the files of a segment. Missing files are no error.

    Args:
        stem: the storage key of the files, without a suffix.
    """
    for suffix in SEGMENT_SUFFIXES:
        storage.delete(stem + suffix)


def delete_dropped(storage: Storage, chain: StateChain, config: TopicConfig, now_ms: int) -> tuple[DroppedFile, ...]:
    """Delete the files of segments that were dropped at least file.delete.delay.ms ago. The topic may be deleted.

    The files are deleted before the version that removes them from the list. After a crash between the two steps, the
    next call deletes the files again.

    Returns:
        The segments whose files were deleted.
    """
    due = tuple(each for each in chain.newest().dropped if now_ms - each.dropped_ms >= config.file_delete_delay_ms)
    if not due:
        return ()
    for each in due:
        delete_segment(storage, data_key(each.topic_id, each.partition, each.name, ""))
    gone = set(due)

    def change(state: TopicState) -> TopicState | None:
        left = tuple(each for each in state.dropped if each not in gone)
        return state.model_copy(update={"dropped": left}) if len(left) < len(state.dropped) else None

    chain.commit(change, f"deleted the files of {len(due)} dropped segments")
    return due
