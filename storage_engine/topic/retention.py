"""What makes a log begin later, as changes to a topic's state.

    retention        one version moves the log start offsets and drops the segments
    delete_records   one version moves a log start offset; the segments below it go with the next retention

A dropped segment stays in the state, and on storage, for readers that hold an older version (topic.dropped_files deletes it).
Nothing here takes a topic over: ingests go on, and who loses a race decides again.
"""

from __future__ import annotations

from dataclasses import dataclass

from storage_engine.config import BrokerConfig, topic_config
from storage_engine.errors import OffsetOutOfRangeError, UnknownTopicError
from storage_engine.log.leader_epochs import cut_start
from storage_engine.log.partition_state import PartitionState
from storage_engine.log.producer_state import active_producers
from storage_engine.log.retention import RetentionPlan, decide_retention
from storage_engine.topic.state import DroppedFile, TopicState
from storage_engine.topic.state_chain import StateChain, drop_listing


@dataclass(frozen=True)
class RetentionResult:
    """What retention did to a topic: the plans that were applied, by partition, those that change nothing included."""

    state: TopicState
    plans: tuple[RetentionPlan, ...]

    @property
    def changed(self) -> bool:
        return any(plan.deletions for plan in self.plans)


def retain_topic(chain: StateChain, broker: BrokerConfig) -> RetentionResult:
    """Decide and apply retention on all partitions of a topic, as one version. A deleted topic has nothing to retain.

    Producers that have been silent for producer.id.expiration.ms are forgotten, too. If the log moves on before the
    commit, it is decided again on what is there then.
    """
    plans: tuple[RetentionPlan, ...] = ()

    def change(state: TopicState) -> TopicState | None:
        nonlocal plans
        config = topic_config(broker, state.configs, f"topic {state.topic}")
        now_ms = chain.clock.now_ms()
        plans = tuple(decide_retention(part, config, now_ms) for part in state.partitions)
        changed, dropped = {}, []
        for number, (part, plan) in enumerate(zip(state.partitions, plans, strict=True)):
            kept = _without_expired(part, now_ms, broker.producer_id_expiration_ms)
            if plan.deletions:
                kept = _without_first(kept, len(plan.deletions), plan.log_start_offset)
                dropped += [
                    DroppedFile(state.topic_id, number, deletion.segment.name, now_ms) for deletion in plan.deletions
                ]
            if kept is not part:
                changed[number] = kept
        if not changed:
            return None
        return state.with_partitions(changed).model_copy(update={"dropped": state.dropped + tuple(dropped)})

    state = chain.commit(change, "retention")
    return RetentionResult(state, plans)


HIGH_WATERMARK = -1
"""As the offset of delete_records: where the log ends at that moment, as Kafka's kafka-delete-records has it."""


@dataclass(frozen=True)
class DeletedRecords:
    """What delete_records did: the log start offset before and after."""

    before: int
    after: int


def delete_records(chain: StateChain, partition: int, offset: int) -> DeletedRecords:
    """Let a partition begin at an offset, for every reader from now on (Kafka's DeleteRecords).

    Args:
        offset: HIGH_WATERMARK, or up to it; at or below the log start offset nothing is changed.

    Raises:
        UnknownTopicError: there is no such topic or partition.
        OffsetOutOfRangeError: the offset lies above the high watermark, or below 0.
    """
    before = after = 0

    def change(state: TopicState) -> TopicState | None:
        nonlocal before, after
        if state.deleted or partition >= len(state.partitions):
            raise UnknownTopicError(
                f"topic {state.topic}", f"has no partition {partition}", "lakelog topics describe shows the partitions."
            )
        part = state.partitions[partition]
        before = part.log_start_offset
        wanted = part.high_watermark if offset == HIGH_WATERMARK else offset
        if not 0 <= wanted <= part.high_watermark:
            raise OffsetOutOfRangeError(
                f"topic {state.topic}, partition {partition}",
                f"has records up to its high watermark {part.high_watermark}, found offset {offset}",
                f"Give one from 0 to {part.high_watermark}, or {HIGH_WATERMARK} for all records. Nothing was changed.",
            )
        after = max(before, wanted)
        return state.with_partitions({partition: _without_first(part, 0, after)}) if after > before else None

    what = f"records of partition {partition} deleted up to " + (
        "the high watermark" if offset == HIGH_WATERMARK else f"offset {offset}"
    )
    chain.commit(change, what)
    return DeletedRecords(before, after)


def _without_expired(part: PartitionState, now_ms: int, expiration_ms: int) -> PartitionState:
    active = active_producers(part.producers, now_ms, expiration_ms)
    return part if len(active) == len(part.producers) else part.model_copy(update={"producers": active})


def _without_first(part: PartitionState, count: int, log_start_offset: int) -> PartitionState:
    return drop_listing(part).model_copy(
        update={
            "log_start_offset": log_start_offset,
            "segments": part.segments[count:],
            "leader_epochs": cut_start(part.leader_epochs, log_start_offset),
        }
    )
