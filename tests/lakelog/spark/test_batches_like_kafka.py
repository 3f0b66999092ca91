"""Compares batches of the source with those of Spark's Kafka source, on the same records: equal rows, schemas, tasks
and refusals.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from tests.lakelog.spark.twins import BIG, CUT, EMPTY, FORMATS, SMALL, TIME, TRANSACTED, Twins, at, record, rows_of

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

NEVER = str(TIME + 10_000_000)
READ_COMMITTED = {"kafka.isolation.level": "read_committed"}


def times(topic: str, *seconds: int) -> str:
    return at(topic, *(TIME + 1000 * each for each in seconds))


READS: dict[str, tuple[dict[str, str], int]] = {
    "a topic": ({"subscribe": BIG}, 113),
    "names in any case": ({"SUBSCRIBE": SMALL, "INCLUDEHEADERS": "TRUE"}, 5),
    "headers": ({"subscribe": BIG, "includeHeaders": "true"}, 113),
    "two topics": ({"subscribe": f" {BIG}, {SMALL},"}, 118),
    "a pattern matches anywhere": ({"subscribePattern": "i[fg]$"}, 113),
    "a pattern in Java's words": ({"subscribePattern": r"^twin-\p{Lower}\Qig\E\z"}, 113),
    "a pattern without a match": ({"subscribePattern": "nothing-.*"}, 0),
    "partitions": ({"assign": f'{{"{BIG}": [0, 2]}}'}, 102),
    "a partition that does not exist": ({"assign": f'{{"{BIG}": [0, 7]}}'}, 101),
    "an empty topic": ({"subscribe": EMPTY}, 0),
    "earliest, spelled otherwise": ({"subscribe": SMALL, "startingOffsets": " EarlieST "}, 5),
    "offsets": ({"subscribe": SMALL, "startingOffsets": at(SMALL, 1), "endingOffsets": at(SMALL, 3)}, 2),
    "ends as offsets": ({"subscribe": BIG, "startingOffsets": at(BIG, 90, -2, 1), "endingOffsets": at(BIG, -1, 5, -1)}, 16),
    "an offset with a point": ({"subscribe": SMALL, "startingOffsets": f'{{"{SMALL}": {{"0": 1.5}}}}'}, 4),
    "an offset that is written as Java reads it": (
        {"subscribe": SMALL, "startingOffsets": f'{{"{SMALL}": {{"+0": 18446744073709551617}}}} and more'}, 4,
    ),
    "null": (
        {"assign": f'{{"{BIG}": null, "{SMALL}": [null]}}', "startingOffsets": f'{{"{SMALL}": {{"0": null}}}}'}, 5,
    ),
    "a number that is too large": (
        {
            "assign": f'{{"{SMALL}": [4294967296, 1e30]}}', "endingOffsets": f'{{"{SMALL}": {{"0": 1e30}}}}',
            "failOnDataLoss": "false",
        },
        5,
    ),
    "nothing after the end of the log": (
        {"subscribe": SMALL, "startingOffsets": at(SMALL, 9), "endingOffsets": at(SMALL, 9)}, 0,
    ),
    "nothing between the offsets": ({"subscribe": SMALL, "startingOffsets": at(SMALL, 3), "endingOffsets": at(SMALL, 3)}, 0),
    "from a time": ({"subscribe": SMALL, "startingTimestamp": f" {TIME + 2000} "}, 3),
    "up to a time": ({"subscribe": SMALL, "endingTimestamp": str(TIME + 3000)}, 3),
    "between times of partitions": (
        {"subscribe": BIG, "startingOffsetsByTimestamp": times(BIG, 99, 5, 0), "endingOffsetsByTimestamp": times(BIG, 100, 8, 9)},
        4,
    ),
    "times that are out of order": (
        {"subscribe": BIG, "startingTimestamp": str(TIME + 300_000), "startingOffsetsByTimestampStrategy": "Latest"}, 51,
    ),
    "a time beats times, and these offsets": (
        {
            "subscribe": SMALL, "startingTimestamp": str(TIME + 4000), "startingOffsetsByTimestamp": times(SMALL, 1),
            "startingOffsets": "latest",
        },
        1,
    ),
    "times beat offsets": (
        {"subscribe": SMALL, "endingOffsetsByTimestamp": times(SMALL, 2), "endingOffsets": "earliest"}, 2,
    ),
    "a time that no record has reached": (
        {"subscribe": SMALL, "startingTimestamp": NEVER, "startingOffsetsByTimestampStrategy": "latest"}, 0,
    ),
    "an end that no record has reached": ({"subscribe": SMALL, "endingTimestamp": NEVER}, 5),
    "the latest, as a time": ({"subscribe": SMALL, "startingTimestamp": "-1"}, 0),
    "the earliest on a broker's disk, as a time": ({"subscribe": EMPTY, "startingTimestamp": "-4"}, 0),
    "the latest in tiered storage, as a time": (
        {"subscribe": SMALL, "startingTimestamp": "-5", "startingOffsetsByTimestampStrategy": "latest"}, 0,
    ),
    "up to the latest in tiered storage": ({"subscribe": SMALL, "endingTimestamp": "-5"}, 5),
    "aborted transactions": ({"subscribe": TRANSACTED}, 3),
    "committed transactions": ({"subscribe": TRANSACTED, **READ_COMMITTED}, 2),
    "committed transactions, with spaces": ({"subscribe": TRANSACTED, "kafka.isolation.level": " read_committed\t"}, 2),
    "deleted records": ({"subscribe": CUT}, 4),
    "deleted records that were wanted": (
        {"subscribe": CUT, "startingOffsets": at(CUT, 1), "failOnDataLoss": "false"}, 4,
    ),
    "an end that is not there": ({"subscribe": SMALL, "endingOffsets": at(SMALL, 9), "failOnDataLoss": "FALSE"}, 5),
    "more tasks": ({"subscribe": BIG, "minPartitions": "5"}, 113),
    "smaller tasks": (
        {
            "subscribe": BIG, "maxRecordsPerPartition": "20", "startingOffsets": at(BIG, 1, 1, 0),
            "endingOffsets": at(BIG, 99, 10, 1),
        },
        108,
    ),
    "more and smaller tasks": ({"subscribe": BIG, "maxRecordsPerPartition": "20", "minPartitions": "9"}, 113),
    "options of streams": ({"subscribe": SMALL, "maxOffsetsPerTrigger": "x", "maxTriggerDelay": "x"}, 5),
    "options that nobody knows": ({"subscribe": SMALL, "startingOfsets": "latest"}, 5),
    "a group": ({"subscribe": SMALL, "kafka.group.id": "mine", "groupIdPrefix": "x", "kafka.fetch.max.bytes": "5000"}, 5),
}  # fmt: skip

REFUSED: list[tuple[dict[str, str], str]] = [
    ({}, "subscribe"),
    ({"subscribe": SMALL, "assign": f'{{"{SMALL}": [0]}}'}, "assign"),
    ({"subscribe": " , "}, "subscribe"),
    ({"subscribePattern": " "}, "(?i)pattern"),
    ({"subscribePattern": "("}, r"\("),
    ({"assign": SMALL}, "assign"),
    ({"assign": '{"twin-small": ["0"]}'}, "small"),
    ({"assign": '{"twin-small": {}}'}, "small"),
    ({"assign": '{"twin-small": ""}'}, "small"),
    ({"subscribe": "not-there"}, "(?i)topic"),
    ({"subscribe": "not there"}, "(?i)topic"),
    ({"subscribe": SMALL, "startingOffsets": "latest"}, "latest"),
    ({"subscribe": SMALL, "startingOffsets": at(SMALL, -1)}, "latest"),
    ({"subscribe": SMALL, "endingOffsets": "earliest"}, "earliest"),
    ({"subscribe": SMALL, "endingOffsets": at(SMALL, -2)}, "earliest"),
    ({"subscribe": SMALL, "startingOffsets": "soon"}, "soon"),
    ({"subscribe": SMALL, "startingOffsets": '{"twin-small": {"0": "1"}}'}, "small"),
    ({"subscribe": SMALL, "startingOffsets": '{"twin-small": {"x": 1}}'}, "small"),
    ({"subscribe": SMALL, "startingOffsets": '{"twin-small": {" 0": 1}}'}, "small"),
    ({"subscribe": SMALL, "startingOffsets": '{"twin-small": [0]}'}, "small"),
    ({"subscribe": SMALL, "startingOffsets": at(SMALL, -3)}, "-3"),
    ({"subscribe": SMALL, "endingOffsets": at(SMALL, -3)}, "-3"),
    ({"subscribe": SMALL, "startingOffsets": "{}"}, "small-0"),
    ({"subscribe": BIG, "startingOffsets": at(BIG, 0, 0)}, "big-2"),
    ({"subscribe": SMALL, "endingOffsets": at(SMALL, 1, 1)}, "small-1"),
    ({"subscribe": SMALL, "startingOffsets": at(SMALL, 1), "endingOffsets": at(SMALL, 2, 2)}, "small-1"),
    ({"subscribe": SMALL, "startingOffsets": at(SMALL, 3), "endingOffsets": at(SMALL, 2)}, "greater than the end"),
    ({"subscribe": SMALL, "startingOffsets": at(SMALL, 4), "endingTimestamp": str(TIME)}, "greater than the"),
    ({"subscribe": SMALL, "startingTimestamp": str(TIME + 3000), "endingTimestamp": str(TIME)}, "greater than the"),
    ({"subscribe": SMALL, "startingOffsets": at(SMALL, 9)}, "9"),
    ({"subscribe": SMALL, "endingOffsets": at(SMALL, 9)}, "failOnDataLoss"),
    ({"subscribe": CUT, "startingOffsets": at(CUT, 1)}, "failOnDataLoss"),
    ({"subscribe": SMALL, "startingTimestamp": "soon"}, "soon"),
    ({"subscribe": SMALL, "startingTimestamp": NEVER}, f"small-0.*{NEVER}"),
    ({"subscribe": EMPTY, "startingTimestamp": "0"}, r"empty-\d"),
    ({"subscribe": SMALL, "startingTimestamp": "-5"}, "small-0.*-5"),
    ({"subscribe": SMALL, "startingTimestamp": "-6"}, "UnsupportedVersion|found -6 as the time"),
    ({"subscribe": SMALL, "endingTimestamp": "-7"}, "UnsupportedVersion|found -7 as the time"),
    ({"subscribe": SMALL, "startingOffsetsByTimestamp": at(SMALL, -5)}, "small-0.*-5"),
    ({"subscribe": BIG, "startingOffsetsByTimestamp": times(BIG, 0, 0)}, "big-2"),
    ({"subscribe": SMALL, "startingOffsetsByTimestamp": "{"}, r"\{"),
    (
        {"subscribe": SMALL, "startingOffsetsByTimestamp": times(SMALL, 3), "endingOffsetsByTimestamp": times(SMALL, 2)},
        "greater than the end",
    ),
    ({"subscribe": SMALL, "startingOffsetsByTimestampStrategy": "maybe"}, "(?i)maybe"),
    ({"subscribe": SMALL, "minPartitions": "0"}, "minPartitions"),
    ({"subscribe": SMALL, "minPartitions": "x"}, "x"),
    ({"subscribe": SMALL, "fetchOffset.numRetries": "often"}, "often"),
    ({"subscribe": SMALL, "fetchOffset.retryIntervalMs": "1s"}, "1s"),
    ({"subscribe": SMALL, "kafkaConsumer.pollTimeoutMs": "soon"}, "soon"),
    ({"subscribe": SMALL, "minPartitions": " 5"}, " 5"),
    ({"subscribe": SMALL, "minPartitions": "2147483648"}, "2147483648"),
    ({"subscribe": SMALL, "maxRecordsPerPartition": "0"}, "(?i)maxRecordsPerPartition"),
    ({"subscribe": SMALL, "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, r"9.*8"),
    ({"subscribe": SMALL, "includeHeaders": "maybe"}, "maybe"),
    ({"subscribe": SMALL, "failOnDataLoss": "maybe"}, "maybe"),
    ({"subscribe": SMALL, "KAFKA.auto.offset.reset": "earliest"}, "auto.offset.reset"),
    ({"subscribe": SMALL, "kafka.key.deserializer": "x"}, "key.deserializer"),
    ({"subscribe": SMALL, "kafka.value.deserializer": "x"}, "value.deserializer"),
    ({"subscribe": SMALL, "kafka.enable.auto.commit": "false"}, "enable.auto.commit"),
    ({"subscribe": SMALL, "kafka.interceptor.classes": "x"}, "interceptor.classes"),
    ({"subscribe": SMALL, "kafka.isolation.level": "READ_COMMITTED"}, "isolation.level"),
    ({"subscribe": SMALL, "kafka.isolation.level": "\u00a0read_committed"}, "isolation.level"),
]  # fmt: skip


@pytest.mark.parametrize("case", READS)
def test_a_batch_gives_what_the_kafka_source_gives(twins: Twins, case: str) -> None:
    options, count = READS[case]
    of_kafka, ours = twins.batches(**options)
    assert (of_kafka.refusal, ours.refusal) == ("", "")
    assert ours == of_kafka
    assert len(ours.rows) == count


@pytest.mark.parametrize(("options", "fact"), REFUSED, ids=lambda value: json.dumps(value) if value else "nothing")
def test_a_batch_that_the_kafka_source_refuses_is_refused(twins: Twins, options: dict[str, str], fact: str) -> None:
    for outcome in twins.batches(**options):
        assert re.search(fact, outcome.refusal, re.DOTALL), outcome.refusal or "was read"


def test_a_frame_means_the_earliest_and_the_latest_when_it_runs(twins: Twins) -> None:
    topic = twins.create(twins.name("late"), 3, 2)
    bounds: list[dict[str, str]] = [
        {}, {"startingOffsets": at(topic, 1, -2), "endingOffsets": at(topic, 3, -1)}, {"endingTimestamp": NEVER},
    ]  # fmt: skip
    frames = [{kind: twins.frame(kind, {"subscribe": topic} | each) for kind in FORMATS} for each in bounds]
    assert [counts(each) for each in frames] == [[5, 5], [4, 4], [5, 5]]

    twins.append(topic, 1, record(1, 2), record(1, 3))
    twins.append(topic, 0, record(0, 3))
    twins.delete_before(topic, 1, 1)

    assert [counts(each) for each in frames] == [[7, 7], [5, 5], [4, 4]]
    for each in frames:
        of_kafka, ours = (rows_of(frame) for frame in each.values())
        assert ours == of_kafka


def test_an_offset_without_a_meaning_is_refused_when_a_batch_runs(twins: Twins) -> None:
    for kind in FORMATS:
        frame = twins.frame(kind, {"subscribe": SMALL, "startingOffsets": at(SMALL, -3)})
        with pytest.raises((PySparkException, Py4JError), match=r"found -3 as the offset|offset -3"):
            frame.collect()


def test_a_schema_of_ones_own_is_refused(twins: Twins) -> None:
    for outcome in (twins.batch(kind, {"subscribe": SMALL}, schema="value STRING") for kind in FORMATS):
        assert "schema" in outcome.refusal


def counts(frames: dict[str, Any]) -> list[int]:
    return [len(frame.collect()) for frame in frames.values()]
