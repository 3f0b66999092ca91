"""Defines the name and the bytes of each version of a topic's state (topic.chain.state_chain)."""

from __future__ import annotations

from storage_engine.errors import AmbiguousPutError, CorruptionError, StorageError
from storage_engine.topic.chain.documents import FORMAT, encode_document
from storage_engine.topic.chain.segment_lists import without_listed
from storage_engine.topic.chain.topic_state import TopicState

_RETIRED = b'{"id":"","parent":"","version":0,"format":%d,"change":"rolled up into history/"}' % FORMAT


def version_key(topic: str, version: int) -> str:
    """The key of a version of a topic's state."""
    return f"meta/{topic}/{version:020d}.json"


def encode_state(state: TopicState) -> bytes:
    """The bytes of a version, without the content of its list files. They end with a digest, except in format 1."""
    partitions = tuple(without_listed(part) for part in state.partitions)
    body = state.model_copy(update={"partitions": partitions}).model_dump_json().encode()
    if state.format < FORMAT:
        return body
    return encode_document(version_key(state.topic, state.version), body)


def unclear_put(topic: str, version: int, what: str, error: StorageError | CorruptionError) -> AmbiguousPutError:
    """The error for a version that may be committed. The caller of the change must not simply repeat the change.

    Args:
        what: what is known about the version, for example "may have been put".
        error: why no more is known.
    """
    return AmbiguousPutError(
        error.place, f"version {version} of topic {topic} {what}: {error.problem}",
        "The change may be committed. Check with `lakelog topics describe` before you repeat the change.",
    )  # fmt: skip


def retired_version(topic: str) -> bytes:
    """The file that replaces version 0 before later versions are deleted. It is the parent of no version."""
    return encode_document(version_key(topic, 0), _RETIRED)
