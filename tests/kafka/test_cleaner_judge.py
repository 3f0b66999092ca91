"""Kafka's own cleaner and ours leave the same files of random logs; `make judge` compares many more."""

from __future__ import annotations

import pytest

from tests.kafka.judge import Judge
from tests.kafka.random_logs import random_log

pytestmark = pytest.mark.kafka
LOGS = 30


def test_random_logs_are_cleaned_as_kafka_cleans_them() -> None:
    with Judge() as judge:
        for number in range(LOGS):
            judge.clean(number, random_log(1, number))
    assert not judge.differences
    assert judge.counts["cleans"] > LOGS
