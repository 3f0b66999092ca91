"""A transaction, as Python programs use it. The appends of a transaction can go to several topics, and become visible
together.

    with log.transaction() as t:
        t.append("orders", orders)
        t.append("payments", payments)

A transaction is used in a `with` block, and is committed at the end of the block. If the block raises an exception, the
transaction is aborted. If the process dies in the block, the transaction stays open until its timeout, and then any
other process aborts it. In all these cases, readers of committed records get all records of the transaction or none of
them (storage_engine.topic.append.transaction_writer).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from typing import Self

from lakelog.given_records import record_batches
from lakelog.topic import warn
from storage_engine.arguments import seconds
from storage_engine.config import LONG_MAX
from storage_engine.errors import LogError, StorageError, TransactionError
from storage_engine.topic.append import transaction_writer
from storage_engine.topic.kafka.view import settle_committed
from storage_engine.topic.topics import Topics
from storage_engine.topic_name import check_topic_name


class Transaction:
    """A transaction, for one thread and one `with` block. `Root.transaction` returns it.

    At the end of the block the transaction is committed. If the block raises an exception, the transaction is aborted,
    and the exception is raised again. After an abort, readers of committed records never get a record of the
    transaction.

    Raises, at the end of the block:
        TransactionError: another process has aborted the transaction, for example after its timeout, or an append of
            this transaction has failed. The transaction is aborted. The exception: another process, such as a fork of
            this one, has committed the transaction. Then the error says so.
        AmbiguousPutError: it is unknown whether the transaction is committed. Read the topics before you append again.
        StorageError: any other failure of the storage. The transaction is not committed.
    """

    def __init__(self, topics: Topics, timeout_seconds: float) -> None:
        remedy = "Give a positive number of seconds."
        least, most = math.ulp(0.0), math.nextafter(LONG_MAX / 1000, 0)  # the timeout is stored in milliseconds
        timeout = seconds("timeout_seconds", timeout_seconds, least, most, remedy)
        self._topics = topics
        self._transaction = transaction_writer.TransactionWriter(topics, math.ceil(timeout * 1000))
        self._names: dict[str, None] = {}

    def append(self, topic: str, records: object, *, partition: int | None = None) -> dict[int, range]:
        """Append records to a topic in the transaction. After an error the transaction can only be aborted.

        Args:
            topic: the name of the topic.
            records: records in any form that Topic.append accepts.
            partition: the partition of all records, as in Topic.append.

        Returns:
            For each partition, the offsets of the new records.

        Raises:
            InvalidRecordError: a column or a record has the wrong type or form.
            RecordTooLargeError, InvalidTimestampError: the topic does not accept a record.
            InvalidTopicNameError: the name is not allowed for a topic.
            ConfigError: `partition` is no whole number.
            UnknownTopicError: there is no topic of this name.
            TransactionError: the transaction is over, an earlier append has failed, or another process has aborted the
                transaction.
            StorageError: the storage has failed.
        """
        check_topic_name(topic)
        offsets = self._transaction.append_batches(
            topic, record_batches(records, self._topics.clock.now_ms()), partition
        )
        self._names[topic] = None
        return offsets

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if error is None:
                _warn_of_markers(self._commit())
        except BaseException as failure:
            error = failure
            raise
        finally:
            self._transaction.__exit__(kind, error, trace)  # aborts the transaction, unless it is over
            if self._names:  # the records and markers of an aborted transaction are in the log, too
                settle_committed(self._topics, self._names, warn)

    def _commit(self) -> tuple[LogError, ...]:
        """Returns the errors of topics whose markers could not be appended."""
        try:
            return self._transaction.commit()
        except StorageError:
            with suppress(StorageError):  # the first error says more
                try:
                    self._transaction.abort()
                except TransactionError:  # the commit is on record, although the storage reported an error
                    return ()
            raise


def _warn_of_markers(problems: Iterable[LogError]) -> None:
    for problem in problems:
        warn(
            "committed, but some markers of the transaction are missing; `lakelog transactions finish` writes these"
            f" markers. {problem}"
        )
