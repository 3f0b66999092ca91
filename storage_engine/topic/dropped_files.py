"""Deletes the files that a topic's state has dropped.

A dropped segment stays in the state, and on storage, for readers that hold an older version. After file.delete.delay.ms
its files are deleted, then a version removes the segment from the state. Deleting a file twice does no harm.
"""

from __future__ import annotations

from storage_engine.config import TopicConfig
from storage_engine.log.filenames import SEGMENT_SUFFIXES, data_key
from storage_engine.storage import Storage
from storage_engine.topic.chain.state import DroppedFile, TopicState
from storage_engine.topic.chain.state_chain import StateChain


def delete_dropped(storage: Storage, chain: StateChain, config: TopicConfig, now_ms: int) -> tuple[DroppedFile, ...]:
    """Delete the files of segments that were dropped file.delete.delay.ms ago, of a deleted topic as well.

    The files go before the version that forgets them: a crash between the two deletes them once more.

    Returns:
        What went.
    """
    due = tuple(each for each in chain.newest().dropped if now_ms - each.dropped_ms >= config.file_delete_delay_ms)
    if not due:
        return ()
    for each in due:
        for suffix in SEGMENT_SUFFIXES:
            storage.delete(data_key(each.topic_id, each.partition, each.name, suffix))
    gone = set(due)

    def change(state: TopicState) -> TopicState | None:
        left = tuple(each for each in state.dropped if each not in gone)
        return state.model_copy(update={"dropped": left}) if len(left) < len(state.dropped) else None

    chain.commit(change, f"deleted the files of {len(due)} dropped segments")
    return due
