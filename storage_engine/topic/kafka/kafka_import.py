"""Imports topics from a plain Kafka log directory into a root. The directory was written by a broker or by an export.
The import also works if this broker or this export crashed.

If the root does not have the topic, the import creates it with the directory's log start offsets, first dirty
offsets, leader epochs, producers and segments (topic.kafka.new_topic). If the root has the topic, both logs must
contain the same batches up to the topic's end; otherwise the import is refused. If the batches are the same, the
import appends the later batches (topic.kafka.continued_topic).

Only the .log files of the directory are needed: indexes are derived from them, and every CRC is checked. A crash can
leave an incomplete batch at the end of a log. This batch is not imported. A log is refused if its recovery point or an
index proves that it has lost records. By default, files are copied. With `move`, files are linked, and the directory's
files are deleted after the commit.

An imported topic becomes visible when one version of its state is committed. A crash before this commit leaves files
that no version names. A crash after this commit can leave moved files in the directory. The next import finds no new
batch in these files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress

from storage_engine.errors import CorruptionError, LogError
from storage_engine.kafka_dir.log_directory import FoundPartition, LogDirectory, partition_of, refuse_root
from storage_engine.kafka_dir.recovery_report import lost_in
from storage_engine.log.checkpoint import LEADER_EPOCHS, LOCK, PARTITION_METADATA
from storage_engine.log.filenames import INDEX, LOG, SNAPSHOT, TIME_INDEX, TRANSACTION_INDEX, is_offset_name
from storage_engine.progress import NO_PROGRESS, Progress
from storage_engine.topic.chain.topic_state import TopicState
from storage_engine.topic.kafka.broker_groups import CONSUMER_OFFSETS, broker_groups, take_groups
from storage_engine.topic.kafka.continued_topic import continue_topic
from storage_engine.topic.kafka.new_topic import make_topic
from storage_engine.topic.kafka.segment_import import ImportedTopic, SegmentImporter, remedy
from storage_engine.topic.topics import Topics

_INTERNAL = "__"
_SEGMENT_FILES = (LOG, INDEX, TIME_INDEX, TRANSACTION_INDEX, SNAPSHOT)
_OTHER_FILES = (LEADER_EPOCHS, PARTITION_METADATA)


def topics_in(directory: LogDirectory) -> tuple[str, ...]:
    """The topics that are imported by default: all except Kafka's internal topics, whose names begin with "__"."""
    names = dict.fromkeys(each.topic for each in directory.partitions)
    return tuple(name for name in names if not name.startswith(_INTERNAL))


def skipped_folders(directory: LogDirectory) -> tuple[str, ...]:
    """The folders that are not imported by default: partitions of internal topics, and folders that are not partitions,
    for example those of deleted topics. The groups in CONSUMER_OFFSETS are imported (import_groups)."""
    folders = sorted(entry.name for entry in directory.storage.entries("") if entry.is_folder)
    wanted = (*topics_in(directory), CONSUMER_OFFSETS)
    return tuple(name for name in folders if (found := partition_of(name)) is None or found.topic not in wanted)


def import_topic(
    topics: Topics,
    directory: LogDirectory,
    name: str,
    configs: Mapping[str, object] = {},
    *,
    move: bool = False,
    progress: Progress = NO_PROGRESS,
) -> ImportedTopic:
    """Import one topic, or the batches beyond the end of an existing topic.

    Args:
        configs: the overrides of a new topic. A log directory does not contain them.
        move: move the files into the root instead of copying them. The directory and the root must be on the same file
            system.
        progress: receives the bytes of the segments that are read.

    Raises:
        UnknownTopicError: the directory does not have this topic.
        CorruptionError: a partition or a segment is missing, or a log is damaged before its end.
        LostRecordsError: a checkpoint or an index proves records that a log does not have.
        TopicExistsError: the topic exists, and the log does not continue it.
        ConfigError: overrides were given for an existing topic, or an override is invalid.
        UnsupportedError: files cannot be moved into this root.
        ConflictError: the topic has changed during the import. Nothing was imported.
        UsageError: `move` is set, and the directory is the view of a root.
        StorageError: the directory or the root refused, or a broker runs on the directory. Nothing was imported.
    """
    if move:
        refuse_root(directory.path)
    with _hold_off_brokers(directory):
        state = topics.find(name)
        found = _all_partitions(directory, name, len(state.partitions) if state else 0)
        _refuse_losses(directory, found, state)
        progress.expect(size=sum(each.state.size for each in found))
        importer = SegmentImporter(topics, directory, move, progress)
        try:
            if state is None:
                imported = make_topic(importer, name, found, configs)
            else:
                imported = continue_topic(importer, state, found, configs)
        except BaseException:
            with suppress(LogError):  # the first error is the more useful one
                importer.forget()
            raise
        if move:
            _remove(directory, found)
        return imported


