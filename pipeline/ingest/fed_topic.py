"""Plans, creates and takes over the topics that an ingest feeds; appending to one is the work of its FedTopic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.ingest.claim import Claim
from pipeline.settings import Settings
from storage_engine.config import TopicConfig, topic_config
from storage_engine.errors import CorruptionError
from storage_engine.topic.append.publishing import TopicWriter, check_epoch, take_over
from storage_engine.topic.append.staged_list import STAGED_LISTS, check_list, delete_list, pending_lists, waiting_topics
from storage_engine.topic.chain.state import TopicState
from storage_engine.topic.topics import Topics


@dataclass(frozen=True)
class PlannedTopic:
    """A topic of the ingest section, before the ingest has changed anything.

    state: None if the topic is still to be made. config: its settings, or those that it is going to have.
    notes: a line for each setting of the file that differs from the topic's, which counts.
    """

    name: str
    state: TopicState | None
    config: TopicConfig
    notes: list[str]


def plan_topic(topics: Topics, settings: Settings, name: str) -> PlannedTopic:
    """A topic of the ingest section: as it is, or as the settings describe it.

    Raises:
        ConfigError: it is neither in the root nor in the settings.
    """
    state = topics.find(name)
    if state is None:
        overrides = settings.topic_definition(name).overrides
        return PlannedTopic(name, None, topic_config(topics.broker, overrides, f"topic {name}"), [])
    return PlannedTopic(name, state, topics.config(state), _differences(settings, state))


def make_topic(topics: Topics, settings: Settings, planned: PlannedTopic) -> TopicState:
    """The topic's state; a topic that is still to be made is made.

    Raises:
        TopicExistsError: it was made since it was planned: plan it again.
    """
    if planned.state is None:
        definition = settings.topic_definition(planned.name)
        return topics.create(planned.name, definition.partitions, definition.overrides)
    topics.keep_broker_settings()  # of a root whose topics are older than the settings that roots keep
    return planned.state


def _differences(settings: Settings, state: TopicState) -> list[str]:
    name = state.topic
    if name not in settings.topics:
        return []
    definition = settings.topic_definition(name)
    notes = []
    if definition.partitions_given and definition.partitions != len(state.partitions):
        notes.append(
            f"topic {name} has {len(state.partitions)} partitions, the settings say {definition.partitions}:"
            f" `lakelog topics alter {name} --partitions N` adds some"
        )
    for key in sorted(definition.overrides.keys() | state.configs.keys()):
        wanted, found = definition.overrides.get(key), state.configs.get(key)
        if wanted is not None and wanted != found:
            notes.append(
                f"topic {name} has {key}={found or 'the default'}, the settings say {wanted}:"
                f" `lakelog topics alter {name} --config {key}={wanted}` changes it"
            )
    return notes


class FedTopic:
    """One topic from its take-over on.

    epoch: that of this ingest. writer, newest, config: for the thread of the micro-batches. check_fenced: for another.
    """

    def __init__(self, topics: Topics, name: str, claim: Claim) -> None:
        """
        Raises:
            WriterRefusedError: another query is the writer, and the claim does not allow to replace it.
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

    def newest(self) -> TopicState:
        """The topic's newest state.

        Raises:
            FencedError: another ingest has taken the topic over.
        """
        state = self._chain.newest()
        self._check_epoch(state)
        return state

    def config(self, overrides: Mapping[str, str]) -> TopicConfig:
        """The topic's settings with these overrides, which may change while the ingest runs."""
        return topic_config(self._topics.broker, overrides, f"topic {self.name}")

    def check_fenced(self) -> None:
        """
        Raises:
            FencedError: another ingest has taken the topic over.
        """
        self._check_epoch(self._looking.newest())

    def _check_epoch(self, state: TopicState) -> None:
        if state.topic_id == self._topic_id:  # one made anew has epochs of its own: its writer says what happened
            check_epoch(state, self.epoch)

    def close(self) -> None:
        self.writer.close()


def take_over_all(topics: Topics, names: Sequence[str], claim: Claim) -> Mapping[str, FedTopic]:
    """Take topics over, in the order given, which is the same for every run of a query: who takes the first one last has
    them all, and a run that lost the first one meanwhile leaves the others alone.

    Raises:
        FencedError: another run of the query has begun at the same time.
        WriterRefusedError: another query is the writer of one of them, and the claim does not allow to replace it.
    """
    fed: dict[str, FedTopic] = {}
    for name in names:
        for taken in fed.values():
            taken.check_fenced()
        fed[name] = FedTopic(topics, name, claim)
    return fed


def settle_lists(topics: Topics, query_id: str, names: Sequence[str], source: str | None) -> list[str]:
    """See to the lists of staged runs that died ingests have left: those of this query that no topic waits for go.

    Args:
        source: whose positions are kept.

    Returns:
        A line for each list of another query that one of these topics waits for: taking over does not commit it. By
        positions this query commits what another one of the same source has left.

    Raises:
        BatchRefusedError: one of this query is for a topic that lacks its batch and is not among these.
        CorruptionError: one of this query is damaged. What is wrong with another's is a line.
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
                f"batch {staged.batch.batch_id} of query {staged.batch.query} was staged and never committed to"
                f" {', '.join(lacking)}: only that query commits it, from its own checkpoint. To give it up, delete"
                f" {staged.key}"
            )
    for error in damaged:
        if error.file.startswith(f"{STAGED_LISTS}/{query_id}/"):
            raise error
        notes.append(f"what another query staged cannot be told: {error}")
    return notes
