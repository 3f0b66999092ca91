"""Moves a log's start, by retention or on request, as changes to a topic's state.

    retention        one version moves the log start offsets and drops the segments
    delete_records   one version moves a log start offset; the segments below it go with the next retention

Registered consumers (topic.readers.groups) hold retention back if the topic's configuration says so; they never hold
back delete_records. The result and the version's history name deleted records that a consumer had not read.

A dropped segment stays in the state, and on storage, for readers that hold an older version (topic.dropped_files
deletes it). Nothing here takes a topic over: ingests continue, and a process that loses a race decides again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from storage_engine.config import BrokerConfig, topic_config
from storage_engine.errors import OffsetOutOfRangeError, UnknownTopicError
from storage_engine.log.holds import NO_HOLDS, Holds
from storage_engine.log.leader_epochs import cut_start
from storage_engine.log.partition_state import PartitionState
from storage_engine.log.producers.producer_state import active_producers
from storage_engine.log.retention import RetentionPlan, Rule, decide_retention
from storage_engine.topic.chain.segment_lists import drop_listing
from storage_engine.topic.chain.state import ChangeNote, DroppedFile, Removal, TopicState
from storage_engine.topic.chain.state_chain import StateChain
from storage_engine.topic.readers.groups import read_consumers


@dataclass(frozen=True)
class RetentionResult:
    """What retention did to a topic: the plans that were applied, by partition, those that change nothing included."""

    state: TopicState
    plans: tuple[RetentionPlan, ...]
    removed: tuple[Removal, ...] = ()

    @property
    def changed(self) -> bool:
        return any(plan.deletions for plan in self.plans)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What an operator should know: who or what keeps segments from going, and who had not read what went."""
        said: list[tuple[int, object]]
        said = [(number, each) for number, plan in enumerate(self.plans) for each in (plan.blocked, plan.held) if each]
        said += [
            (
                each.partition,
                f"{each.by} took offsets up to {each.to_offset}, which {' and '.join(each.unread_by)} had not read",
            )
            for each in self.removed
            if each.unread_by
        ]
        return tuple(f"topic {self.state.topic}, partition {number}: {each}" for number, each in said)


def retain_topic(
    chain: StateChain,
    broker: BrokerConfig,
    *,
    now_ms: int | None = None,
    decide: Callable[[TopicState, Sequence[Holds]], tuple[RetentionPlan, ...]] | None = None,
) -> RetentionResult:
    """Decide and apply retention on all partitions of a topic, as one version. A deleted topic has nothing to retain.

    Producers that have been silent for producer.id.expiration.ms are forgotten, too. If the log moves on before the
    commit, it is decided again on what is there then.

    Args:
        now_ms: the time by which it is decided, else the clock's.
        decide: what goes, by partition, given who holds it back, else as log.retention has it. What it raises comes through.
    """
    plans: tuple[RetentionPlan, ...] = ()
    removed: tuple[Removal, ...] = ()

    def change(state: TopicState) -> TopicState | None:
        nonlocal plans, removed
        config = topic_config(broker, state.configs, f"topic {state.topic}")
        dropped_ms = chain.clock.now_ms()
        by_ms = dropped_ms if now_ms is None else now_ms
        consumers = read_consumers(chain.storage, state)
        holds = [consumers.holds(number) for number in range(len(state.partitions))]
        if decide is not None:
            plans = decide(state, holds)
        else:
            plans = tuple(
                decide_retention(part, config, by_ms, held) for part, held in zip(state.partitions, holds, strict=True)
            )
        removed = tuple(
            removal for number, plan in enumerate(plans) for removal in _removals(number, plan, holds[number])
        )
        changed, dropped = {}, []
        for number, (part, plan) in enumerate(zip(state.partitions, plans, strict=True)):
            kept = _without_expired(part, by_ms, broker.producer_id_expiration_ms)
            if plan.deletions:
                kept = _without_first(kept, len(plan.deletions), plan.log_start_offset)
                dropped += [
                    DroppedFile(state.topic_id, number, deletion.segment.name, dropped_ms)
                    for deletion in plan.deletions
                ]
            if kept is not part:
                changed[number] = kept
        if not changed:
            return None
        return state.with_partitions(changed).model_copy(update={"dropped": state.dropped + tuple(dropped)})

    state = chain.commit(change, lambda: ChangeNote("retention", removed))
    return RetentionResult(state, plans, removed)


def _removals(partition: int, plan: RetentionPlan, holds: Holds) -> Iterator[Removal]:
    """What goes, by rule. Who had not read what lies below the log start offset was named when that moved."""
    for rule in Rule:
        gone = [deletion.segment for deletion in plan.deletions if deletion.rule is rule]
        if gone:
            end = gone[-1].end_offset
            behind = NO_HOLDS if rule is Rule.START_OFFSET else holds.behind(end)
            yield Removal(
                partition=partition,
                by=f"retention by {rule}",
                from_offset=gone[0].base_offset,
                to_offset=end,
                segments=len(gone),
                bytes=sum(segment.size for segment in gone),
                unread_by=tuple(behind.positions),
            )


HIGH_WATERMARK = -1
"""As the offset of delete_records: where the log ends at that moment, as Kafka's kafka-delete-records has it."""


@dataclass(frozen=True)
class DeletedRecords:
    """What delete_records did: the log start offset before and after, and the consumers that had not read up to there."""

    before: int
    after: int
    unread_by: Holds = NO_HOLDS


def delete_records(chain: StateChain, partition: int, offset: int) -> DeletedRecords:
    """Let a partition begin at an offset, for every reader from now on (Kafka's DeleteRecords).

    Args:
        offset: HIGH_WATERMARK, or up to it; at or below the log start offset nothing is changed.

    Raises:
        UnknownTopicError: there is no such topic or partition.
        OffsetOutOfRangeError: the offset lies above the high watermark, or below 0.
    """
    before = after = 0
    behind = NO_HOLDS

    def change(state: TopicState) -> TopicState | None:
        nonlocal before, after, behind
        if state.deleted or not 0 <= partition < len(state.partitions):
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
        behind = read_consumers(chain.storage, state).holds(partition).behind(after) if after > before else NO_HOLDS
        return state.with_partitions({partition: _without_first(part, 0, after)}) if after > before else None

    what = f"records of partition {partition} deleted up to " + (
        "the high watermark" if offset == HIGH_WATERMARK else f"offset {offset}"
    )

    def note() -> ChangeNote:
        removal = Removal(
            partition=partition, by="delete-records", from_offset=before, to_offset=after, segments=0, bytes=0,
            unread_by=tuple(behind.positions),
        )  # fmt: skip
        return ChangeNote(what, (removal,))

    chain.commit(change, note)
    return DeletedRecords(before, after, behind)


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
