"""Creates, lists, finds, alters and deletes the topics of a root.

Each change of a topic is one version in the topic's state chain. The chain of a deleted topic remains, and its newest
state says that the topic is deleted. If the name is used again, the same chain continues with a new topic id. So no
file of the old topic can be mistaken for a file of the new topic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from storage_engine.clock import Clock
from storage_engine.config import LONG_MAX, BrokerConfig, TopicConfig, normalise_overrides, topic_config, topic_key
from storage_engine.errors import (
    AlreadyExistsError,
    ConfigError,
    ConflictError,
    LogError,
    NoRootError,
    StorageAccessError,
    TopicExistsError,
    UnknownTopicError,
)
from storage_engine.log.partition_state import LeaderEpoch, PartitionState
from storage_engine.quantities import counted
from storage_engine.storage import Storage
from storage_engine.topic.broker_settings import begin_broker_settings
from storage_engine.topic.chain.documents import begin_root
from storage_engine.topic.chain.state_chain import StateChain
from storage_engine.topic.chain.topic_state import DroppedFile, FormerTopic, TopicState, Writer
from storage_engine.topic.witnesses import ShownOffsets, lost_chain, newest_state, shown_offsets
from storage_engine.topic_id import new_topic_id
from storage_engine.topic_name import check_topic_name, is_topic_name

MOST_PARTITIONS = 10_000


def is_root(storage: Storage) -> bool:
    """Whether a topic or another document was ever created under this path."""
    return next(storage.list("meta/"), None) is not None


def may_become_root(storage: Storage) -> bool:
    """Whether the path is an existing empty directory."""
    return storage.folders is not None and storage.folders.is_empty_folder()


def check_root(storage: Storage) -> None:
    """Refuse a path that is not a root, because the path may be mistyped. An empty directory may become a root.

    Raises:
        NoRootError: the path is neither a root nor an empty directory.
    """
    if is_root(storage) or may_become_root(storage):
        return
    raise NoRootError(
        f"root {storage.uri}", "this path is not a root: the folder meta/ with the topics is missing",
        "Check the path. The first `lakelog topics create`, or the first ingest, creates a root.",
    )  # fmt: skip


class Topics:
    """The topics under one root."""

    def __init__(
        self, storage: Storage, broker: BrokerConfig, clock: Clock, broker_to_keep: Mapping[str, str] = {}
    ) -> None:
        """
        Args:
            broker_to_keep: the broker's settings to store with the first topic, if the root has no stored settings.
        """
        self.storage = storage
        self.broker = broker
        self.clock = clock
        self._broker_to_keep = broker_to_keep
        self._shown: ShownOffsets | None = None

    def names(self, *, with_deleted: bool = False) -> Iterator[str]:
        """The names of all topics that are not deleted, in order. Names that Kafka does not allow are ignored. Topics that
        only the view shows, because all versions of their state are lost, are included.

        Args:
            with_deleted: also include deleted topics, which may still have files. Then no state is read, so topics with
                a damaged state are included, too.

        Raises:
            CorruptionError: without `with_deleted`, if a state is damaged or lost.
        """
        for name in self._chains(self._view()):
            if with_deleted or self.find(name) is not None:
                yield name

    def _view(self) -> ShownOffsets:
        """The view's offsets. They must be read before a state, but may be old. So they are read once."""
        if self._shown is None:
            self._shown = shown_offsets(self.storage)
        return self._shown

    def _chains(self, view: ShownOffsets) -> Iterator[str]:
        """The topics that have files under meta/, and the topics that the view shows, in the order of keys."""
        yield from filter(is_topic_name, self._chain_names(view))

    def _chain_names(self, view: ShownOffsets) -> Iterator[str]:
        shown = {f"{name}/" for name in view.topics}
        if (folders := self.storage.folders) is not None:  # lists all folders in one call
            # Includes a symbolic link to a folder: `entries` does not follow the link, but `list` does.
            names = sorted(shown.union(f"{entry.name}/" for entry in folders.entries("meta")))
            names = [name for name in names if is_topic_name(name[:-1])]  # another folder may be unreadable
            yield from (name[:-1] for name in names if name in shown or self._has_files(f"meta/{name}"))
            return
        yield from sorted(self.storage.folder_names("meta/"), key=lambda name: f"{name}/")

    def _has_files(self, folder: str) -> bool:
        try:
            return next(self.storage.list(folder), None) is not None
        except StorageAccessError:
            return True  # not readable, or not a folder: reading the topic's state reports this

    def states(
        self, view: ShownOffsets | None = None, chains: dict[str, StateChain] | None = None
    ) -> tuple[list[TopicState], dict[str, LogError]]:
        """The newest states of all topics that are not deleted, in order; and the errors of topics that cannot be read,
        by name.

        Args:
            view: the view's offsets, which the caller has just read. By default they are read once for this object.
            chains: the chains that an earlier call has read, by name. They read only newer versions. The chains of
                further topics are added.
        """
        view = self._view() if view is None else view
        chains = {} if chains is None else chains
        states, unreadable = [], {}
        for name in self._chains(view):
            try:
                state = self._newest(chains.setdefault(name, self.chain(name)), view)
            except LogError as error:
                unreadable[name] = error
            else:
                states += [state] if state else []
        return states, unreadable

    def chain(self, name: str) -> StateChain:
        """The topic's chain, whether it exists or not."""
        return StateChain(self.storage, check_topic_name(name), self.clock)

    def find(self, name: str, chain: StateChain | None = None) -> TopicState | None:
        """The topic's newest state; None if the topic does not exist or is deleted.

        Args:
            chain: the topic's chain, if an earlier call has read it. Then only newer versions are read.

        Raises:
            CorruptionError: the state is damaged, or a witness shows that versions are missing (topic.witnesses).
        """
        return self._newest(chain or self.chain(name), self._view())

    def _newest(self, chain: StateChain, view: ShownOffsets) -> TopicState | None:
        state = newest_state(self.storage, chain, view)
        if state is None and (lost := lost_chain(self.storage, chain)):
            raise lost
        return None if state is None or state.deleted else state

    def state(self, name: str) -> TopicState:
        """The topic's newest state.

        Raises:
            UnknownTopicError: the topic does not exist or is deleted.
        """
        state = self.find(name)
        if state is None:
            raise UnknownTopicError(
                f"topic {name}", f"not found under {self.storage.uri}",
                "`lakelog topics list` shows the topics, and `lakelog topics create` creates a topic.",
            )  # fmt: skip
        return state

    def keep_broker_settings(self) -> None:
        """Store the given broker's settings, if the root has no stored settings.

        Raises:
            ConflictError: another run has stored different settings meanwhile.
        """
        if self._broker_to_keep:
            begin_broker_settings(self.storage, self._broker_to_keep)
            self._broker_to_keep = {}

    def config(self, state: TopicState) -> TopicConfig:
        """The effective settings of the topic: its overrides, then the broker's settings, then Kafka's defaults."""
        return topic_config(self.broker, state.configs, f"topic {state.topic}")

    def create(self, name: str, partitions: int, configs: Mapping[str, object]) -> TopicState:
        """Create a topic.

        Raises:
            TopicExistsError: the topic exists.
            ConfigError: the number of partitions or a setting is invalid.
            InvalidTopicNameError: Kafka does not allow the name.
        """
        _check_partitions(name, partitions)
        parts = [empty_partition(0) for _ in range(partitions)]
        return self.begin(name, new_topic_id(), parts, configs, Writer(), f"created with {partitions} partitions")

    def begin(
        self,
        name: str,
        topic_id: str,
        partitions: Sequence[PartitionState],
        configs: Mapping[str, object],
        writer: Writer,
        what: str,
        planned_at: int = LONG_MAX,
    ) -> TopicState:
        """Create a topic with these partitions, which may have segments already. Other errors are those of create.

        Args:
            what: one line for the topic's history.
            planned_at: the version in the names of the partitions' files, if they have files.

        Raises:
            ConflictError: the name belonged to a deleted topic, and a sweep may have deleted the partitions' files.
            CorruptionError: the view shows a topic of this name, but its chain is lost.
        """
        chain = self.chain(name)
        _check_partitions(name, len(partitions))
        overrides = normalise_overrides(configs)
        topic_config(self.broker, overrides, f"topic {name}")
        first = TopicState(
            id="", parent="", version=0, written_ms=self.clock.now_ms(), change=what, topic=name, topic_id=topic_id,
            configs=overrides, writer=writer, partitions=tuple(partitions),
        )  # fmt: skip
        begin_root(self.storage)
        if self._broker_to_keep and self.find(name) is None:
            self.keep_broker_settings()  # before the topic, so that no job cleans the topic with other settings
        if lost := lost_chain(self.storage, chain):
            raise lost
        try:
            return chain.create(first)
        except AlreadyExistsError:
            return chain.commit(lambda state: _recreated(state, first, planned_at), what)

    def alter(self, name: str, partitions: int | None = None, configs: Mapping[str, object | None] = {}) -> TopicState:
        """Add partitions, set overrides, or remove overrides whose value is None.

        Args:
            partitions: the new number of partitions; None leaves it unchanged.

        Raises:
            ConfigError: the topic has more partitions than `partitions`, or a setting is invalid.
        """
        overrides = normalise_overrides({key: value for key, value in configs.items() if value is not None})
        removed = {topic_key(key, value, f"topic {name}, {key}").key for key, value in configs.items() if value is None}

        def change(state: TopicState) -> TopicState:
            self._check_not_deleted(state)
            merged = {key: value for key, value in state.configs.items() if key not in removed} | overrides
            topic_config(self.broker, merged, f"topic {name}")
            parts = state.partitions
            if partitions is not None:
                _check_partitions(name, partitions)
                if partitions < len(parts):
                    raise ConfigError(
                        f"topic {name}", f"has {len(parts)} partitions, and {partitions} were requested",
                        "Partitions can be added, but not removed.",
                    )  # fmt: skip
                parts += tuple(empty_partition(state.writer.epoch) for _ in range(partitions - len(parts)))
            return state.model_copy(update={"configs": merged, "partitions": parts})

        return self.chain(name).commit(change, "altered")

    def delete(self, name: str) -> TopicState:
        """Delete a topic. The new version deletes the records; the files are deleted after file.delete.delay.ms."""

        def change(state: TopicState) -> TopicState:
            self._check_not_deleted(state)
            now_ms = self.clock.now_ms()
            dropped = tuple(
                DroppedFile(state.topic_id, number, segment.name, now_ms)
                for number, part in enumerate(state.partitions)
                for segment in part.segments
            )
            return state.model_copy(
                update={
                    "deleted": True,
                    "partitions": tuple(PartitionState() for _ in state.partitions),
                    "dropped": state.dropped + dropped,
                    "queries": {},
                    "positions": {},
                }
            )

        return self.chain(name).commit(change, "deleted")

    def _check_not_deleted(self, state: TopicState) -> None:
        if state.deleted:
            raise UnknownTopicError(f"topic {state.topic}", "was deleted", "`lakelog topics list` shows the topics.")


