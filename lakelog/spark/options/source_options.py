"""Reads and checks the options of the source: the options of Spark's Kafka source, with the same meaning, and `root`.

    topics           subscribe, subscribePattern or assign
    start            startingTimestamp, startingOffsetsByTimestamp or startingOffsets
    end of a batch   endingTimestamp, endingOffsetsByTimestamp or endingOffsets
    micro-batches    maxOffsetsPerTrigger, minOffsetsPerTrigger, maxTriggerDelay
    tasks            minPartitions, maxRecordsPerPartition
    rows             includeHeaders, kafka.isolation.level
    lost records     failOnDataLoss
    groups           kafka.group.id or groupIdPrefix; holdsBack, which Kafka's source does not have
    root             root; without it the environment variable LAKELOG_ROOT, or the session's spark.lakelog.root

`kafka.` options for a connection are accepted, and have no effect. Like Spark's Kafka source, this source refuses an
option that it knows but does not support, and accepts an unknown option. When Spark asks for the schema, Spark does not
say whether it will read a batch or a stream. So `common_options` checks only the rules that hold for batches and for
streams. The other rules are checked when the batch or stream is planned.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from lakelog.spark.options.bounds import Bound, Edge, check_batch, ending_bound, starting_bound
from lakelog.spark.options.topic_choice import TopicChoice, topic_choice
from lakelog.spark.options.user_options import LAKELOG, UserOptions, without_spaces, wrong
from storage_engine.config import shown
from storage_engine.log.isolation import Isolation

ROOT_VARIABLE = "LAKELOG_ROOT"
SESSION_ROOT = "spark.lakelog.root"
_SESSION_ROOT_VARIABLE = "LAKELOG_SESSION_ROOT"
"""The environment variable that passes SESSION_ROOT to Spark's Python workers, which cannot read settings."""

_REFUSED = {
    "kafka.auto.offset.reset": "Set startingOffsets, which says where a new read begins.",
    "kafka.key.deserializer": "Keys are bytes; convert them with Spark's functions.",
    "kafka.value.deserializer": "Values are bytes; convert them with Spark's functions.",
    "kafka.enable.auto.commit": "Leave this option out: Spark stores the positions of a stream.",
    "kafka.interceptor.classes": "Leave this option out: this source has no interceptors.",
}
_UNUSED_BITS = {"fetchOffset.numRetries": 32, "fetchOffset.retryIntervalMs": 64, "kafkaConsumer.pollTimeoutMs": 64}
"""Options of Kafka's source that have no effect here. Their values must be whole numbers of this many bits."""
_ISOLATION = "kafka.isolation.level"
_GROUP = "kafka.group.id"
_HOLDS_BACK = "holdsBack"
_KNOWN_KAFKA = {_ISOLATION, _GROUP, "kafka.bootstrap.servers"}
"""Options that are used here, or that every program for Kafka's source has. No warning mentions them."""


