"""Imports a plain Kafka log directory into a root: a broker's directory or an export of ours, cleanly closed or not.

If the root lacks the topic, the import creates it, with the directory's log start offsets, first dirty offsets, leader
epochs, producers and segments, and with its id if that id is free. If the root has the topic, the import appends the
batches after the topic's end, if both logs hold the same batches up to that end. This brings back batches that a broker
appended to an export. They get the leader epoch of the topic's writer, whatever the broker's was. If the logs differ,
the import is refused.

Only the .log files of the directory are needed: indexes are derived from them on the way, every CRC is checked, and a
torn tail, which a crash leaves, is not imported. Files are copied or, with `move`, linked. With `move` the directory's
files are removed after the commit.

One version of the state makes a topic visible. A crash before that version leaves files that no version names. A crash
after it, before the moved files are removed, leaves files in the directory; the next import finds nothing new in them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress

from storage_engine.errors import CorruptionError, LogError
from storage_engine.kafka_dir.log_directory import FoundPartition, LogDirectory, partition_of, refuse_view
from storage_engine.log.checkpoint import LEADER_EPOCHS, LOCK, PARTITION_METADATA
from storage_engine.log.filenames import INDEX, LOG, SNAPSHOT, TIME_INDEX, TRANSACTION_INDEX, is_offset_name
from storage_engine.progress import NO_PROGRESS, Progress
from storage_engine.topic.kafka.continued_topic import continue_topic
from storage_engine.topic.kafka.intake import ImportedTopic, Intake, remedy
from storage_engine.topic.kafka.new_topic import make_topic
from storage_engine.topic.topics import Topics

_INTERNAL = "__"
_SEGMENT_FILES = (LOG, INDEX, TIME_INDEX, TRANSACTION_INDEX, SNAPSHOT)
_OTHER_FILES = (LEADER_EPOCHS, PARTITION_METADATA)


def topics_in(directory: LogDirectory) -> tuple[str, ...]:
    """The topics to take by default: all but a cluster's own, whose names begin with two underscores."""
    names = dict.fromkeys(each.topic for each in directory.partitions)
    return tuple(name for name in names if not name.startswith(_INTERNAL))


def folders_left_out(directory: LogDirectory) -> tuple[str, ...]:
    """Folders that are no partition of such a topic: a cluster's own, and those that a broker has put aside."""
    folders = sorted(entry.name for entry in directory.storage.entries("") if entry.is_folder)
    wanted = topics_in(directory)
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
    """Take in one topic, or what lies behind its end.

    Args:
        configs: overrides of a topic that is made, which do not stand in a log directory.
        move: let the files become the root's instead of copying them; both must lie on the same file system.
        progress: is told the bytes of the segments that are read.

    Raises:
        UnknownTopicError: the directory has no such topic.
        CorruptionError: a partition is missing, or a log is damaged otherwise than at its end.
        TopicExistsError: the topic is there, and this log does not continue it.
        ConfigError: overrides for a topic that is there, bad ones, or a root that files cannot be moved into.
        ConflictError: the topic has changed meanwhile; nothing was imported.
        UsageError: the directory is the view of a root, and its files would be moved.
        StorageError: the directory or the root refused, or a broker runs on the directory. Nothing was imported.
    """
    if move:
        refuse_view(directory.storage.root)
    with _hold_off_brokers(directory):
        state = topics.find(name)
        found = _all_partitions(directory, name, len(state.partitions) if state else 0)
        progress.expect(size=sum(each.state.size for each in found))
        intake = Intake(topics, directory, move, progress)
        try:
            if state is None:
                imported = make_topic(intake, name, found, configs)
            else:
                imported = continue_topic(intake, state, found, configs)
        except BaseException:
            with suppress(LogError):  # what went wrong first says more
                intake.forget()
            raise
        if move:
            _remove(directory, found)
        return imported


def _hold_off_brokers(directory: LogDirectory) -> AbstractContextManager[None]:
    """A broker makes the lock's file before anything else: where there is none, none runs."""
    there = any(entry.name == LOCK for entry in directory.storage.entries(""))
    return directory.storage.hold_shared(LOCK) if there else nullcontext()


def _all_partitions(directory: LogDirectory, name: str, least: int) -> tuple[FoundPartition, ...]:
    """Every partition from 0 on, and at least so many."""
    there = {each.number: each for each in directory.partitions_of(name)}
    for number in range(max(least, max(there) + 1)):
        if number not in there:
            raise CorruptionError(
                str(directory.storage.root), 0, f"a folder for each partition of topic {name}",
                f"no {name}-{number}, and {len(there)} others",
                "Other log.dirs of the broker, or other brokers, have it: put that folder here, too.",
            )  # fmt: skip
    with remedy(directory):
        return tuple(directory.inspect(there[number]) for number in range(len(there)))


def _remove(directory: LogDirectory, found: Sequence[FoundPartition]) -> None:
    """Delete the files of these partitions, oldest first, and the folders that are empty then."""
    for each in found:
        folder = each.name.folder
        for entry in sorted(directory.storage.entries(folder), key=lambda entry: entry.name):
            stem, dot, suffix = entry.name.partition(".")
            if entry.name in _OTHER_FILES or (is_offset_name(stem) and dot + suffix in _SEGMENT_FILES):
                directory.storage.delete(f"{folder}/{entry.name}")
        with suppress(OSError):  # what else lies there stays, and its folder with it
            directory.storage.path(folder).rmdir()
