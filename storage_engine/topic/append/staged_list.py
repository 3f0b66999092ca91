"""Lists the runs that a micro-batch has staged, so that a replay moves no record to another topic, or to the dead
letters and back.

    staging/batches/<query id>/<batch id>.<16 digits of the hash of its offsets>.json

Each topic has a state chain and a commit of its own. A process that dies between two of them leaves a batch that some
topics have and others lack. If the batch was staged again, its records might be spread differently: the expression that
chooses the topic may give another topic today, a timestamp may be too old by now, or the settings may have changed. So
the list of staged runs is put once, before the first commit, and a replay of the batch takes those runs: it skips the
topics that have the batch, and appends the listed runs to the others. Dead letters are staged, too, and are written to
their tables after the list and before the commits, so a dead letter remains a dead letter. After the last commit the
files that the list names are deleted, then the list.

A micro-batch for one topic, without dead letters, has one commit and no list.

If two attempts run at one batch, the list that was put first counts for both; no list names the files of the second
attempt. A list that is read is made durable before a commit follows from it, because another process may have put it.
After a crash the list is whole or absent. If it is absent, either nothing is committed, or everything.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from storage_engine.errors import (
    AlreadyExistsError,
    AmbiguousPutError,
    BatchRefusedError,
    CorruptionError,
    NotFoundError,
)
from storage_engine.storage import Storage
from storage_engine.topic.append.positions import Advance, positions_of
from storage_engine.topic.append.publishing import BatchIdentity
from storage_engine.topic.append.staging import StagedRun
from storage_engine.topic.chain.documents import FORMAT, decode_document, encode_document, folders_for_documents
from storage_engine.topic.chain.state import TopicState
from storage_engine.topic.topics import Topics

STAGED_LISTS = "staging/batches"
"""Where the lists lie, in a folder for each query."""
_DIGITS = 16
_WHAT = "a list of staged runs"
_FORGET = "To give these runs up, delete this file: the micro-batch is then staged again for the topics that lack it."


@dataclass(frozen=True)
class StagedTopic:
    """What one topic gets.

    configs: the topic's overrides as the runs were staged, which the commit goes by, too. lineage: of the batch, as the
    topic has it. advance: of the source, if its positions are kept.
    """

    topic: str
    topic_id: str
    configs: Mapping[str, str]
    runs: Sequence[StagedRun]
    lineage: str = ""
    advance: Advance | None = None

    def is_outdated(self, state: TopicState) -> bool:
        """Whether the positions are not those any more that the rows were held against: these runs are committed, or
        cannot be."""
        return self.advance is not None and positions_of(state, self.advance.source) != self.advance.held_against


@dataclass(frozen=True)
class StagedDeadLetters:
    """One task's dead letters of one topic, None: of no topic. Their file, and how many there are by reason."""

    topic: str | None
    key: str
    reasons: Mapping[str, int]


@dataclass(frozen=True)
class StagedBatch:
    """One micro-batch, staged: from the reports of its tasks, or from its list, until it is committed.

    topics: in the order in which they are committed.
    """

    batch: BatchIdentity
    topics: tuple[StagedTopic, ...]
    dead_letters: tuple[StagedDeadLetters, ...] = ()

    @property
    def key(self) -> str:
        """Where its list lies, if it needs one."""
        return list_key(self.batch)

    @property
    def needs_list(self) -> bool:
        """Whether a crash can leave a part of it done, so that it is put before anything is."""
        return len(self.topics) > 1 or bool(self.dead_letters)

    @property
    def files(self) -> frozenset[str]:
        """All of its staged files."""
        runs = {run.key for topic in self.topics for run in topic.runs}
        return frozenset(runs.union(letters.key for letters in self.dead_letters))


def list_key(batch: BatchIdentity) -> str:
    """Where the list of a micro-batch lies. Offsets tell apart two batches of one number, as of a rolled back checkpoint."""
    return f"{STAGED_LISTS}/{batch.query}/{batch.batch_id}.{batch.offsets_hash[:_DIGITS]}.json"


def put_list(storage: Storage, staged: StagedBatch) -> StagedBatch:
    """Make a list the one that counts for its batch, before anything of it is committed.

    Returns:
        The list that counts: this one, or that of another attempt, which was put first. This one's files are then deleted.

    Raises:
        AmbiguousPutError: nobody can tell; nothing may be committed.
    """
    try:
        storage.put_new(staged.key, _encode(staged))
    except (AlreadyExistsError, AmbiguousPutError):
        found = read_list(storage, staged.batch)
        if found is None:
            raise
        if found.files != staged.files:
            delete_files(storage, staged)
        return found
    return staged


def read_list(storage: Storage, batch: BatchIdentity) -> StagedBatch | None:
    """The list of a micro-batch, durable; None where there is none.

    Raises:
        CorruptionError: the file does not hold the list of this batch.
    """
    key = list_key(batch)
    try:
        data = storage.read(key)
    except NotFoundError:
        return None
    storage.sync_names(f"{STAGED_LISTS}/{batch.query}")
    staged = _decode(storage, key, data)
    if staged.batch != replace(batch, source=staged.batch.source):
        raise CorruptionError(key, 0, f"batch {batch.batch_id} of query {batch.query}", "another batch", _FORGET)
    return staged