@dataclass(frozen=True)
class CommonOptions:
    """The options that are the same for a batch and a stream.

    root: the root's path or URI.
    starting: the start of a batch or a new stream. None if no option gives the start: then a batch begins at the
        earliest offsets, and a stream at the latest.
    latest_if_no_match: if no record is at or after the starting time, begin at the latest offset. If false, this is an
        error.
    min_partitions: the smallest number of tasks.
    max_records: the largest number of offsets in a task.
    ignored: `kafka.` options that have no effect here.
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
    """The limits of a micro-batch, as numbers of offsets.

    most: the largest number of offsets in a micro-batch, approximately.
    least: if fewer offsets are unread, the stream waits, for at most max_delay_ms.
    """

    most: int | None = None
    least: int | None = None
    max_delay_ms: int = 0


@dataclass(frozen=True)
class StreamGroup:
    """The group that shows the positions of a stream.

    holds_back: whether cleaning waits for the stream; None: no change.
    """

    name: str
    holds_back: bool | None


def common_options(options: Mapping[str, str]) -> CommonOptions:
    """
    Raises:
        ConfigError: an option is missing, or has a value that neither a batch nor a stream allows.
    """
    given = UserOptions(options)
    topics = topic_choice(given)
    for name, remedy in _REFUSED.items():
        if given.get(name) is not None:
            raise wrong(name, "is not supported", remedy)
    for name, bits in _UNUSED_BITS.items():
        given.whole_number(name, bits=bits)
    if given.get("minOffsetsPerTrigger") is not None and given.get("maxOffsetsPerTrigger") is not None:
        _check_limits(given)
    return CommonOptions(
        root=root_option(given),
        topics=topics,
        starting=starting_bound(given),
        latest_if_no_match=given.choice("startingOffsetsByTimestampStrategy", "error", "latest") == "latest",
        min_partitions=given.positive("minPartitions", bits=32),
        max_records=given.positive("maxRecordsPerPartition"),
        include_headers=given.flag("includeHeaders", default=False),
        fail_on_data_loss=given.flag("failOnDataLoss", default=True),
        isolation=_isolation(given),
        ignored=tuple(name for name in given if name.startswith("kafka.") and name not in _KNOWN_KAFKA),
    )


def batch_bounds(options: Mapping[str, str]) -> tuple[Bound, Bound]:
    """The start and the end of a batch. By default everything is read.

    Raises:
        ConfigError: an error of starting_bound or check_batch.
    """
    given = UserOptions(options)
    starting, ending = starting_bound(given) or Edge.EARLIEST, ending_bound(given) or Edge.LATEST
    check_batch(starting, ending)
    return starting, ending


def stream_limits(options: Mapping[str, str]) -> StreamLimits:
    """The limits of a stream's micro-batches.

    Raises:
        ConfigError: a limit has a wrong value, or an option gives an end, which a stream does not have.
    """
    given = UserOptions(options)
    for name in ("endingOffsets", "endingOffsetsByTimestamp"):
        if given.get(name) is not None:
            raise wrong(name, "is given for a stream, which does not end", "Leave this option out, or read a batch.")
    most = given.whole_number("maxOffsetsPerTrigger")
    if most is not None and most < 0:
        raise wrong("maxOffsetsPerTrigger", f"found {most}", "Give a whole number of at least 0.")
    delay = given.duration_ms("maxTriggerDelay", "15m")
    return StreamLimits(most, given.whole_number("minOffsetsPerTrigger"), delay)


def stream_group(options: Mapping[str, str], new_id: str) -> StreamGroup | None:
    """The group of a stream; None if no option names one. As in Kafka's source, kafka.group.id is the name of the group,
    and with groupIdPrefix each start of the query has its own group.

    Args:
        new_id: distinguishes this start of the query from all others.

    Raises:
        ConfigError: the name is empty, or holdsBack is wrong or is given without a group.
    """
    given = UserOptions(options)
    name, prefix = given.get(_GROUP), given.get("groupIdPrefix")
    for option, value in ((_GROUP, name), ("groupIdPrefix", prefix)):
        if value is not None and not value.strip():
            raise wrong(option, "found an empty name", "Name the group, or leave the option out.")
    holds_back = given.flag(_HOLDS_BACK, default=False) if given.get(_HOLDS_BACK) is not None else None
    if name is None and prefix is None:
        if holds_back is not None:
            raise wrong(
                _HOLDS_BACK,
                "is given without a group",
                f"Give the option {_GROUP}. Cleaning then waits for this group.",
            )
        return None
    return StreamGroup(f"{prefix}-{new_id}" if name is None else name, holds_back)


def worker_environment(session_root: str | None) -> dict[str, str]:
    """The environment variables with which Spark's Python workers find the root.

    Args:
        session_root: the session's spark.lakelog.root.
    """
    found = {ROOT_VARIABLE: os.environ.get(ROOT_VARIABLE), _SESSION_ROOT_VARIABLE: session_root}
    return {name: value for name, value in found.items() if value}


def root_option(given: UserOptions) -> str:
    """The root: from the option, LAKELOG_ROOT or spark.lakelog.root, in this order.

    Raises:
        ConfigError: none of them names a root.
    """
    for root in (given.get("root"), os.environ.get(ROOT_VARIABLE), os.environ.get(_SESSION_ROOT_VARIABLE)):
        if root is not None and root.strip():
            return root
    raise wrong(
        "root", "is missing; the root is the path or URI that contains the topics",
        f"Give the option root, or set the environment variable {ROOT_VARIABLE} or the session's {SESSION_ROOT} before"
        " lakelog.register(spark) is called.",
    )  # fmt: skip


def _check_limits(given: UserOptions) -> None:
    least, most = given.whole_number("minOffsetsPerTrigger"), given.whole_number("maxOffsetsPerTrigger")
    if least is not None and most is not None and least > most:
        raise wrong(
            "minOffsetsPerTrigger",
            f"is {least}, which is higher than the value {most} of maxOffsetsPerTrigger",
            "Lower minOffsetsPerTrigger, or raise maxOffsetsPerTrigger.",
        )


def _isolation(given: UserOptions) -> Isolation:
    """The isolation. As in Kafka's consumer, the words must be in lower case, and spaces around them are ignored."""
    value = given.get(_ISOLATION)
    if value is None:
        return Isolation.READ_UNCOMMITTED
    word = without_spaces(value)
    if word not in list(Isolation):
        raise wrong(_ISOLATION, f"found {shown(value)}", f"Choose {' or '.join(Isolation)}.")
    return Isolation(word)


def ignored_warning(options: CommonOptions) -> str | None:
    """The warning about options that have no effect; None if there are none."""
    if not options.ignored:
        return None
    return f"source {LAKELOG}: options for a connection to Kafka have no effect here: {', '.join(options.ignored)}"
