"""Checks a topic's state chain (the versions of its state), the history, and the positions of the topic's consumers.

Each version is checked alone, and then against the version before it. A segment file never proves that a version is
wrong. So a problem that this check finds is a contradiction inside the chain. Nothing is changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from storage_engine.errors import ConfigError, LogError
from storage_engine.storage import Storage
from storage_engine.topic.chain.history_file import history_key, history_starts, missing_starts, read_history_file
from storage_engine.topic.chain.state_chain import StateChain
from storage_engine.topic.chain.state_checks import oddities
from storage_engine.topic.chain.topic_state import RESTORED, TopicState
from storage_engine.topic.chain.version_files import version_key
from storage_engine.topic.readers.consumer_files import Consumer, consumer_key, read_consumers
from storage_engine.topic.topics import Topics
from storage_engine.verify.findings import RESTORE, Finding, Kind, of_error, placed
from storage_engine.verify.root.lost_versions import lost_versions


def check_chain(topics: Topics, name: str) -> Iterator[Finding]:
    storage = topics.storage
    chain = topics.chain(name)
    before: TopicState | None = None
    listed = list(chain.versions())
    gaps = dict(lost_versions(storage, chain, listed))
    for version in listed:
        place = f"{storage.uri}/{version_key(name, version)}"
        if version in gaps:
            yield _gap(gaps[version], place, is_closed=version - 1 not in gaps[version] or version != listed[-1])
        try:
            state = chain.at(version)
        except LogError as error:
            yield placed(of_error(error, Kind.STATE), storage.uri)
            before = None
            continue
        if state is None:
            continue
        if before is not None and before.version == version - 1:
            yield from _wrong_step(before, state, place)
        yield from _odd_state(state, topics, place)
        before = state
    for version in missing_starts(storage, name):
        place = f"{storage.uri}/{history_key(name, version)}"
        remedy = "restore the file from a backup; no records of the topic depend on it"
        yield Finding(Kind.STATE, place, 0, "a history file", "none", remedy)
    for version in history_starts(storage, name):
        try:
            read_history_file(storage, name, version)
        except LogError as error:
            yield placed(of_error(error, Kind.STATE), storage.uri)
    if before is not None:
        consumers = read_consumers(storage, before)
        for damaged in consumers.damaged:
            yield placed(of_error(damaged, Kind.STATE), storage.uri)
        yield from _wrong_positions(storage, chain, consumers.known)


def _gap(lost: Sequence[int], place: str, *, is_closed: bool) -> Finding:
    """is_closed: the version before the newest version exists. Readers and writers need no other old version."""
    firsts = [version for version in lost if version - 1 not in lost]
    lasts = [version for version in lost if version + 1 not in lost]
    runs = (f"{first} to {last}" if last > first else f"{first}" for first, last in zip(firsts, lasts, strict=True))
    which = f"version{'s' if len(lost) > 1 else ''} {', '.join(runs)}"
    meaning = "the chain is interrupted, and the topic cannot be opened"
    if is_closed:
        meaning = "the topic can be read and written, but its history has a gap, and pruning may stop there"
    remedy = "--repair restores what can be proven; otherwise restore the missing versions from a backup"
    return Finding(Kind.STATE, place, 0, f"{which} before it", "none", f"{meaning}: {remedy}")


def _wrong_positions(storage: Storage, chain: StateChain, consumers: Sequence[Consumer]) -> Iterator[Finding]:
    """Find positions that no reader of this log can have reached. The consumers were read before the state, because a
    reader that continues during the check registers positions of a newer state.
    """
    newest = chain.newest_or_none()
    if newest is None or newest.deleted:
        return
    for consumer in consumers:
        if consumer.topic_id != newest.topic_id:
            continue
        place = f"{storage.uri}/{consumer_key(newest.topic, consumer.name, consumer.generation)}"
        for number, position in sorted(consumer.positions.items()):
            if number >= len(newest.partitions):
                expected = f"positions in partitions 0 to {len(newest.partitions) - 1}"
                found = f"a position in partition {number}"
            elif position > newest.partitions[number].high_watermark:
                expected = f"a position in partition {number} up to the log end offset"
                expected += f" {newest.partitions[number].high_watermark}"
                found = f"{position}, of {consumer.name}"
            else:
                continue
            yield Finding(
                Kind.STATE, place, 0, expected, found,
                "an older state of the topic was restored, or this file belongs to another topic. The consumer's next"
                " run replaces this file, or reports what is wrong; `lakelog consumers forget` removes this file",
            )  # fmt: skip


def _wrong_step(before: TopicState, state: TopicState, place: str) -> Iterator[Finding]:
    if state.parent != before.id:
        meaning = (
            f"one of the two versions was copied from another root, or was restored without the other version:"
            f" {RESTORE}"
        )
        yield Finding(Kind.STATE, place, 0, f"parent {before.id}", state.parent, meaning)
    if state.topic_id != before.topic_id or state.deleted or before.deleted:
        return
    # A writer may have read the damaged parent before a repair restored it. Then this version has the writer's own
    # epoch.
    epoch = 0 if before.change.startswith(RESTORED) else before.writer.epoch
    for what, expected, found in (
        ("partitions", len(before.partitions), len(state.partitions)),
        ("writer epoch", epoch, state.writer.epoch),
    ):
        if found < expected:
            yield Finding(Kind.STATE, place, 0, f"{what} from {expected} on", str(found), RESTORE)
    for number, (old, new) in enumerate(zip(before.partitions, state.partitions, strict=False)):
        for what, expected, found in (
            ("high watermark", old.high_watermark, new.high_watermark),
            ("log start offset", old.log_start_offset, new.log_start_offset),
        ):
            if found < expected:
                wanted = f"a {what} of partition {number} from {expected} on"
                yield Finding(Kind.STATE, place, 0, wanted, str(found), RESTORE)


def _odd_state(state: TopicState, topics: Topics, place: str) -> Iterator[Finding]:
    """Find contents that no version written by Lakelog has."""
    for expected, found in oddities(state):
        yield Finding(Kind.STATE, place, 0, expected, found, RESTORE)
    try:
        topics.config(state)
    except ConfigError as error:
        yield Finding(Kind.STATE, place, 0, "valid settings", error.problem, error.remedy)