def pending_lists(
    storage: Storage, query: str | None = None, damaged: list[CorruptionError] | None = None
) -> Iterator[StagedBatch]:
    """Every list that a query has left, or any query.

    Args:
        damaged: is given what is wrong with files that do not hold a list.

    Raises:
        CorruptionError: a file does not hold a list, and `damaged` is not given.
    """
    for file in storage.list(f"{STAGED_LISTS}/{query}/" if query else f"{STAGED_LISTS}/"):
        if not file.key.endswith(".json"):
            continue  # bytes that a repair has set aside
        try:
            found = _decode(storage, file.key, storage.read(file.key))
        except NotFoundError:
            continue
        except CorruptionError as error:
            if damaged is None:
                raise
            damaged.append(error)
            continue
        yield found
    folder = f"{STAGED_LISTS}/{query}" if query else STAGED_LISTS
    for wrong in folders_for_documents(storage, folder, _WHAT, _FORGET, holds_documents=query is not None):
        if damaged is None:
            raise wrong
        damaged.append(wrong)


def waiting_topics(staged: StagedBatch, topics: Topics) -> list[StagedTopic]:
    """The topics of a list that lack the batch and can be given it. Topics that were deleted, or created again since,
    count, too."""
    return [topic for topic in staged.topics if not _has(topics.find(topic.topic), topic, staged.batch)]


def _has(state: TopicState | None, topic: StagedTopic, batch: BatchIdentity) -> bool:
    if state is None or state.topic_id != topic.topic_id:
        return False
    if topic.is_outdated(state):
        return True
    done = state.queries.get(batch.query)
    # Where the checkpoint went back, the last batch may be a higher one. But positions have not moved, as by these runs.
    unmoved = topic.advance is not None and len(topic.runs) > 0
    return done is not None and done.batch_id >= batch.batch_id and not unmoved


def check_list(staged: StagedBatch, topics: Topics, fed: Collection[str]) -> None:
    """Check that the topics which lack a batch can be given what a list has for them.

    Args:
        fed: the topics that the query feeds, which are there.

    Raises:
        BatchRefusedError: a topic is not fed any more, is not the same any more, or its files are gone.
    """
    waiting = waiting_topics(staged, topics)
    for topic in waiting:
        place = f"{staged.key}, topic {topic.topic}"
        if topic.topic not in fed:
            raise BatchRefusedError(
                place, f"batch {staged.batch.batch_id} is staged for a topic that this query does not feed",
                f"Name the topic in ingest.topics until the batch is done. {_FORGET}",
            )  # fmt: skip
        if topics.state(topic.topic).topic_id != topic.topic_id:
            raise BatchRefusedError(
                place, f"batch {staged.batch.batch_id} is staged for a topic that was deleted, and created again since",
                _FORGET,
            )  # fmt: skip
    letters = {each.key for each in staged.dead_letters}
    needed = {run.key for topic in waiting for run in topic.runs}
    for key in sorted(needed | letters if waiting else ()):
        try:
            topics.storage.read(key, 0, 1)
        except NotFoundError as error:
            problem = f"names the staged file {key}, which is gone"
            raise BatchRefusedError(staged.key, problem, f"Restore the file. {_FORGET}") from error


def delete_list(storage: Storage, staged: StagedBatch) -> None:
    """Remove a list that no topic waits for, and what it names."""
    delete_files(storage, staged)
    storage.delete(staged.key)


def delete_files(storage: Storage, staged: StagedBatch) -> None:
    """Remove what is staged, where it is committed, or is not to be."""
    for key in sorted(staged.files):
        storage.delete(key)


def _encode(staged: StagedBatch) -> bytes:
    document = {
        "format": FORMAT,
        "query": staged.batch.query,
        "batch_id": staged.batch.batch_id,
        "offsets_hash": staged.batch.offsets_hash,
        "source": staged.batch.source,
        "topics": [
            {
                "topic": topic.topic,
                "topic_id": topic.topic_id,
                "configs": dict(topic.configs),
                "runs": [run.to_json() for run in topic.runs],
                "lineage": topic.lineage,
                "advance": [dict(topic.advance.held_against), dict(topic.advance.highest)] if topic.advance else None,
            }
            for topic in staged.topics
        ],
        "dead_letters": [[each.topic, each.key, dict(each.reasons)] for each in staged.dead_letters],
    }
    return encode_document(staged.key, json.dumps(document, separators=(",", ":")).encode())


def _decode(storage: Storage, key: str, data: bytes) -> StagedBatch:
    document = decode_document(storage, key, data, _WHAT, _FORGET)
    try:
        source = document["source"]
        return StagedBatch(
            BatchIdentity(document["query"], document["batch_id"], document["offsets_hash"], source),
            tuple(
                StagedTopic(
                    topic["topic"], topic["topic_id"], topic["configs"],
                    tuple(StagedRun.from_json(run) for run in topic["runs"]),
                    topic["lineage"],
                    Advance(source, *topic["advance"]) if topic["advance"] else None,
                )
                for topic in document["topics"]
            ),
            tuple(StagedDeadLetters(*each) for each in document["dead_letters"]),
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptionError(key, 0, _WHAT, "something else", _FORGET) from error
