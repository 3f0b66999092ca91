"""A topic that an ingest feeds: as the settings describe it at the start, taken over, then appended to."""

from __future__ import annotations

from pipeline.settings import Settings
from storage_engine.config import TopicConfig
from storage_engine.topic.publishing import TopicWriter, check_epoch, take_over
from storage_engine.topic.state import TopicState
from storage_engine.topic.topics import Topics


def prepare_topic(topics: Topics, settings: Settings, name: str) -> tuple[TopicState, list[str]]:
    """A topic of the ingest section: as it is, or created as the settings describe it.

    Returns:
        Its state, and a line for each setting that differs from it: the state counts.

    Raises:
        ConfigError: it is neither in the root nor in the settings.
    """
    state = topics.find(name)
    if state is None:
        definition = settings.topic_definition(name)
        return topics.create(name, definition.partitions, definition.overrides), []
    if name not in settings.topics:
        return state, []
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
    return state, notes


class FedTopic:
    """One topic from its take-over on.

    epoch: that of this ingest. writer, newest, config: for the thread of the micro-batches. check_fenced: for another.
    """

    def __init__(self, topics: Topics, name: str, query_id: str, take_over_others: bool) -> None:
        """
        Raises:
            WriterRefusedError: another query is the writer and take_over_others is not set.
        """
        self.name = name
        self._topics = topics
        self._chain = topics.chain(name)
        self._looking = topics.chain(name)  # a chain belongs to one thread
        state = take_over(self._chain, query_id, take_over_others)
        self.epoch = state.writer.epoch
        self.writer = TopicWriter(topics.storage, self._chain, topics.config(state), topics.clock, self.epoch)

    def newest(self) -> TopicState:
        return self._chain.newest()

    def config(self, state: TopicState) -> TopicConfig:
        """The topic's settings now: they may change while the ingest runs."""
        return self._topics.config(state)

    def check_fenced(self) -> None:
        """
        Raises:
            FencedError: another ingest has taken the topic over.
        """
        check_epoch(self._looking.newest(), self.epoch)

    def close(self) -> None:
        self.writer.close()
