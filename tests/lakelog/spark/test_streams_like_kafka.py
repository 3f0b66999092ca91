"""Compares streams of the source with those of Spark's Kafka source: equal rows in equal micro-batches, and equal
refusals.
"""

from __future__ import annotations

import re
import time

import pytest

from tests.lakelog.spark.twins import (
    BIG,
    CUT,
    EMPTY,
    FORMATS,
    KAFKA,
    LAKELOG,
    SMALL,
    TIME,
    TRANSACTED,
    Twins,
    at,
    record,
)
from tests.roots.checkpoints import lose
from tests.stores import files_below, storage_at

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

NEVER = str(TIME + 10_000_000)
EARLIEST = {"startingOffsets": "earliest"}

STREAMS: dict[str, tuple[dict[str, str], list[int]]] = {
    "from the latest, by default": ({"subscribe": SMALL}, [0]),
    "from the earliest, with headers": ({"subscribe": SMALL, "includeHeaders": "true", **EARLIEST}, [5]),
    "an empty topic": ({"subscribe": EMPTY, **EARLIEST}, [0]),
    "from offsets": ({"subscribe": BIG, "startingOffsets": at(BIG, 99, -2, -1)}, [13]),
    "from a time": ({"subscribe": SMALL, "startingTimestamp": str(TIME + 2000), "maxOffsetsPerTrigger": "2"}, [2, 1]),
    "from a time that no record has reached": (
        {"subscribe": SMALL, "startingTimestamp": NEVER, "startingOffsetsByTimestampStrategy": "latest"}, [0],
    ),
    "partitions": ({"assign": f'{{"{BIG}": [1, 2], "{SMALL}": [0]}}', **EARLIEST}, [17]),
    "a pattern, divided": ({"subscribePattern": "^twin-big$", "minPartitions": "6", **EARLIEST}, [113]),
    "shares of a limit": ({"subscribe": BIG, "maxOffsetsPerTrigger": "50", **EARLIEST}, [49, 49, 15]),
    "a least and a most": (
        {"subscribe": BIG, "minOffsetsPerTrigger": "40", "maxOffsetsPerTrigger": "50", **EARLIEST}, [49, 49],
    ),
    "a least without patience": (
        {"subscribe": SMALL, "minOffsetsPerTrigger": "4", "maxOffsetsPerTrigger": "4", "maxTriggerDelay": "0ms", **EARLIEST},
        [4, 1],
    ),
    "a limit of nothing": ({"subscribe": SMALL, "maxOffsetsPerTrigger": "0", **EARLIEST}, [0]),
    "transactions": ({"subscribe": TRANSACTED, "maxOffsetsPerTrigger": "2", **EARLIEST}, [1, 1, 1]),
    "committed transactions": (
        {"subscribe": TRANSACTED, "maxOffsetsPerTrigger": "2", "kafka.isolation.level": "read_committed", **EARLIEST},
        [1, 0, 1],
    ),
    "from where the log no longer is": ({"subscribe": CUT, "startingOffsets": at(CUT, 1), "failOnDataLoss": "false"}, [4]),
    "from where the log is not yet": ({"subscribe": SMALL, "startingOffsets": at(SMALL, 9), "failOnDataLoss": "false"}, [0]),
    "an end as a time, which is passed over": ({"subscribe": SMALL, "endingTimestamp": "x", **EARLIEST}, [5]),
}  # fmt: skip

