"""Plans the topics of an ingest, creates missing topics, and takes over the topics (makes the query their writer). An
IngestTopic is one topic that the ingest has taken over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.ingest.claim import Claim
from pipeline.settings import Settings
from storage_engine.config import TopicConfig, topic_config
from storage_engine.errors import CorruptionError
from storage_engine.topic.append.staged_list import STAGED_LISTS, check_list, delete_list, pending_lists, waiting_topics
from storage_engine.topic.append.topic_writer import TopicWriter, check_epoch, take_over
from storage_engine.topic.chain.topic_state import TopicState
from storage_engine.topic.topics import Topics


@dataclass(frozen=True)
class PlannedTopic:
    """A topic of the section `ingest`, before the ingest has changed anything.

    state: the topic's state; None if the topic does not exist yet.
    config: the settings of the topic, or the settings with which the topic will be created.
    partitions: the number of partitions of the topic, or the number with which the topic will be created.
    notes: a line for each setting in which the job's settings differ from the topic. The value of the topic is used.
    """

    name: str
    state: TopicState | None
    config: TopicConfig
    partitions: int
    notes: list[str]


def plan_topic(topics: Topics, settings: Settings, name: str) -> PlannedTopic:
    """Plan a topic of the section `ingest`. The plan uses the topic's state if the topic exists, otherwise the
    settings.

    Raises:
        ConfigError: the topic is neither in the root nor in the settings.
    """
    state = topics.find(name)
    if state is None:
        definition = settings.topic_definition(name)
        config = topic_config(topics.broker, definition.overrides, f"topic {name}")
        return PlannedTopic(name, None, config, definition.partitions, [])
    return PlannedTopic(name, state, topics.config(state), len(state.partitions), _differences(settings, state))


def make_topic(topics: Topics, settings: Settings, planned: PlannedTopic) -> TopicState:
    """The state of a planned topic; a topic that does not exist is created.

    Raises:
        TopicExistsError: another process created the topic after the planning. Plan the topic again.
    """
    if planned.state is None:
        definition = settings.topic_definition(planned.name)
        return topics.create(planned.name, definition.partitions, definition.overrides)
    topics.keep_broker_settings()  # an older Lakelog made roots without broker settings
    return planned.state


def _differences(settings: Settings, state: TopicState) -> list[str]:
    name = state.topic
    if name not in settings.topics:
        return []
    definition = settings.topic_definition(name)
    notes = []
    if definition.partitions_given and definition.partitions != len(state.partitions):
        notes.append(
            f"topic {name} has {len(state.partitions)} partitions, but the settings say {definition.partitions}:"
            f" `lakelog topics alter {name} --partitions N` adds partitions"
        )
    for key in sorted(definition.overrides.keys() | state.configs.keys()):
        wanted, found = definition.overrides.get(key), state.configs.get(key)
        if wanted is not None and wanted != found:
            notes.append(
                f"topic {name} has {key}={found or 'the default'}, but the settings say {wanted}:"
                f" `lakelog topics alter {name} --config {key}={wanted}` changes the topic"
            )
    return notes


class IngestTopic:
    """One topic that an ingest has taken over.

    Only the thread of the micro-batches may use `writer`, `newest` and `config`. Another thread may call `check_fenced`.

    epoch: the epoch of this ingest's commits.
    was_published_by_spark: a Spark job has published the last micro-batch, so probably one publishes the next, too.
    """

    def __init__(self, topics: Topics, name: str, claim: Claim) -> None:
        """
        Raises:
            WriterRefusedError: another query is the writer, and the claim does not allow this query to replace the
                writer.
        """
        self.name = name
        self._topics = topics
        self._chain = topics.chain(name)
        self._looking = topics.chain(name)  # a chain belongs to one thread
        state = take_over(
            self._chain, claim.query_id, claim.take_over_others, claim.source, claim.selection, claim.accepted
        )
        self._topic_id = state.topic_id
        self.epoch = state.writer.epoch
        config = topics.config(state)
        self.writer = TopicWriter(topics.storage, self._chain, config, topics.clock, self.epoch, state.topic_id)
        self.was_published_by_spark = False

    def newest(self) -> TopicState:
        """The topic's newest state.

        Raises:
            FencedError: another ingest has taken the topic over.
        """
        state = self._chain.newest()
        self._check_epoch(state)
        return state

    def likely_newest(self) -> TopicState:
        """The topic's newest state, as far as one read shows it. The commit notices if a newer state exists.

        Raises:
            FencedError: another ingest has taken the topic over.
        """
        state = self._chain.likely_newest()
        self._check_epoch(state)
        return state

    def config(self, overrides: Mapping[str, str]) -> TopicConfig:
        """The topic's settings with these overrides. The overrides may change while the ingest runs."""
        return topic_config(self._topics.broker, overrides, f"topic {self.name}")

    def check_fenced(self) -> None:
        """
        Raises:
            FencedError: another ingest has taken the topic over.
        """
        self._check_epoch(self._looking.newest())

    def _check_epoch(self, state: TopicState) -> None:
        if (
            state.topic_id == self._topic_id
        ):  # a topic that was created again has new epochs; the writer then raises an error
            check_epoch(state, self.epoch)

    def close(self) -> None:
        self.writer.close()


def take_over_all(topics: Topics, names: Sequence[str], claim: Claim) -> Mapping[str, IngestTopic]:
    """Take topics over, in the given order. Every run of a query has to use the same order.

    Before the run takes the next topic, it checks that it is still the writer of the topics that it has taken. If two
    runs start at the same time, one of them therefore gets all topics in most cases. But the other run can take a topic
    after such a check. Then each run may get some of the topics, and both runs end with FencedError, here or at their
    next commit.

    Raises:
        FencedError: another run of the query has started at the same time.
        WriterRefusedError: another query is the writer of a topic, and the claim does not allow this query to replace
            the writer.
    """
    taken_over: dict[str, IngestTopic] = {}
    for name in names:
        for taken in taken_over.values():
            taken.check_fenced()
        taken_over[name] = IngestTopic(topics, name, claim)
    return taken_over


def settle_lists(topics: Topics, query_id: str, names: Sequence[str], source: str | None) -> list[str]:
    """Check the lists of staged runs that crashed ingests left behind. Delete each list of this query that is fully
    committed.

    Args:
        names: the topics that this query feeds.
        source: the source whose positions are stored.

    Returns:
        A line for each list of another query that some of these topics have not committed. A takeover does not commit
        such a list. There is no line if the list has the same source: because of the stored positions, this query reads
        the rows of the list again and commits them.

    Raises:
        BatchRefusedError: a list of this query has an uncommitted batch for a topic that is not in `names`.
        CorruptionError: a list of this query is damaged. A damaged list of another query is reported as a line.
    """
    notes = []
    damaged: list[CorruptionError] = []
    for staged in pending_lists(topics.storage, damaged=damaged):
        waiting = waiting_topics(staged, topics)
        lacking = [topic.topic for topic in waiting if topic.topic in names]
        if staged.batch.query == query_id:
            check_list(staged, topics, names)
            if not waiting:
                delete_list(topics.storage, staged)
        elif lacking and (source is None or staged.batch.source != source):
            notes.append(
                f"batch {staged.batch.batch_id} of query {staged.batch.query} was staged but not committed to"
                f" {', '.join(lacking)}: only that query can commit the batch, from its own checkpoint. To discard the"
                f" batch, delete {staged.key}"
            )
    for error in damaged:
        if error.file.startswith(f"{STAGED_LISTS}/{query_id}/"):
            raise error
        notes.append(f"another query has staged a batch, but the list of the batch's files cannot be read: {error}")
    return notes
