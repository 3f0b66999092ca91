"""Stores the list of runs that a micro-batch has staged. With this list, a replay appends each record to the same topic
as before, and a dead letter remains a dead letter.

    staging/batches/<query id>/<batch id>.<16 digits of the hash of its offsets>.json

Each topic has its own state chain and its own commit. If a process dies between the commits of two topics, only some
of the topics have the batch. If a replay staged the batch again, the records could be distributed differently among
the topics. For example, the expression that chooses the topic could give another result, a timestamp could have
become too old, or the settings could have changed. So the list of staged runs is stored once, before the first
commit. A replay of the batch uses the listed runs. The replay skips the topics that already have the batch, and
appends the runs to the other topics. Dead letters are staged, too. The staged dead letters are written to their
tables after the list is stored, and before the commits. After the last commit, the files in the list are deleted
first, and then the list itself.

A micro-batch for one topic, without dead letters, has one commit and no list.

If two attempts process the same batch, both use the list that was stored first. The files that the later attempt
staged are not used. A process makes the list durable before its first commit. The reason is that another process may
have stored the list without making it durable. After a crash, the list is complete or absent. If the list is absent,
either all topics have the batch, or no topic has it.
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
from storage_engine.topic.append.committed_positions import Advance, positions_of
from storage_engine.topic.append.staged_run import StagedRun
from storage_engine.topic.append.topic_writer import BatchIdentity
from storage_engine.topic.chain.documents import FORMAT, decode_document, encode_document, folders_for_documents
from storage_engine.topic.chain.topic_state import TopicState
from storage_engine.topic.topics import Topics

STAGED_LISTS = "staging/batches"
"""The folder of the lists, with a subfolder for each query."""
_DIGITS = 16
_WHAT = "a list of staged records"
_FORGET = (
    "To discard these staged records, delete this file. The micro-batch is then staged again for the topics that do not"
    " have it yet."
)


@dataclass(frozen=True)
class StagedTopic:
    """The part of a micro-batch that is appended to one topic.

    topic, topic_id: the topic when the runs were staged.
    configs: the topic's overrides when the runs were staged. The commit uses the same overrides.
    runs: the staged runs.
    lineage: the lineage of the batch in this topic (CommittedBatch).
    advance: the change of the source's positions, if the topic stores positions.
    """

    topic: str
    topic_id: str
    configs: Mapping[str, str]
    runs: Sequence[StagedRun]
    lineage: str = ""
    advance: Advance | None = None

    def is_outdated(self, state: TopicState) -> bool:
        """Whether the topic's positions have changed since the rows were compared with them. If so, these runs are
        committed already, or can no longer be committed."""
        return self.advance is not None and positions_of(state, self.advance.source) != self.advance.compared_with


@dataclass(frozen=True)
class StagedDeadLetters:
    """The dead letters of one task and one topic.

    topic: None if no topic was chosen for these rows.
    key: the staged file.
    reasons: the number of dead letters by reason.
    """

    topic: str | None
    key: str
    reasons: Mapping[str, int]


@dataclass(frozen=True)
class StagedBatch:
    """A staged micro-batch, made from the reports of its tasks or from its list.

    topics: the parts for each topic, in the order of their commits.
    """

    batch: BatchIdentity
    topics: tuple[StagedTopic, ...]
    dead_letters: tuple[StagedDeadLetters, ...] = ()

    @property
    def key(self) -> str:
        """The key of the batch's list, if the batch needs a list."""
        return list_key(self.batch)

    @property
    def needs_list(self) -> bool:
        """Whether a crash can leave the batch half committed. Then the list must be put before the first commit."""
        return len(self.topics) > 1 or bool(self.dead_letters)

    @property
    def files(self) -> frozenset[str]:
        """All staged files of the batch."""
        runs = {run.key for topic in self.topics for run in topic.runs if run.data is None}
        return frozenset(runs.union(letters.key for letters in self.dead_letters))


