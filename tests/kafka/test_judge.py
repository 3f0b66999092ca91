"""Tests that Kafka's own cleaner and retention give the same result as Lakelog's on random logs. `make judge` tests
many more logs.
"""

from __future__ import annotations

import pytest

from tests.kafka.judge import Judge
from tests.kafka.random_logs import random_log, random_log_to_retain

pytestmark = pytest.mark.kafka


def test_random_logs_are_cleaned_and_retained_as_kafka_does_it() -> None:
    with Judge() as judge:
        for number in range(30):
            judge.clean(number, random_log(1, number))
        for number in range(50):
            judge.retain(number, random_log_to_retain(1, number))
    assert not judge.differences
    assert judge.counts["cleans"] > 30
    assert judge.counts["snappy batches compressed to other bytes"] == 0
    assert 50 / 3 < judge.counts["retentions that delete"] < 50