def import_groups(topics: Topics, directory: LogDirectory, imported: Sequence[TopicState]) -> dict[str, int]:
    """Import the committed offsets of a broker's groups into the topics that were imported from the same directory.

    Args:
        imported: the topics that were imported from this directory.

    Returns:
        The number of imported groups, for each topic that got such groups.

    Raises:
        CorruptionError: the broker's offsets, or the file of a group in the root, are damaged. The topics stay imported.
        StorageError: the directory or the root refused, or a broker runs on the directory.
    """
    with _hold_off_brokers(directory):
        groups = broker_groups(directory)
    counts = {state.topic: take_groups(topics, state, groups.get(state.topic, {})) for state in imported}
    return {topic: count for topic, count in counts.items() if count}


def _hold_off_brokers(directory: LogDirectory) -> AbstractContextManager[None]:
    """Lock a directory against brokers. A broker creates the lock file before all other files, so without that file no
    broker runs on the directory."""
    there = any(entry.name == LOCK for entry in directory.storage.entries(""))
    return directory.storage.hold_shared(LOCK) if there else nullcontext()


def _all_partitions(directory: LogDirectory, name: str, least: int) -> tuple[FoundPartition, ...]:
    """All partitions of a topic in the directory.

    Raises:
        CorruptionError: a partition from 0 to the largest number, or to `least` - 1, is missing.
    """
    there = {each.number: each for each in directory.partitions_of(name)}
    for number in range(max(least, max(there) + 1)):
        if number not in there:
            raise CorruptionError(
                str(directory.path), 0, f"a folder for each partition of topic {name}",
                f"no folder {name}-{number}, but {len(there)} folders of other partitions",
                "The missing folder is in another log directory (log.dirs) of this broker, or on another broker."
                " Copy the folder into this directory.",
            )  # fmt: skip
    with remedy(directory):
        return tuple(directory.inspect(there[number]) for number in range(len(there)))


def _refuse_losses(directory: LogDirectory, found: Sequence[FoundPartition], state: TopicState | None) -> None:
    """Raise the first loss of records in these partitions. A log that ends before the root's topic does not continue the
    topic; continued_topic refuses such a log with a better error.

    Raises:
        CorruptionError: a segment is missing.
        LostRecordsError: a checkpoint or an index proves records that a log does not have.
    """
    known = () if state is None else state.partitions
    if all(each.state.high_watermark >= part.high_watermark for each, part in zip(found, known, strict=False)):
        for loss in lost_in(directory, found):
            raise loss


def _remove(directory: LogDirectory, found: Sequence[FoundPartition]) -> None:
    """Delete the files of these partitions, oldest first, and then the empty folders."""
    for each in found:
        folder = each.name.folder
        for entry in sorted(directory.storage.entries(folder), key=lambda entry: entry.name):
            stem, dot, suffix = entry.name.partition(".")
            if entry.name in _OTHER_FILES or (is_offset_name(stem) and dot + suffix in _SEGMENT_FILES):
                directory.storage.delete(f"{folder}/{entry.name}")
        with suppress(OSError):  # a folder with other files is not deleted
            (directory.path / folder).rmdir()
