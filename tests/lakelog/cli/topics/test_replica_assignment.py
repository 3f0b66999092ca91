"""Compares replica assignments with the results of Kafka's AdminUtils.assignReplicasToBrokers for the same arguments."""

from __future__ import annotations

import pytest

from lakelog.cli.topics.replica_assignment import assign_replicas, reassignment
from storage_engine.errors import ConfigError

BROKERS = [5, 3, 8, 0, 2]
TWO_RACKS = {5: "b", 3: "a", 8: "a", 0: "b", 2: "b"}
THREE_RACKS = {5: "b", 3: "a", 8: "a", 0: "b", 2: "c", 7: "c"}


def test_replicas_follow_the_brokers_in_their_order_and_move_on_with_each_round():
    assert assign_replicas(11, BROKERS, 3) == [
        [5, 3, 8], [3, 8, 0], [8, 0, 2], [0, 2, 5], [2, 5, 3],
        [5, 8, 0], [3, 0, 2], [8, 2, 5], [0, 5, 3], [2, 3, 8],
        [5, 0, 2],
    ]  # fmt: skip


def test_start_and_shift_turn_the_circle():
    assert assign_replicas(7, BROKERS, 3, start_index=2, shift=2) == [
        [8, 5, 3], [0, 3, 8], [2, 8, 0], [5, 0, 2], [3, 2, 5],
        [8, 3, 0], [0, 8, 2],
    ]  # fmt: skip


def test_racks_take_turns_and_each_has_a_replica_before_any_has_two():
    assert assign_replicas(11, BROKERS, 3, TWO_RACKS) == [
        [3, 0, 8], [0, 8, 2], [8, 2, 5], [2, 3, 0], [5, 3, 0],
        [3, 2, 5], [0, 3, 8], [8, 0, 2], [2, 8, 5], [5, 8, 2],
        [3, 0, 8],
    ]  # fmt: skip
    assert assign_replicas(12, [*BROKERS, 7], 4, THREE_RACKS, start_index=2, shift=2) == [
        [2, 5, 3, 0], [8, 7, 0, 2], [5, 3, 2, 8], [7, 0, 8, 5], [3, 2, 5, 7], [0, 8, 7, 3],
        [2, 0, 8, 5], [8, 2, 5, 7], [5, 8, 7, 3], [7, 5, 3, 0], [3, 7, 0, 2], [0, 3, 2, 8],
    ]  # fmt: skip


def test_one_broker_holds_everything():
    assert assign_replicas(3, [4], 1) == [[4], [4], [4]]


def test_document_is_what_kafka_reassign_partitions_takes():
    assert reassignment("orders", [[1, 2], [2, 3]]) == {
        "version": 1,
        "partitions": [
            {"topic": "orders", "partition": 0, "replicas": [1, 2], "log_dirs": ["any", "any"]},
            {"topic": "orders", "partition": 1, "replicas": [2, 3], "log_dirs": ["any", "any"]},
        ],
    }


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((0, [1], 1), "partitions: expected at least 1, found 0"),
        ((1, [1], 0), "replication factor: expected at least 1, found 0"),
        ((1, [1, 2], 3), "replication factor: expected at most 2"),
        ((1, [], 1), "replication factor: expected at most 0"),
        ((1, [1, 2, 1], 1), "brokers: 1 given twice"),
        ((1, [1, 2], 1, {1: "a"}), "racks: expected a rack for each broker, found no rack for 2"),
        ((1, [1], 1, {1: "a", 2: "a"}), "racks: .* found a rack for 2, which is not a given broker"),
        ((1, [1], 1, None, -1), "start index: expected at least 0, found -1"),
    ],
)
def test_what_cannot_be_assigned_is_refused(arguments, said):
    with pytest.raises(ConfigError, match=said):
        assign_replicas(*arguments)
