"""The options of the source, checked: those of Spark's Kafka source with its meaning and its refusals, and `root`.

    what is read     subscribe, subscribePattern or assign
    from, up to      startingTimestamp, startingOffsetsByTimestamp or startingOffsets; for a batch the same with ending
    of a stream      maxOffsetsPerTrigger, minOffsetsPerTrigger, maxTriggerDelay
    of tasks         minPartitions, maxRecordsPerPartition
    of rows          includeHeaders, kafka.isolation.level
    losses           failOnDataLoss
    positions        kafka.group.id or groupIdPrefix; holdsBack, which Kafka's source does not have
    where            root; without it the environment variable LAKELOG_ROOT, or the session's spark.lakelog.root

`kafka.` options for a connection mean nothing here and are accepted. Options that Kafka's source refuses are refused, and
options that nobody knows are accepted, as there. Spark asks for the schema without saying whether a batch or a stream is
read, so `common_options` checks what holds for both; a batch and a stream check the rest when they are planned.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from lakelog.spark.options.bounds import Bound, Edge, check_batch, ending_bound, starting_bound
from lakelog.spark.options.given import LAKELOG, Given, wrong
from lakelog.spark.options.topic_choice import TopicChoice, topic_choice
from storage_engine.config import shown
from storage_engine.log.isolation import Isolation

ROOT_VARIABLE = "LAKELOG_ROOT"
SESSION_ROOT = "spark.lakelog.root"
_SESSION_ROOT_VARIABLE = "LAKELOG_SESSION_ROOT"
"""The session's setting on its way to Spark's Python workers, which see no settings."""

_REFUSED = {
    "kafka.auto.offset.reset": "Set startingOffsets, which says where a new read begins.",
    "kafka.key.deserializer": "Keys are given as bytes; turn them into something else with Spark's functions.",
    "kafka.value.deserializer": "Values are given as bytes; turn them into something else with Spark's functions.",
    "kafka.enable.auto.commit": "Leave it out: Spark keeps the positions of a stream.",
    "kafka.interceptor.classes": "Leave it out: nothing changes records on their way.",
}
_ISOLATION = "kafka.isolation.level"
_GROUP = "kafka.group.id"
_HOLDS_BACK = "holdsBack"
_KNOWN_KAFKA = {_ISOLATION, _GROUP, "kafka.bootstrap.servers"}
"""Options that are used here, or that every program for Kafka's source has: nobody has to be told of them."""


@dataclass(frozen=True)
class CommonOptions:
    """What a batch and a stream have in common.

    root: the root's path or URI.
    starting: where a batch or a new stream begins; None where no option says it: a batch with the earliest offsets, a stream
        with the latest.
    latest_if_no_match: a time that no record has reached means the latest offset, and is no error.
    min_partitions: the least number of tasks. max_records: the most offsets of a task.
    ignored: `kafka.` options that mean nothing here.
    """

    root: str
    topics: TopicChoice
    starting: Bound | None
    latest_if_no_match: bool
    min_partitions: int | None
    max_records: int | None
    include_headers: bool
    fail_on_data_loss: bool
    isolation: Isolation
    ignored: tuple[str, ...]


@dataclass(frozen=True)
class StreamLimits:
    """How much a micro-batch takes, in offsets.

    most: at most. least: with fewer than these the stream waits, for max_delay_ms at most.
    """

    most: int | None = None
    least: int | None = None
    max_delay_ms: int = 0


@dataclass(frozen=True)
class StreamGroup:
    """The group that shows the positions of a stream.

    holds_back: whether cleaning waits for the stream; None leaves that as it was.
    """

    name: str
    holds_back: bool | None


def common_options(options: Mapping[str, str]) -> CommonOptions:
    """
    Raises:
        ConfigError: an option is missing, or has a value that it may not have in a batch nor in a stream.
    """
    given = Given(options)
    topics = topic_choice(given)
    for name, remedy in _REFUSED.items():
        if given.get(name) is not None:
            raise wrong(name, "is not supported", remedy)
    if given.get("minOffsetsPerTrigger") is not None and given.get("maxOffsetsPerTrigger") is not None:
        _check_limits(given)
    return CommonOptions(
        root=root_option(given),
        topics=topics,
        starting=starting_bound(given),
        latest_if_no_match=given.choice("startingOffsetsByTimestampStrategy", "error", "latest") == "latest",
        min_partitions=given.positive("minPartitions"),
        max_records=given.positive("maxRecordsPerPartition"),
        include_headers=given.flag("includeHeaders", default=False),
        fail_on_data_loss=given.flag("failOnDataLoss", default=True),
        isolation=_isolation(given),
        ignored=tuple(name for name in given if name.startswith("kafka.") and name not in _KNOWN_KAFKA),
    )


