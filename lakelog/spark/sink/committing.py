"""Commits the record batches that the tasks of a write have staged.

A batch write is one commit per topic. If the commit to one topic fails, the error names this topic. The topics that
were committed earlier keep their rows. If the program repeats the write, these topics get their rows twice.

A micro-batch of a stream is committed exactly once on each topic. Each topic stores the identity of the query's last
batch: the query's id, the number of the batch and the hash of its offsets (lakelog.spark.sink.streaming_checkpoint). So
after a crash, the sink skips a batch that is repeated. The sink refuses a batch of an earlier checkpoint. If a
micro-batch has rows for several topics, the sink first stores a list of the staged runs of record batches
(topic.append.staged_list), and then commits to the first topic. After a crash, a replay commits the runs of this list.

Unlike an ingest, the sink does not register itself as the writer of a topic. So several queries can write to one topic,
even while ingests and programs append to this topic. Two drivers can run the same query by mistake. If one driver has
committed a batch, the sink skips or refuses the batch of the other driver.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

from lakelog.spark.options.user_options import LAKELOG
from lakelog.spark.sink.sink_staging import StagedRows
from lakelog.spark.sink.streaming_checkpoint import (
    batch_identity,
    began_ms,
    make_durable,
    numbered_files,
    recorded_query_id,
)
from storage_engine.errors import BatchRefusedError, ConfigError, NotFoundError, UnknownTopicError
from storage_engine.storage import Storage
from storage_engine.storage.storage_opening import open_storage
from storage_engine.topic.append.sink_queries import SinkQuery
from storage_engine.topic.append.staged_list import (
    StagedBatch,
    StagedTopic,
    check_list,
    delete_files,
    delete_list,
    put_list,
    read_list,
)
from storage_engine.topic.append.staged_run import StagedRun, by_partition, delete_staged
from storage_engine.topic.append.topic_writer import BatchIdentity, TopicWriter
from storage_engine.topic.topics import Topics

_STORE = re.compile(r"file:(?://)?(?=/(?!/))|[A-Za-z][A-Za-z0-9+.-]*://[^/]*")
"""What precedes the path in a checkpoint's location, if the location is a URI."""


@dataclass(frozen=True)
class CheckpointFolder:
    """The checkpoint of a query. key: the folder's key in `storage`."""

    storage: Storage
    key: str

    @classmethod
    def at(cls, location: str) -> CheckpointFolder:
        """
        Args:
            location: as the option checkpointLocation gives it. Like Spark, this function does not decode `%` in a path,
                and resolves `.` and `..` without following links.

        Raises:
            ConfigError: this process cannot read the location.
        """
        found = _STORE.match(location)
        store = found[0] if found else ""
        path = location.removeprefix(store)
        if not store or store.startswith("file:"):
            parent, name = os.path.split(os.path.abspath(path))
            return cls(open_storage(parent), name)
        parent, name = posixpath.split(posixpath.normpath(path))
        return cls(open_storage(store + parent), name)


def commit_rows(topics: Topics, staged: Sequence[StagedRows]) -> list[str]:
    """Commit a batch write; returns the names of the changed topics.

    Raises:
        UnknownTopicError: a topic was deleted, or created again, while the rows were staged.
        BatchRefusedError: a staged file is missing.
        LogError: a topic could not be committed.
    """
    found = _staged_topics(topics, staged)
    for topic in found:
        _append(topics, topic, None, None)
    delete_rows(topics.storage, staged)
    return [topic.topic for topic in found]


def delete_rows(storage: Storage, staged: Iterable[StagedRows], but: Collection[str] = ()) -> None:
    """Delete staged files that are committed, or that will not be committed. but: the keys of files that are needed."""
    for rows in staged:
        for runs in rows.runs.values():
            delete_staged(storage, [run for run in runs if run.key not in but])


def commit_batch(
    topics: Topics, checkpoint: CheckpointFolder, staged: Sequence[StagedRows], batch_id: int, topic: str | None
) -> None:
    """Commit a micro-batch of a stream exactly once.

    Args:
        topic: the topic of all rows, if the rows do not name their topics. This topic records the query's first
            micro-batch even if the micro-batch has no rows.

    Raises:
        ConfigError: the folder is not the query's checkpoint.
        BatchRefusedError: the checkpoint was rolled back or copied, the query was idle for too long, or a staged file is
            missing.
        UnknownTopicError: a topic was deleted, or created again, while the rows were staged.
        LogError: a topic could not be committed. A repetition of the batch commits the rest.
    """
    batch = _identity(checkpoint, {rows.query for rows in staged}, batch_id)
    sink = SinkQuery(began_ms(checkpoint.storage, checkpoint.key, batch.query), topics.broker.sink_expiration_ms)
    make_durable(checkpoint.storage, checkpoint.key, batch_id)
    listed, own = read_list(topics.storage, batch), None
    if listed is None:
        own = StagedBatch(batch, tuple(_staged_topics(topics, staged)))
        listed = _listed(topics, batch, sink, own)
    else:
        delete_rows(topics.storage, staged, but=listed.files)
    if listed is not None:
        if listed is not own or listed.needs_list:  # a single commit checks its topic itself
            check_list(listed, topics, [each.topic for each in listed.topics])
        for each in listed.topics:
            _append(topics, each, batch, sink)
        (delete_list if listed.needs_list else delete_files)(topics.storage, listed)
    elif topic is not None:
        _note(topics, topic, batch, sink)


