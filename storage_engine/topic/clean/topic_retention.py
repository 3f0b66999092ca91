"""Deletes old records: moves the log start offset of partitions, by retention or on request.

    retention        One version moves the log start offsets and drops the segments.
    delete_records   One version moves the log start offset of a partition. The next retention drops the segments
                     below this offset.

With retention.respect.consumers, retention keeps segments that registered consumers (topic.readers.consumer_files)
have not read. delete_records also deletes unread records. The result and the topic's history name each consumer that
had not read all of the deleted records.

A dropped segment remains on the storage and in the state's list of dropped files, because readers can still use an
older version. topic.dropped_files deletes the segment later. Neither retention nor delete_records takes the topic
over from an ingest, so a running ingest continues. If another process commits first, the decision is made again on
the new state.
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
from storage_engine.log.segment_retention import RetentionPlan, RetentionRule, decide_retention
from storage_engine.topic.chain.segment_lists import drop_listing
from storage_engine.topic.chain.state_chain import StateChain
from storage_engine.topic.chain.topic_state import ChangeNote, DroppedFile, Removal, TopicState
from storage_engine.topic.readers.consumer_files import read_consumers


@dataclass(frozen=True)
class RetentionResult:
    """The result of retention for a topic.

    state: the state after the commit.
    plans: the decision on each partition, even if it changes nothing.
    removed: the records that were removed.
    """

    state: TopicState
    plans: tuple[RetentionPlan, ...]
    removed: tuple[Removal, ...] = ()

    @property
    def changed(self) -> bool:
        return any(plan.deletions for plan in self.plans)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings for an operator: the reasons why overdue segments were not deleted, and the consumers that had not
        read all of the deleted records.
        """
        said: list[tuple[int, object]]
        said = [(number, each) for number, plan in enumerate(self.plans) for each in (plan.blocked, plan.held) if each]
        said += [
            (
                each.partition,
                f"{each.by} deleted offsets below {each.to_offset} that {' and '.join(each.unread_by)} had not read",
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
    """Decide and apply retention on all partitions of a topic, in one version.

    Producers that have not appended for producer.id.expiration.ms are removed, too. If the state changes before the
    commit, retention is decided again on the new state.

    Args:
        now_ms: the time for the decision; by default the clock's time.
        decide: returns the decision on each partition from the state and the consumers' positions; by default
            log.segment_retention.decide_retention. Its errors are raised.
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
    """The removals of a partition, one per rule.

    No consumers are named for records below the log start offset: the consumers were named when that offset moved.
    """
    for rule in RetentionRule:
        gone = [deletion.segment for deletion in plan.deletions if deletion.rule is rule]
        if gone:
            end = gone[-1].end_offset
            behind = NO_HOLDS if rule is RetentionRule.START_OFFSET else holds.behind(end)
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
"""If this value is the offset of delete_records, it means the high watermark at that moment, as in Kafka's
kafka-delete-records tool.
"""


@dataclass(frozen=True)
class DeletedRecords:
    """The result of delete_records.

    before, after: the log start offset.
    unread_by: the consumers that had not read all deleted records.
    """

    before: int
    after: int
    unread_by: Holds = NO_HOLDS


def delete_records(chain: StateChain, partition: int, offset: int) -> DeletedRecords:
    """Delete all records of a partition below an offset (Kafka's DeleteRecords).

    Args:
        offset: the new log start offset, or HIGH_WATERMARK. If it is not above the present log start offset, nothing is
            changed.

    Raises:
        UnknownTopicError: there is no such topic or partition.
        OffsetOutOfRangeError: the offset is above the high watermark, or below 0.
    """
    before = after = 0
    behind = NO_HOLDS

    def change(state: TopicState) -> TopicState | None:
        nonlocal before, after, behind
        if state.deleted or not 0 <= partition < len(state.partitions):
            raise UnknownTopicError(
                f"topic {state.topic}",
                f"has no partition {partition}",
                "`lakelog topics describe` shows the partitions.",
            )
        part = state.partitions[partition]
        before = part.log_start_offset
        wanted = part.high_watermark if offset == HIGH_WATERMARK else offset
        if not 0 <= wanted <= part.high_watermark:
            raise OffsetOutOfRangeError(
                f"topic {state.topic}, partition {partition}",
                f"expected an offset up to the high watermark {part.high_watermark}, found {offset}",
                f"Use an offset from 0 to {part.high_watermark}, or {HIGH_WATERMARK} for all records. Nothing was changed.",
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
