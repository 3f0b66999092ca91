"""Defines every error that Lakelog raises about files, settings, records or other processes, as one class tree.

    LogError
    ├── ConfigError               a setting, an argument or a settings file is wrong
    ├── TopicError
    │   ├── InvalidTopicNameError   Kafka would refuse the name
    │   ├── UnknownTopicError
    │   ├── UnknownConsumerError    no consumer of this name is registered
    │   └── TopicExistsError
    ├── RecordError               a record that the topic does not accept
    │   ├── InvalidRecordError      no key in a compacted topic, or a malformed field
    │   ├── RecordTooLargeError     above max.message.bytes or segment.bytes
    │   └── InvalidTimestampError   outside message.timestamp.before/after.max.ms
    ├── NoRootError               the path contains no Lakelog root
    ├── OffsetOutOfRangeError     below the log start offset or above the high watermark
    ├── InterruptedWorkError      work was stopped because the program is exiting
    ├── CorruptionError           committed bytes that are damaged
    ├── LostRecordsError          a log directory without records that its other files prove
    ├── StateError                the state of the topic does not allow the change
    │   ├── FencedError             a writer with a newer epoch took over the topic (exit status 3)
    │   ├── WriterRefusedError      another query writes this topic, and --take-over was not given
    │   ├── BatchRefusedError       the checkpoint was copied or rolled back, or a staged file is missing
    │   ├── CheckpointError         the checkpoint is incomplete, or belongs to another query or topic
    │   ├── PositionsError          a source's positions cannot be stored, or are lower than before
    │   ├── ConflictError           a change no longer fits the newest state
    │   │   └── StalePlanError        the log has changed since the plan was saved
    │   └── TransactionError        the transaction has ended, or can only be aborted
    └── StorageError              the storage refused the call, or failed
        ├── NotFoundError
        ├── AlreadyExistsError
        ├── AmbiguousPutError       it is not known whether the put succeeded
        ├── StorageFullError
        ├── StorageUnavailableError a disk, server or mount that is unavailable now
        ├── StorageAccessError      no permission, not a directory, read-only
        ├── LockedError             another program, or this one, works in the directory
        └── UnsupportedError        the storage lacks the capability for an operation

Each error has its facts as attributes. The message of an error names the place, then the problem, then the remedy. No
message contains a record's key or value, because a program's logs often have more readers than its data.
"""

from __future__ import annotations

from enum import IntEnum


class ExitStatus(IntEnum):
    """The exit status of a job or of a command. The numbers are part of the interface and never change."""

    DONE = 0
    ERROR = 1
    USAGE = 2
    FENCED = 3
    PARTIAL = 4
    """The work is done, except for some partitions that failed. The output names each of them."""


class LogError(Exception):
    """The base class of all errors in this module.

    Args:
        place: the file, key, topic-partition or argument with the problem.
        problem: what was expected and what was found there.
        remedy: what the user can do.
    """

    exit_status = ExitStatus.ERROR

    def __init__(self, place: str, problem: str, remedy: str = "") -> None:
        self.place = place
        self.problem = problem
        self.remedy = remedy
        super().__init__(place, problem, remedy)  # all arguments: unpickling calls __init__ with these

    def __str__(self) -> str:
        remedy = f" {self.remedy}" if self.remedy else ""
        return f"{self.place}: {self.problem}.{remedy}"


class ConfigError(LogError):
    """A setting is unknown, has the wrong type or is outside its bounds."""


class UsageError(ConfigError):
    """A command line has a wrong option or argument."""

    exit_status = ExitStatus.USAGE


class NoRootError(LogError):
    """The given path contains no Lakelog root."""


class TopicError(LogError):
    """An error that concerns a topic as a whole."""


class InvalidTopicNameError(TopicError):
    """Kafka refuses the name. Kafka allows 1 to 249 characters of [a-zA-Z0-9._-], but not "." or ".."."""