def _identity(checkpoint: CheckpointFolder, queries: set[str | None], batch_id: int) -> BatchIdentity:
    place = f"format {LAKELOG}, option checkpointLocation"
    try:
        query = recorded_query_id(checkpoint.storage, checkpoint.key)
        batch = batch_identity(checkpoint.storage, checkpoint.key, query, batch_id)
    except NotFoundError as error:
        raise ConfigError(
            place, f"found no file {error.place} for batch {batch_id}",
            "Give the path of a directory that this host and the query share. The sink identifies each micro-batch by the"
            " query's checkpoint.",
        ) from error  # fmt: skip
    if strangers := queries - {query}:
        raise ConfigError(
            place, f"is the checkpoint of query {query}, but the tasks belong to query {strangers.pop()}",
            "Give the query its own checkpoint.",
        )  # fmt: skip
    if batch_id in numbered_files(checkpoint.storage, checkpoint.key, "commits/").get("commits", {}):
        raise BatchRefusedError(
            f"query {query}", f"batch {batch_id} was completed by another process with the same checkpoint",
            "Stop one of the two processes. Only one process at a time may run a query.",
        )  # fmt: skip
    return batch


def _listed(topics: Topics, batch: BatchIdentity, sink: SinkQuery, staged: StagedBatch) -> StagedBatch | None:
    """The staged runs to commit for this batch; None if there is nothing to commit.

    A list is written only once for a batch. So if no list existed, but a topic has the batch, another process has committed the
    batch completely.
    """
    if not staged.topics:
        return None
    if not staged.needs_list:
        return staged
    listed = put_list(topics.storage, staged)
    if listed is staged and any(_has(topics, topic.topic, batch, sink) for topic in staged.topics):
        delete_list(topics.storage, staged)
        return None
    return listed


def _has(topics: Topics, name: str, batch: BatchIdentity, sink: SinkQuery) -> bool:
    state = topics.state(name)
    with _writer(topics, name, state.topic_id, sink) as writer:
        return writer.is_done(state, batch)


def _staged_topics(topics: Topics, staged: Iterable[StagedRows]) -> list[StagedTopic]:
    """The staged runs by topic, in the order of the topics' names and of the tasks.

    Raises:
        UnknownTopicError: a topic was deleted, or created again, while the rows were staged.
    """
    runs: dict[tuple[str, str], list[StagedRun]] = {}
    for rows in staged:
        for topic, found in rows.runs.items():
            runs.setdefault(topic, []).extend(found)
    found_topics = []
    for (name, topic_id), of_topic in sorted(runs.items(), key=lambda item: item[0]):
        state = topics.state(name)
        if state.topic_id != topic_id:
            raise UnknownTopicError(
                f"topic {name}", "was deleted and created again while rows were staged for it",
                "Nothing was appended to it. Run the write again.",
            )  # fmt: skip
        found_topics.append(StagedTopic(name, topic_id, state.configs, of_topic))
    return found_topics


def _append(topics: Topics, topic: StagedTopic, batch: BatchIdentity | None, sink: SinkQuery | None) -> None:
    with _writer(topics, topic.topic, topic.topic_id, sink) as writer:
        runs = by_partition(topic.runs)
        writer.prepare(runs)
        try:
            writer.append(runs, batch)
        except NotFoundError as error:
            if not any(error.place.endswith(run.key) for run in topic.runs):
                raise
            raise BatchRefusedError(
                f"topic {topic.topic}", f"needs the staged file {error.place}, which is missing ({error.problem})",
                "Nothing was appended to this topic. Run the query again: it stages the rows again.",
            ) from error  # fmt: skip


def _note(topics: Topics, name: str, batch: BatchIdentity, sink: SinkQuery) -> None:
    """Record a query's first batch, even if it has no rows. Check a later batch without rows."""
    state = topics.state(name)
    with _writer(topics, name, state.topic_id, sink) as writer:
        if not writer.is_done(state, batch) and batch.query not in state.queries:
            writer.append({}, batch)


@contextmanager
def _writer(topics: Topics, name: str, topic_id: str, sink: SinkQuery | None) -> Iterator[TopicWriter]:
    """A writer that does not take the topic over, and that is closed at the end of the block."""
    chain = topics.chain(name)
    config = topics.config(chain.newest())
    with closing(TopicWriter(topics.storage, chain, config, topics.clock, None, topic_id, sink)) as writer:
        yield writer
