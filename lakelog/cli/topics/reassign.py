"""`lakelog topics reassign`: prints the brokers on which a cluster would put a topic's replicas, in the format of
kafka-reassign-partitions.

Use the command to plan how a topic is moved to a cluster. If --partitions gives the number of partitions, the topic
need not exist. Nothing is changed.
"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from lakelog.cli.options import ConfOption, RootOption, TopicOption, open_topics
from lakelog.cli.output import write_line
from storage_engine.config import INT_MAX
from storage_engine.errors import ConfigError, UsageError

_MOST_BROKERS = 10_000
"""A larger number is probably the id of one broker, not a count of brokers."""


def reassign(
    topic: TopicOption,
    brokers: Annotated[
        str,
        typer.Option(
            "--brokers", metavar="IDS|N", help="Ids of brokers, such as 1,2,3. Or a number N: brokers 0 to N-1."
        ),
    ],
    replication_factor: Annotated[
        int, typer.Option("--replication-factor", metavar="N", help="Number of replicas of each partition.")
    ] = 1,
    racks: Annotated[
        str | None,
        typer.Option("--racks", metavar="ID=RACK,ID=RACK", help="The rack of each broker, such as 1=a,2=b."),
    ] = None,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", metavar="N", help="Number of partitions. Default: the topic's current number."),
    ] = None,
    start_index: Annotated[
        int,
        typer.Option(
            "--start-index", metavar="N", help="Index of the broker that gets the first replica of partition 0."
        ),
    ] = 0,
    shift: Annotated[
        int,
        typer.Option(
            "--shift",
            metavar="N",
            help="In the first round, skip this number of brokers between the first replica and the other replicas.",
        ),
    ] = 0,
    root: RootOption = None,
    conf: ConfOption = None,
) -> None:
    """Assign the replicas of a topic to the brokers of a cluster. The output is JSON for kafka-reassign-partitions."""
    from lakelog.cli.topics.replica_assignment import assign_replicas, reassignment
    from storage_engine.topic.topics import MOST_PARTITIONS
    from storage_engine.topic_name import check_topic_name

    check_topic_name(topic)
    if partitions is not None and partitions > MOST_PARTITIONS:
        raise UsageError("--partitions", f"expected at most {MOST_PARTITIONS}; found {partitions}")
    ids, rack_of = _broker_ids(brokers), _racks(racks)
    count = len(open_topics(root, conf).state(topic).partitions) if partitions is None else partitions
    try:
        assignment = assign_replicas(count, ids, replication_factor, rack_of, start_index, shift)
    except ConfigError as error:
        raise UsageError(f"--{error.place.replace(' ', '-')}", error.problem, error.remedy) from None
    write_line(json.dumps(reassignment(topic, assignment), separators=(",", ":")))


def _broker_ids(text: str) -> list[int]:
    if "," in text:
        return [_broker_id("--brokers", each) for each in text.split(",")]
    count = _number("--brokers", text)
    if count > _MOST_BROKERS:
        raise UsageError(
            "--brokers", f"expected at most {_MOST_BROKERS} brokers; found more", "Name the brokers, for example 1,2,3."
        )
    return list(range(count))


def _racks(text: str | None) -> dict[int, str] | None:
    if text is None:
        return None
    rack_of: dict[int, str] = {}
    for pair in text.split(","):
        broker, equals, rack = pair.partition("=")
        if not equals or not rack.strip():
            raise UsageError("--racks", f"expected ID=RACK; found {pair!r}", "For example 1=a,2=b,3=a.")
        number = _broker_id("--racks", broker)
        if number in rack_of:
            raise UsageError("--racks", f"broker {number} is given twice", "Give the broker only once.")
        rack_of[number] = rack.strip()
    return rack_of


def _broker_id(option: str, text: str) -> int:
    number = _number(option, text)
    if number > INT_MAX:
        raise UsageError(option, f"expected a broker id of at most {INT_MAX}; found a larger number")
    return number


def _number(option: str, text: str) -> int:
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit()):
        raise UsageError(option, f"expected a broker id (a whole number of at least 0); found {text!r}")
    # Python refuses to parse a number of thousands of digits. So only the first digits are parsed. If digits are left
    # out, the parsed number is already larger than the largest broker id.
    return int(digits.lstrip("0")[: len(str(INT_MAX)) + 1] or "0")