def _recreated(state: TopicState, first: TopicState, planned_at: int) -> TopicState:
    if not state.deleted:
        raise TopicExistsError(
            f"topic {state.topic}", f"already exists, with {counted(len(state.partitions), 'partition')}",
            "Choose another name, or delete the topic first.",
        )  # fmt: skip
    if state.is_below_sweep_floor(planned_at):
        raise ConflictError(
            f"topic {state.topic}", "the import took too long, so a sweep may have deleted the imported files",
            "Import the topic again. An import may take at most lakelog.sweep.delay.ms.",
        )  # fmt: skip
    return first.model_copy(
        update={
            "dropped": state.dropped,
            "sweep_floor": state.sweep_floor,
            "former": (*state.former, FormerTopic(state.topic_id, state.version)),
        }
    )


def empty_partition(epoch: int) -> PartitionState:
    """A partition without records. Like a new leader in Kafka, it has its first leader epoch from the beginning."""
    return PartitionState(leader_epochs=(LeaderEpoch(epoch, 0),))


def _check_partitions(name: str, partitions: int) -> None:
    if not 1 <= partitions <= MOST_PARTITIONS:
        raise ConfigError(f"topic {name}", f"found {partitions} partitions", f"Choose 1 to {MOST_PARTITIONS}.")