class UnknownTopicError(TopicError):
    """The topic has no state, or the newest version of its state says that the topic was deleted."""


class UnknownConsumerError(TopicError):
    """A topic has no registered consumer of this name."""


class TopicExistsError(TopicError):
    """A topic of this name exists already."""


class RecordError(LogError):
    """The topic does not accept the record."""


class InvalidRecordError(RecordError):
    """Kafka's INVALID_RECORD: a record without a key for a compacted topic, or a malformed field."""


class RecordTooLargeError(RecordError):
    """Kafka's RECORD_TOO_LARGE: a batch above max.message.bytes, or an append above segment.bytes."""


class InvalidTimestampError(RecordError):
    """Kafka's INVALID_TIMESTAMP: the timestamp is negative, or too far from the current time."""


class OffsetOutOfRangeError(LogError):
    """The requested offset is below the log start offset or above the high watermark."""


class InterruptedWorkError(LogError):
    """The work was stopped because the program is exiting. Nothing was changed."""


class CorruptionError(LogError):
    """Committed bytes are damaged. Bytes beyond the committed size are never read, so they never cause this error.

    Args:
        file: storage key or path of the damaged file.
        position: byte position of the damage in that file.
        expected: what the file must have at that position.
        found: what the file has there.
    """

    def __init__(self, file: str, position: int, expected: str, found: str, remedy: str = "") -> None:
        self.file = file
        self.position = position
        self.expected = expected
        self.found = found
        super().__init__(f"{file} at position {position}", f"expected {expected}, found {found}", remedy)
        self.args = (file, position, expected, found, remedy)

    def with_remedy(self, remedy: str) -> CorruptionError:
        """Return the same error with another remedy, for a caller that knows a better one."""
        return CorruptionError(self.file, self.position, self.expected, self.found, remedy)


class BatchTooLargeError(CorruptionError):
    """A batch is larger than batch.max.uncompressed.bytes after decompression. The batch itself may be undamaged."""


class LostRecordsError(LogError):
    """A plain Kafka log directory lacks records, although its checkpoints or indexes prove that it had them."""


class StateError(LogError):
    """The topic's state does not allow the change."""


class FencedError(StateError):
    """A writer with a newer epoch took over the topic, so this process may no longer commit to the topic."""

    exit_status = ExitStatus.FENCED


class WriterRefusedError(StateError):
    """The state names another query as the topic's writer."""


class BatchRefusedError(StateError):
    """The micro-batch contradicts what the state has recorded about this query, or one of its staged files is missing."""


class CheckpointError(StateError):
    """With this checkpoint the query would skip records, write them twice, or make no progress."""


class PositionsError(StateError):
    """The source has no fixed set of partitions, or has started to count its positions again from the beginning."""


class ConflictError(StateError):
    """Another process changed the topic first, so your change is no longer valid. Plan the work again, and then repeat
    the change."""


class StalePlanError(ConflictError):
    """The log has changed since the plan was saved, so the plan would now have a different effect."""


class TransactionError(StateError):
    """The transaction has ended, or an append of the transaction has failed. After a failed append, the transaction can
    only be aborted."""


class StorageError(LogError):
    """The storage refused the call, or failed."""


class NotFoundError(StorageError):
    """There is no file under this key."""


class AlreadyExistsError(StorageError):
    """A file under this key exists already. The existing file was not changed."""


class AmbiguousPutError(StorageError):
    """The storage failed during a put. Only reading the file can show whether the put succeeded."""


class StorageFullError(StorageError):
    """The file system has no space, or a quota or a limit on file sizes is reached."""


class StorageUnavailableError(StorageError):
    """The disk, the server or the network failed. The call may succeed later."""


class StorageAccessError(StorageError):
    """The user has no permission, the mount is read-only, or a part of the path is not a directory."""


class LockedError(StorageError):
    """Another program has locked the directory, or this program has locked it before."""


class UnsupportedError(StorageError):
    """The storage lacks the capability that the operation needs."""
