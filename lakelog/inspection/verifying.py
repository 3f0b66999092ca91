"""Verifies a root or plain Kafka log directories. If the caller asks for a repair, this module restores a wrong file,
provided that other files show the correct content.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from storage_engine.errors import UnknownTopicError
from storage_engine.kafka_dir.log_directory import LogDirectory, TopicPartition, refuse_root
from storage_engine.log.checkpoint import LOCK
from storage_engine.topic.topics import Topics
from storage_engine.topic_name import check_topic_name
from storage_engine.verify.directory.directory_check import check_directory, check_together
from storage_engine.verify.directory.directory_repair import repair_directory
from storage_engine.verify.findings import Finding, Restored, problems
from storage_engine.verify.root.root_check import check_root
from storage_engine.verify.root.root_repair import repair_root
from storage_engine.verify.root.state_repair import repair_documents
from storage_engine.verify.segment_check import CheckedSegment, Options


@dataclass(frozen=True)
class Scope:
    """What is verified.

    topic, partition: only this topic, or this partition; None for all.
    threads: the number of partitions that are checked at the same time; None for one per core.
    repair: restore damaged files if other files show the correct content.
    """

    topic: str | None = None
    partition: int | None = None
    threads: int | None = None
    repair: bool = False

    @property
    def at_once(self) -> int:
        """The number of partitions that are checked at the same time."""
        return self.threads or os.cpu_count() or 1


@dataclass(frozen=True)
class Verification:
    """The result of a verification, and of the repair if there was one.

    found: the findings before the repair.
    left: the findings after the repair. If there was no repair, `left` is the same as `found`.
    restored: the documents that the repair restored.
    unreadable: the topics whose segments were not checked because their states cannot be read.
    segments, batches, bytes: the numbers of segments and batches that the last check read, and the total size of these
        segments.
    """

    found: tuple[Finding, ...]
    left: tuple[Finding, ...]
    restored: tuple[Restored, ...]
    unreadable: tuple[str, ...]
    segments: int
    batches: int
    bytes: int

    @property
    def problems(self) -> list[Finding]:
        """The findings of `left` that are problems, not notes. The list is empty if nothing is wrong."""
        return problems(self.left)


def verify_root(topics: Topics, scope: Scope, options: Options) -> Verification:
    """Check every invariant of a root against the bytes.

    Raises:
        UnknownTopicError: there is no such topic or partition.
        InvalidTopicNameError: the name is not allowed for a topic.
        StorageError: the repair could not write.
    """
    topic, partition, threads = scope.topic, scope.partition, scope.at_once
    if topic is not None:
        check_topic_name(topic)
    last = checked = check_root(topics, topic, partition, options, threads)
    restored: Sequence[Restored] = ()
    if scope.repair and problems(checked.findings):
        restored = repair_documents(topics, topic)
        repair_root(topics, check_root(topics, topic, partition, options, threads) if restored else checked)
        last = check_root(topics, topic, partition, options, threads)
    return _verification(checked.findings, last.findings, last.segments, sorted(last.unreadable), restored)


def verify_directories(paths: Sequence[Path], scope: Scope, options: Options) -> Verification:
    """Check every invariant of plain Kafka log directories that belong together.

    Raises:
        UnknownTopicError: no directory has such a topic or partition.
        StorageError: a broker uses the directory, or the repair could not write.
    """
    topic, partition = scope.topic, scope.partition
    directories = [LogDirectory(path) for path in paths]
    for directory in directories if scope.repair else ():
        refuse_root(directory.path)
    names = [_chosen(directory, topic, partition) for directory in directories]
    if (topic is not None or partition is not None) and not any(names):
        wanted = "-".join(str(each) for each in (topic, partition) if each is not None)
        raise UnknownTopicError(
            f"topic {topic}" if topic else f"partition {partition}",
            f"no folder of {wanted} in {', '.join(str(path) for path in paths)}",
            "Name the folder that contains the topic-partition folders.",
        )
    with ExitStack() as locks:
        if scope.repair:
            for directory in directories:
                locks.enter_context(directory.storage.hold_exclusive(LOCK))
        checked = [check_directory(*each, options, scope.at_once) for each in zip(directories, names, strict=True)]
        found = left = [finding for each in checked for finding in each.all_findings()] + check_together(checked)
        if scope.repair and problems(found):
            checked = [repair_directory(each, options, scope.at_once) for each in checked]
            left = [finding for each in checked for finding in each.all_findings()] + check_together(checked)
    segments = [segment for each in checked for part in each.partitions.values() for segment in part.segments]
    return _verification(found, left, segments)


def _chosen(directory: LogDirectory, topic: str | None, partition: int | None) -> tuple[TopicPartition, ...]:
    return tuple(
        name for name in directory.partitions if topic in (None, name.topic) and partition in (None, name.number)
    )


def _verification(
    found: Iterable[Finding],
    left: Iterable[Finding],
    segments: Sequence[CheckedSegment],
    unreadable: Iterable[str] = (),
    restored: Iterable[Restored] = (),
) -> Verification:
    return Verification(
        found=tuple(found),
        left=tuple(left),
        restored=tuple(restored),
        unreadable=tuple(unreadable),
        segments=len(segments),
        batches=sum(each.batches for each in segments),
        bytes=sum(each.files.size for each in segments),
    )
