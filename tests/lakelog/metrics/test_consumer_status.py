"""Each rule of Burrow, a monitor for Kafka consumers, and the four details in which Lakelog differs from Burrow."""

from __future__ import annotations

import pytest

from lakelog.metrics.consumer_status import ConsumerStatus, consumer_status
from storage_engine.topic.readers.consumer_files import EXPORT_KIND, GROUP_KIND, PositionSample
from tests.lakelog.metrics.roots import HOUR, MINUTE, NOW

OK, WARN, STOP, STALL, REWIND = ConsumerStatus


def samples(*rows: tuple[int, int], every_ms: int = 2 * MINUTE, age_ms: int = 0) -> list[PositionSample]:
    """Positions and ends; the last sample has this age."""
    return [
        PositionSample(NOW - age_ms - (len(rows) - 1 - number) * every_ms, position, end)
        for number, (position, end) in enumerate(rows)
    ]


GROWING = ((10, 20), (20, 40), (30, 60), (40, 80))
SHRINKING = ((10, 80), (30, 85), (50, 90), (80, 95))
CASES = {
    "all is read now, whatever the samples say": (samples((9, 10), (5, 20), (5, 30), age_ms=9 * HOUR), 0, None, OK),
    "no sample yet": ([], 100, NOW - HOUR, OK),
    "the last commit is longer ago than the samples span": (
        samples(*SHRINKING, age_ms=11 * MINUTE),
        15,
        NOW - HOUR,
        STOP,
    ),
    "as long ago as the least window": (samples(*SHRINKING, age_ms=10 * MINUTE), 15, NOW - HOUR, OK),
    "as long ago as slow samples span": (samples(*SHRINKING, every_ms=HOUR, age_ms=3 * HOUR), 15, NOW - HOUR, OK),
    "longer ago than slow samples span": (
        samples(*SHRINKING, every_ms=HOUR, age_ms=3 * HOUR + 1),
        15,
        NOW - HOUR,
        STOP,
    ),
    "stopped although it was up to date before": (samples((10, 10), (20, 20), age_ms=HOUR), 5, NOW - HOUR, STOP),
    "stopped, and the age of the records is unknown": (samples((10, 10), age_ms=HOUR), 5, None, STOP),
    "idle until a record came a moment ago": (samples((10, 10), (20, 20), age_ms=HOUR), 5, NOW - MINUTE, OK),
    "one commit, a moment ago": (samples((10, 20), age_ms=1000), 10, NOW - HOUR, OK),
    "up to date at one of the samples": (samples((10, 20), (20, 20), (20, 40), (20, 60)), 40, NOW - MINUTE, OK),
    "went back": (samples((10, 20), (15, 25), (5, 30), (20, 40)), 20, NOW - MINUTE, REWIND),
    "went back and is caught up at a sample": (samples((20, 20), (5, 30), (9, 40)), 31, NOW - MINUTE, OK),
    "commits the same position": (samples((10, 20), (10, 20), (10, 30)), 20, NOW - MINUTE, STALL),
    "the same position twice is too little to judge": (samples((10, 20), (10, 30)), 20, NOW - MINUTE, OK),
    "the lag grows": (samples(*GROWING), 40, NOW - MINUTE, WARN),
    "the lag stays": (samples((10, 20), (20, 30), (30, 40)), 10, NOW - MINUTE, WARN),
    "the lag shrank once": (samples((10, 20), (20, 40), (35, 50), (36, 90)), 54, NOW - MINUTE, OK),
    "the lag shrinks": (samples(*SHRINKING), 15, NOW - MINUTE, OK),
    "stopping is worse than going back": (samples((10, 20), (5, 30), (7, 40), age_ms=HOUR), 33, NOW - HOUR, STOP),
}


@pytest.mark.parametrize(("found", "lag", "oldest_ms", "expected"), CASES.values(), ids=CASES)
def test_the_first_rule_that_applies_decides(
    found: list[PositionSample], lag: int, oldest_ms: int | None, expected: ConsumerStatus
) -> None:
    assert consumer_status(GROUP_KIND, found, lag, oldest_ms, NOW) is expected


def test_burrow_calls_all_but_two_statuses_an_error() -> None:
    assert [each for each in ConsumerStatus if each.is_error] == [STOP, STALL, REWIND]


@pytest.mark.parametrize(("count", "expected"), [(1, OK), (2, OK), (3, STOP)])
def test_an_export_has_not_stopped_before_its_samples_show_how_long_it_pauses(
    count: int, expected: ConsumerStatus
) -> None:
    found = samples(*GROWING[:count], every_ms=HOUR, age_ms=9 * HOUR)
    assert consumer_status(EXPORT_KIND, found, 40, NOW - 9 * HOUR, NOW) is expected
    assert consumer_status(GROUP_KIND, found, 40, NOW - 9 * HOUR, NOW) is STOP
