"""`lakelog topics reassign`."""

from __future__ import annotations

import json

import pytest


def replicas(ended) -> list[list[int]]:
    assert ended.status == 0, ended.err
    return [each["replicas"] for each in json.loads(ended.out)["partitions"]]


def test_a_topic_of_the_root_has_as_many_partitions_as_it_has(lakelog):
    lakelog("topics", "create", "orders", "--partitions", "4")
    assert replicas(lakelog("topics", "reassign", "--topic", "orders", "--brokers", "3")) == [[0], [1], [2], [0]]


def test_a_topic_need_not_be_there_where_the_partitions_are_given(lakelog):
    arguments = ("--topic", "planned", "--brokers", "4,7,9", "--replication-factor", "2", "--partitions", "3")
    ended = lakelog("topics", "reassign", *arguments)
    assert replicas(ended) == [[4, 7], [7, 9], [9, 4]]
    assert json.loads(ended.out)["partitions"][0] == {
        "topic": "planned", "partition": 0, "replicas": [4, 7], "log_dirs": ["any", "any"],
    }  # fmt: skip
    assert replicas(lakelog("topics", "reassign", *arguments, "--start-index", "1", "--shift", "1")) == [
        [7, 4], [9, 7], [4, 9],
    ]  # fmt: skip
    assert replicas(lakelog("topics", "reassign", *arguments, "--racks", "4=a,7=b,9=b")) == [[4, 7], [7, 4], [9, 4]]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--brokers", "1,2,x"), "--brokers: expected a broker id"),
        (("--brokers", "1,1"), "--brokers: 1 given twice"),
        (("--brokers", "99999999999"), "--brokers: expected at most 10000 brokers"),
        (("--brokers", "9" * 5000), "--brokers: expected at most 10000 brokers"),
        (("--brokers", "1," + "9" * 5000), "--brokers: expected a broker id of at most 2147483647"),
        (("--brokers", "1,2147483648"), "--brokers: expected a broker id of at most 2147483647"),
        (("--brokers", "2", "--racks", f"{'9' * 5000}=a"), "--racks: expected a broker id of at most 2147483647"),
        (("--brokers", "2", "--partitions", "10001"), "--partitions: expected at most 10000"),
        (("--brokers", "2", "--replication-factor", "3"), "--replication-factor: expected at most 2"),
        (
            ("--brokers", "2", "--racks", "0=a"),
            "--racks: expected a rack for each broker, found no rack for 1",
        ),
        (("--brokers", "2", "--racks", "0=a,0=b"), "--racks: broker 0 is given twice"),
        (("--brokers", "2", "--racks", "a"), "--racks: expected ID=RACK"),
    ],
)
def test_what_cannot_be_assigned_is_a_mistake_of_usage(lakelog, options, said):
    ended = lakelog("topics", "reassign", "--topic", "t", "--partitions", "1", *options)
    assert (ended.status, ended.out) == (2, "")
    assert said in ended.err


def test_a_topic_that_is_not_there_needs_its_number_of_partitions(lakelog):
    lakelog("topics", "create", "t")
    ended = lakelog("topics", "reassign", "--topic", "absent", "--brokers", "1")
    assert ended.status == 1
    assert "absent" in ended.err