def list_key(batch: BatchIdentity) -> str:
    """The key of the list of a micro-batch. If its checkpoint is rolled back, a query has several batches with the same
    number. The hash of the offsets distinguishes these batches.
    """
    return f"{STAGED_LISTS}/{batch.query}/{batch.batch_id}.{batch.offsets_hash[:_DIGITS]}.json"


def put_list(storage: Storage, staged: StagedBatch) -> StagedBatch:
    """Put the list of a micro-batch. Call this before the first commit of the batch.

    Returns:
        The list to use: this list, or a list that another attempt stored earlier. In the second case, the staged files
        of this attempt are deleted.

    Raises:
        AmbiguousPutError: it is unknown whether the list was stored. The caller must not commit anything.
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
    """The list of a micro-batch, durable on return; None if there is none.

    Raises:
        CorruptionError: the file does not contain the list of this batch.
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
    """The lists of unfinished micro-batches of one query, or of all queries.

    Args:
        query: the query; None for all queries.
        damaged: receives an error for each file that does not contain a list.

    Raises:
        CorruptionError: a file does not contain a list, and `damaged` is None.
    """
    for file in storage.list(f"{STAGED_LISTS}/{query}/" if query else f"{STAGED_LISTS}/"):
        if not file.key.endswith(".json"):
            continue  # a copy of a damaged list, stored by a repair
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
    for wrong in folders_for_documents(storage.folders, folder, _WHAT, _FORGET, holds_documents=query is not None):
        if damaged is None:
            raise wrong
        damaged.append(wrong)


def waiting_topics(staged: StagedBatch, topics: Topics) -> list[StagedTopic]:
    """The topics of a list that do not have the batch yet. Topics that were deleted, or created again, are included."""
    return [topic for topic in staged.topics if not _has(topics.find(topic.topic), topic, staged.batch)]


def _has(state: TopicState | None, topic: StagedTopic, batch: BatchIdentity) -> bool:
    if state is None or state.topic_id != topic.topic_id:
        return False
    if topic.is_outdated(state):
        return True
    done = state.queries.get(batch.query)
    # After a rollback of the checkpoint the last batch can have a higher number although these runs are not committed.
    # The positions show this, because a commit of these runs would have changed the positions.
    unmoved = topic.advance is not None and len(topic.runs) > 0
    return done is not None and done.batch_id >= batch.batch_id and not unmoved


def check_list(staged: StagedBatch, topics: Topics, ingest_topics: Collection[str]) -> None:
    """Check that the runs of a list can be appended to the topics that do not have the batch yet.

    Args:
        ingest_topics: the existing topics to which the query writes.

    Raises:
        BatchRefusedError: the query no longer writes to one of these topics, a topic was created again, or a staged
            file is missing.
    """
    waiting = waiting_topics(staged, topics)
    for topic in waiting:
        place = f"{staged.key}, topic {topic.topic}"
        if topic.topic not in ingest_topics:
            raise BatchRefusedError(
                place, f"batch {staged.batch.batch_id} has records for a topic to which this query does not write",
                f"Name the topic in ingest.topics until the batch is committed. {_FORGET}",
            )  # fmt: skip
        if topics.state(topic.topic).topic_id != topic.topic_id:
            raise BatchRefusedError(
                place, f"batch {staged.batch.batch_id} has records for a topic that was deleted and created again",
                _FORGET,
            )  # fmt: skip
    letters = {each.key for each in staged.dead_letters}
    needed = {run.key for topic in waiting for run in topic.runs}
    for key in sorted(needed | letters if waiting else ()):
        try:
            topics.storage.read(key, 0, 1)
        except NotFoundError as error:
            problem = f"names the staged file {key}, which is missing"
            raise BatchRefusedError(staged.key, problem, f"Restore the file. {_FORGET}") from error


def delete_list(storage: Storage, staged: StagedBatch) -> None:
    """Delete a list that is no longer needed: first the files that it names, then the list itself."""
    delete_files(storage, staged)
    storage.delete(staged.key)


def delete_files(storage: Storage, staged: StagedBatch) -> None:
    """Delete the staged files of a batch that is committed, or that will not be committed."""
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
                "advance": [dict(topic.advance.compared_with), dict(topic.advance.highest)] if topic.advance else None,
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
