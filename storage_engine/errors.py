"""Every error that Lakelog raises about the world, as one tree.

    LogError
    ├── ConfigError               a setting, an argument or a file of settings is wrong
    ├── TopicError
    │   ├── InvalidTopicNameError   Kafka would refuse the name
    │   ├── UnknownTopicError
    │   ├── UnknownConsumerError    no consumer of this name is registered
    │   └── TopicExistsError
    ├── RecordError               a record that may not go into the topic
    │   ├── InvalidRecordError      no key in a compacted topic, a malformed field
    │   ├── RecordTooLargeError     above max.message.bytes or segment.bytes
    │   └── InvalidTimestampError   outside message.timestamp.before/after.max.ms
    ├── NoRootError               nothing was ever created under this path
    ├── OffsetOutOfRangeError     below the log start offset or above the high watermark
    ├── CorruptionError           bytes that were good and no longer are
    ├── StateError                what several processes agree on
    │   ├── FencedError             a newer epoch has taken the topic over (exit status 3)
    │   ├── WriterRefusedError      another query feeds this topic, and take-over was not asked for
    │   ├── BatchRefusedError       the checkpoint was copied or rolled back
    │   ├── CheckpointError         the checkpoint is not the one that fed the topic, or not whole
    │   ├── PositionsError          a source's positions cannot be kept, or went back
    │   ├── ConflictError           a change no longer fits the newest state
    │   │   └── StalePlanError        the log has moved on since a plan was saved
    │   └── TransactionError        a transaction that can no longer do this, or has ended
    └── StorageError              the storage said no
        ├── NotFoundError
        ├── AlreadyExistsError
        ├── AmbiguousPutError       nobody can tell whether a put took place
        ├── StorageFullError
        ├── StorageUnavailableError a disk, server or mount that is not there now
        └── StorageAccessError      no permission, not a directory, read-only

Each carries the facts as attributes and says, in this order: where, what was found, what to do. No message contains a
record's key or value: errors end up in logs that more people read than the data.
"""

from __future__ import annotations

from enum import IntEnum


class ExitStatus(IntEnum):
    """What a process of ours ends with. The numbers are part of the interface and never change."""

    DONE = 0
    ERROR = 1
    USAGE = 2
    FENCED = 3
    PARTIAL = 4
    """Done, but some partitions failed; each was named."""


class LogError(Exception):
    """Root of the tree.

    Args:
        place: the file, key, topic-partition or argument that is concerned.
        problem: what was expected and what was found there.
        remedy: what the reader of the message can do about it.
    """

    exit_status = ExitStatus.ERROR

    def __init__(self, place: str, problem: str, remedy: str = "") -> None:
        self.place = place
        self.problem = problem
        self.remedy = remedy
        super().__init__(place, problem, remedy)  # all of them, so that the error survives pickling between processes

    def __str__(self) -> str:
        remedy = f" {self.remedy}" if self.remedy else ""
        return f"{self.place}: {self.problem}.{remedy}"


class ConfigError(LogError):
    """A setting is unknown, has the wrong type or lies outside its bounds."""


class UsageError(ConfigError):
    """The words of a command line are off."""

    exit_status = ExitStatus.USAGE


class NoRootError(LogError):
    """A path was given for a root, and is none."""


class TopicError(LogError):
    """Something about a topic as a whole."""


class InvalidTopicNameError(TopicError):
    """Kafka's rule: 1 to 249 characters of [a-zA-Z0-9._-], neither "." nor ".."."""


class UnknownTopicError(TopicError):
    """No state chain, or its newest version says that the topic was deleted."""


class UnknownConsumerError(TopicError):
    """A topic has no registered consumer of this name."""


class TopicExistsError(TopicError):
    """A topic of this name is there already."""


class RecordError(LogError):
    """A record may not go into the topic."""


class InvalidRecordError(RecordError):
    """Kafka's INVALID_RECORD: a keyless record for a compacted topic, or a malformed field."""


class RecordTooLargeError(RecordError):
    """Kafka's RECORD_TOO_LARGE: a batch above max.message.bytes, or an append above segment.bytes."""


class InvalidTimestampError(RecordError):
    """Kafka's INVALID_TIMESTAMP: negative, or too far from the clock."""


class OffsetOutOfRangeError(LogError):
    """The offset asked for lies below the log start offset or above the high watermark."""


class CorruptionError(LogError):
    """Committed bytes do not hold what they must. Never raised for an uncommitted tail, which nobody reads.

    Args:
        file: storage key or path of the damaged file.
        position: byte position in that file at which the damage was found.
        expected: what had to stand there.
        found: what stands there.
    """

    def __init__(self, file: str, position: int, expected: str, found: str, remedy: str = "") -> None:
        self.file = file
        self.position = position
        self.expected = expected
        self.found = found
        super().__init__(f"{file} at position {position}", f"expected {expected}, found {found}", remedy)
        self.args = (file, position, expected, found, remedy)

    def with_remedy(self, remedy: str) -> CorruptionError:
        """The same damage, with what helps against it where it was met."""
        return CorruptionError(self.file, self.position, self.expected, self.found, remedy)


class BatchTooLargeError(CorruptionError):
    """A compressed batch unfolds to more than batch.max.uncompressed.bytes. Its bytes may be as they were written."""


class StateError(LogError):
    """The topic's state does not allow the change."""


class FencedError(StateError):
    """A newer epoch has taken the topic over: this process may not commit to it any more."""

    exit_status = ExitStatus.FENCED


class WriterRefusedError(StateError):
    """The topic's recorded writer is another query."""


class BatchRefusedError(StateError):
    """A micro-batch that the state's record of this query contradicts."""


class CheckpointError(StateError):
    """A query's checkpoint that would leave records out, bring them twice, or get stuck."""


class PositionsError(StateError):
    """A source has no fixed set of partitions, or counts its positions anew."""


class ConflictError(StateError):
    """Another change came first and this one no longer makes sense; the work has to be planned again."""


class StalePlanError(ConflictError):
    """A saved plan would no longer do what it says: the log has moved on since."""


class TransactionError(StateError):
    """The transaction has ended, or an append of it has failed so that it can only be aborted."""


class StorageError(LogError):
    """The storage refused or failed."""


class NotFoundError(StorageError):
    """No file under this key."""


class AlreadyExistsError(StorageError):
    """A file under this key is there already, and was not touched."""


class AmbiguousPutError(StorageError):
    """The storage failed in the middle of a put: only reading back can tell whether it took place."""


class StorageFullError(StorageError):
    """No space, or a quota or a limit on file sizes was hit."""


class StorageUnavailableError(StorageError):
    """The disk, the server or the way to it failed; later it may be there again."""


class StorageAccessError(StorageError):
    """No permission, a read-only mount, or a path that goes through something that is no directory."""
