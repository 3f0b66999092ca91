"""Kafka's own retention and ours leave the same segments of random logs; `make judge` compares many more."""

from __future__ import annotations

import pytest

from tests.kafka.judge import Judge
from tests.kafka.random_logs import random_log_to_retain

pytestmark = pytest.mark.kafka
LOGS = 50


def test_retention_deletes_what_kafka_deletes() -> None:
    with Judge() as judge:
        for number in range(LOGS):
            judge.retain(number, random_log_to_retain(1, number))
    assert not judge.differences
    assert LOGS / 3 < judge.counts["retentions that delete"] < LOGS