REFUSED: list[tuple[dict[str, str], str]] = [
    ({}, "subscribe"),
    ({"subscribe": "not-there"}, "(?i)topic"),
    ({"subscribe": SMALL, "endingOffsets": "latest"}, "(?i)ending.?offset"),
    ({"subscribe": SMALL, "endingOffsetsByTimestamp": at(SMALL, TIME)}, "(?i)ending"),
    ({"subscribe": SMALL, "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "9.*8"),
    ({"subscribe": SMALL, "maxOffsetsPerTrigger": "x"}, "x"),
    ({"subscribe": SMALL, "maxOffsetsPerTrigger": "-1", **EARLIEST}, "-1"),
    ({"subscribe": SMALL, "minOffsetsPerTrigger": "9", "maxTriggerDelay": "soon"}, "soon"),
    ({"subscribe": SMALL, "maxTriggerDelay": "10 s"}, "10 s"),
    ({"subscribe": SMALL, "kafka.enable.auto.commit": "true"}, "enable.auto.commit"),
    ({"subscribe": BIG, "startingOffsets": at(BIG, 0, 0)}, "big-2"),
    ({"subscribe": SMALL, "startingTimestamp": NEVER}, f"small-0.*{NEVER}"),
    ({"subscribe": SMALL, "startingTimestamp": "-5"}, "small-0.*-5"),
    ({"subscribe": SMALL, "startingOffsets": at(SMALL, 9)}, "failOnDataLoss"),
    ({"subscribe": CUT, "startingOffsets": at(CUT, 1)}, "failOnDataLoss"),
]


@pytest.mark.parametrize("case", STREAMS)
def test_a_stream_gives_what_the_kafka_source_gives(twins: Twins, case: str) -> None:
    options, counts = STREAMS[case]
    expect(twins, twins.name("place"), options, counts)


@pytest.mark.parametrize(("options", "fact"), REFUSED, ids=lambda value: str(value) if value else "nothing")
def test_a_stream_that_the_kafka_source_refuses_is_refused(twins: Twins, options: dict[str, str], fact: str) -> None:
    expect_refusal(twins, twins.name("place"), options, fact)


def test_a_stream_goes_on_where_it_was_and_takes_a_new_partition_from_its_start(twins: Twins) -> None:
    topic = twins.create(twins.name("growing"), 4)
    options = {"subscribe": topic}
    expect(twins, topic, options, [0])
    twins.append(topic, 0, record(0, 4))
    expect(twins, topic, options, [1])
    twins.add_partitions(topic, 2)
    twins.append(topic, 1, record(1, 0), record(1, 1))
    expect(twins, topic, options, [2])
    expect(twins, topic, options, [])


def test_the_starting_offsets_count_only_for_a_new_stream(twins: Twins) -> None:
    topic = twins.create(twins.name("begun"), 3)
    options = {"subscribe": topic, "startingOffsets": at(topic, -3)}
    expect_refusal(twins, twins.name("place"), options, "found -3 as the offset|offset -3")
    expect(twins, topic, {"subscribe": topic, **EARLIEST}, [3])
    twins.append(topic, 0, record(0, 3))
    expect(twins, topic, options, [1])


def test_the_first_micro_batch_is_repeated_after_partitions_and_topics_were_added(twins: Twins) -> None:
    topic = twins.create(twins.name("repeated"), 3)
    starts = [
        {"subscribePattern": topic, **EARLIEST},
        {"subscribe": topic, "startingOffsets": at(topic, 0)},
        {"subscribe": topic, "startingTimestamp": str(TIME)},
    ]
    places = [twins.name("place") for _ in starts]
    for place, options in zip(places, starts, strict=True):
        expect(twins, place, options, [3])
        for kind in FORMATS:  # the driver died before Spark recorded that the micro-batch is done
            lose(storage_at(twins.folder), f"{kind}/{place}", "commits/0")

    twins.add_partitions(topic, 2)
    expect(twins, places[2], starts[2], [3, 0])  # the new partition has no record at or after the time
    twins.append(topic, 1, record(1, 0))
    twins.create(f"{topic}-more", 2)
    expect(twins, places[1], starts[1], [3, 1])
    expect(twins, places[0], starts[0], [3, 3])


def test_a_checkpoint_of_the_kafka_source_is_refused(twins: Twins) -> None:
    place = twins.name("moved")
    options = {"subscribe": SMALL, **EARLIEST}
    assert twins.stream(KAFKA, options, place).refusal == ""
    storage = storage_at(twins.folder)
    for key in files_below(storage, f"{KAFKA}/{place}/"):
        storage.put_new(f"{LAKELOG}/{key.removeprefix(f'{KAFKA}/')}", storage.read(key))
    for loss in ("true", "false"):
        refusal = twins.stream(LAKELOG, options | {"failOnDataLoss": loss}, place).refusal
        assert re.search(
            r"option checkpointLocation: the checkpoint contains positions of another source. Give .* new check",
            refusal,
        )


def test_topics_that_come_and_go_are_taken_by_a_pattern(twins: Twins) -> None:
    place = twins.name("changing")
    options = {"subscribePattern": f"{place}-", "failOnDataLoss": "false", **EARLIEST}
    twins.create(f"{place}-one", 2)
    expect(twins, place, options, [2])
    twins.create(f"{place}-two", 3)
    expect(twins, place, options, [3])
    twins.delete(f"{place}-one")
    wait_until_gone(twins, f"{place}-one")
    twins.append(f"{place}-two", 0, record(0, 3))
    expect_refusal(twins, place, options | {"failOnDataLoss": "true"}, "(?i)deleted")


def test_a_stream_keeps_its_position_while_no_topic_matches_its_pattern(twins: Twins) -> None:
    topic = twins.create(twins.name("vanishing"), 2)
    options = {"subscribePattern": f"^{topic}$", **EARLIEST}
    expect(twins, topic, options, [2])
    twins.delete(topic)
    wait_until_gone(twins, topic)
    expect(twins, topic, options, [])
    expect(twins, topic, options | {"failOnDataLoss": "false"}, [])


def test_records_that_retention_deleted_end_a_stream_unless_that_is_wanted(twins: Twins) -> None:
    topic = twins.create(twins.name("shrinking"), 2)
    options = {"subscribe": topic, **EARLIEST}
    expect(twins, topic, options, [2])
    twins.append(topic, 0, *(record(0, number) for number in range(2, 8)))
    twins.add_partitions(topic, 2)
    twins.append(topic, 1, record(1, 0), record(1, 1))
    twins.delete_before(topic, 1, 1)
    expect_refusal(twins, topic, options, "failOnDataLoss")
    twins.delete_before(topic, 0, 5)
    expect_refusal(twins, topic, options, "failOnDataLoss")
    expect(twins, topic, options | {"failOnDataLoss": "false"}, [4])


def expect(twins: Twins, place: str, options: dict[str, str], counts: list[int]) -> None:
    """Both give the same rows in the same micro-batches, as many as these."""
    of_kafka, ours = twins.streams(place, **options)
    assert (of_kafka.refusal, ours.refusal) == ("", "")
    assert ours == of_kafka
    assert [len(rows) for rows in ours.rows] == counts


def expect_refusal(twins: Twins, place: str, options: dict[str, str], fact: str) -> None:
    for outcome in twins.streams(place, **options):
        assert re.search(fact, outcome.refusal, re.DOTALL), outcome.refusal or "was read"


def wait_until_gone(twins: Twins, topic: str) -> None:
    """A broker deletes a topic after it has said so."""
    deadline = time.monotonic() + 20
    while topic in twins.admin.list_topics() and time.monotonic() < deadline:
        time.sleep(0.05)
