"""Tests that Kafka's own log manager and Lakelog's leave the same log directories. `make judge` compares many more."""

from __future__ import annotations

import pytest

from tests.kafka.log_manager.judge import ManagerJudge
from tests.kafka.log_manager.random_directories import random_case

pytestmark = pytest.mark.kafka


def test_random_directories_are_managed_as_kafka_does_it() -> None:
    with ManagerJudge() as judge:
        for number in range(12):
            judge.judge(number, random_case(7, number))
    assert not judge.differences
    assert judge.counts["lives"] >= 12
    assert judge.counts["simulated hours"] > 100