def batch_bounds(options: Mapping[str, str]) -> tuple[Bound, Bound]:
    """Where a batch begins and ends: by default everything is read.

    Raises:
        ConfigError: as starting_bound and check_batch.
    """
    given = Given(options)
    starting, ending = starting_bound(given) or Edge.EARLIEST, ending_bound(given) or Edge.LATEST
    check_batch(starting, ending)
    return starting, ending


def stream_limits(options: Mapping[str, str]) -> StreamLimits:
    """How much a micro-batch of a stream takes.

    Raises:
        ConfigError: a limit has a value that it may not have, or an option says where the stream would end.
    """
    given = Given(options)
    for name in ("endingOffsets", "endingOffsetsByTimestamp"):
        if given.get(name) is not None:
            raise wrong(name, "is given for a stream, which does not end", "Leave it out, or read a batch.")
    most = given.whole_number("maxOffsetsPerTrigger")
    if most is not None and most < 0:
        raise wrong("maxOffsetsPerTrigger", f"found {most}", "Give a whole number of at least 0.")
    delay = given.duration_ms("maxTriggerDelay", "15m")
    return StreamLimits(most, given.whole_number("minOffsetsPerTrigger"), delay)


def stream_group(options: Mapping[str, str], new_id: str) -> StreamGroup | None:
    """The group of a stream; None if no option names one. As in Kafka's source, kafka.group.id is the name of the group,
    and with groupIdPrefix each start of the query is a group of its own.

    Args:
        new_id: tells this start of the query from all others.

    Raises:
        ConfigError: the name is empty, or holdsBack is wrong or has no group.
    """
    given = Given(options)
    name, prefix = given.get(_GROUP), given.get("groupIdPrefix")
    for option, value in ((_GROUP, name), ("groupIdPrefix", prefix)):
        if value is not None and not value.strip():
            raise wrong(option, "found an empty name", "Name the group, or leave the option out.")
    holds_back = given.flag(_HOLDS_BACK, default=False) if given.get(_HOLDS_BACK) is not None else None
    if name is None and prefix is None:
        if holds_back is not None:
            raise wrong(_HOLDS_BACK, "is given without a group", f"Give {_GROUP}: cleaning waits for a group.")
        return None
    return StreamGroup(f"{prefix}-{new_id}" if name is None else name, holds_back)


def worker_environment(session_root: str | None) -> dict[str, str]:
    """What Spark's Python workers need in their environment to find the root.

    Args:
        session_root: the session's spark.lakelog.root.
    """
    found = {ROOT_VARIABLE: os.environ.get(ROOT_VARIABLE), _SESSION_ROOT_VARIABLE: session_root}
    return {name: value for name, value in found.items() if value}


def root_option(given: Given) -> str:
    """The root: from the option, LAKELOG_ROOT or spark.lakelog.root, in this order.

    Raises:
        ConfigError: none of them names a root.
    """
    for root in (given.get("root"), os.environ.get(ROOT_VARIABLE), os.environ.get(_SESSION_ROOT_VARIABLE)):
        if root is not None and root.strip():
            return root
    raise wrong(
        "root", "is missing; the root is the path or URI that contains the topics",
        f"Give the option root, the environment variable {ROOT_VARIABLE} or the session's {SESSION_ROOT}.",
    )  # fmt: skip


def _check_limits(given: Given) -> None:
    least, most = given.whole_number("minOffsetsPerTrigger"), given.whole_number("maxOffsetsPerTrigger")
    if least is not None and most is not None and least > most:
        raise wrong("minOffsetsPerTrigger", f"{least} is higher than maxOffsetsPerTrigger, {most}", "Lower it.")


def _isolation(given: Given) -> Isolation:
    """Kafka's consumer takes these words in small letters only."""
    value = given.get(_ISOLATION)
    if value is None:
        return Isolation.READ_UNCOMMITTED
    if value not in list(Isolation):
        raise wrong(_ISOLATION, f"found {shown(value)}", f"Choose {' or '.join(Isolation)}.")
    return Isolation(value)


def ignored_warning(options: CommonOptions) -> str | None:
    """What to tell a user of options that mean nothing here; None where there are none."""
    if not options.ignored:
        return None
    return f"source {LAKELOG}: options for a connection to Kafka mean nothing here: {', '.join(options.ignored)}"
