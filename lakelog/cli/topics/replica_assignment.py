"""Assigns a topic's partitions to the brokers of a cluster, as Kafka's tools do (AdminUtils). All functions are pure.

The brokers form a circle. The first replica of partition i is on broker i + start. The other replicas are on the
brokers that follow in the circle, after a shift. The shift skips some brokers. The shift grows by one with each round
of partitions, so that the followers of one broker's partitions are not all on the same neighbouring broker:

    5 brokers, 3 replicas, start and shift 0        partition  0  1  2  3  4 | 5  6  7  8  9
                                                    1st        0  1  2  3  4 | 0  1  2  3  4
                                                    2nd        1  2  3  4  0 | 2  3  4  0  1
                                                    3rd        2  3  4  0  1 | 3  4  0  1  2

With racks, the circle contains one broker of each rack, then a second broker of each rack, and so on. A rack gets a
second replica of a partition only after each rack has one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import zip_longest

from storage_engine.errors import ConfigError

_ONE_RACK = ""


def assign_replicas(
    partitions: int,
    brokers: Sequence[int],
    replication_factor: int,
    racks: Mapping[int, str] | None = None,
    start_index: int = 0,
    shift: int = 0,
) -> list[list[int]]:
    """The brokers of each partition, the preferred leader first.

    Args:
        partitions: the number of partitions.
        brokers: ids of brokers. Without racks the circle has this order.
        replication_factor: the number of replicas of each partition.
        racks: the rack of each broker, by the broker's id; None: racks are not used.
        start_index: where in the circle partition 0 begins. Kafka chooses it at random.
        shift: the shift of the first round. Kafka chooses it at random.

    Raises:
        ConfigError: there is no partition or no replica; there are more replicas than brokers; an id is given
            twice; only some of the brokers have a rack; or a rack is given for an id that is not among the brokers.
    """
    _check(partitions, brokers, replication_factor, racks, start_index, shift)
    rack_of = racks or dict.fromkeys(brokers, _ONE_RACK)
    circle = _circle(rack_of) if racks else list(brokers)
    rack_count = len(set(rack_of.values()))
    assignment = []
    for partition in range(partitions):
        first = (partition + start_index) % len(circle)
        moved = (shift + partition // len(circle)) * rack_count
        assignment.append(_replicas(circle, rack_of, rack_count, replication_factor, first, moved))
    return assignment


def _replicas(
    circle: Sequence[int], rack_of: Mapping[int, str], rack_count: int, replication_factor: int, first: int, moved: int
) -> list[int]:
    replicas = [circle[first]]
    taken = {rack_of[circle[first]]}
    step = moved
    while len(replicas) < replication_factor:
        broker = circle[(first + 1 + step % (len(circle) - 1)) % len(circle)]
        step += 1
        if broker not in replicas and (rack_of[broker] not in taken or len(taken) == rack_count):
            replicas.append(broker)
            taken.add(rack_of[broker])
    return replicas


def _circle(rack_of: Mapping[int, str]) -> list[int]:
    """One broker of each rack in turn, with racks in the order of their names and brokers in the order of their ids."""
    names = sorted(set(rack_of.values()))
    columns = [sorted(broker for broker, rack in rack_of.items() if rack == name) for name in names]
    return [broker for row in zip_longest(*columns) for broker in row if broker is not None]


def _check(
    partitions: int,
    brokers: Sequence[int],
    replication_factor: int,
    racks: Mapping[int, str] | None,
    start_index: int,
    shift: int,
) -> None:
    for name, value, least in (
        ("partitions", partitions, 1),
        ("replication factor", replication_factor, 1),
        ("start index", start_index, 0),
        ("shift", shift, 0),
    ):
        if value < least:
            raise ConfigError(name, f"expected at least {least}, found {value}")
    twice = sorted(broker for broker, times in Counter(brokers).items() if times > 1)
    if twice:
        raise ConfigError("brokers", f"{_listed(twice)} given twice", "Name each broker once.")
    if replication_factor > len(brokers):
        raise ConfigError(
            "replication factor", f"expected at most {len(brokers)}, the number of brokers, found"
            f" {replication_factor}", "Give more brokers, or fewer replicas.",
        )  # fmt: skip
    if racks is not None and set(racks) != set(brokers):
        missing, unknown = sorted(set(brokers) - set(racks)), sorted(set(racks) - set(brokers))
        problem = (
            f"no rack for {_listed(missing)}"
            if missing
            else f"a rack for {_listed(unknown)}, which is not a given broker"
        )
        raise ConfigError(
            "racks",
            f"expected a rack for each broker, found {problem}",
            "Give the rack of every broker, or give no racks.",
        )


def _listed(brokers: Sequence[int]) -> str:
    return ", ".join(map(str, brokers))


def reassignment(topic: str, assignment: Sequence[Sequence[int]]) -> dict[str, object]:
    """The document that kafka-reassign-partitions reads as --reassignment-json-file."""
    partitions = [
        {"topic": topic, "partition": number, "replicas": list(replicas), "log_dirs": ["any"] * len(replicas)}
        for number, replicas in enumerate(assignment)
    ]
    return {"version": 1, "partitions": partitions}
