"""Makes the appends of `lakelog perf produce`, each as a version of the topic or in transactions.

As in Kafka's tool, a transaction is committed with the first append after its duration. The last transaction is committed
at the end. The time for the commits of transactions counts for the speed, but not for the latency of a record.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

import pyarrow as pa
import pyarrow.compute as pc

from lakelog.cli.output import write_missing_markers
from lakelog.given_records import record_batches
from storage_engine.topic.append.appending import Append
from storage_engine.topic.append.transaction_writer import DEFAULT_TIMEOUT_MS, TransactionWriter

if TYPE_CHECKING:
    from storage_engine.topic.topics import Topics


class PerfAppends:
    """The appends to one topic. Use it in a `with` block. If the block ends with an exception, the open transaction is
    aborted."""

    def __init__(self, topics: Topics, topic: str, transaction_ms: int | None, now_ms: Callable[[], float]) -> None:
        """
        Args:
            transaction_ms: how long a transaction lasts; None: append without transactions.
            now_ms: a clock for durations, in milliseconds.
        """
        self._topics = topics
        self._topic = topic
        self._transaction_ms = transaction_ms
        self._now_ms = now_ms
        self._open: TransactionWriter | None = None
        self._begun_ms = 0.0

    def append(self, values: pa.Array) -> int:
        """Append records with these values, as one version of the topic. Returns the bytes of the values."""
        records = pa.RecordBatch.from_arrays([values], names=["value"])
        batches = record_batches(records, self._topics.clock.now_ms())
        if self._transaction_ms is None:
            topics, topic = self._topics, self._topic
            state = topics.state(topic)
            with Append(topics.storage, topics.chain(topic), topics.config(state), topics.clock, state=state) as append:
                for batch in batches:
                    append.stage(batch)
                append.commit()
        else:
            if self._open is None:
                self._open = TransactionWriter(self._topics, DEFAULT_TIMEOUT_MS + self._transaction_ms)
                self._begun_ms = self._now_ms()
            self._open.append_batches(self._topic, batches)
        size: int = pc.sum(pc.binary_length(values)).as_py()
        return size

    def commit_if_due(self) -> None:
        """Commit the open transaction if it has lasted long enough."""
        if self._transaction_ms is not None and self._now_ms() - self._begun_ms >= self._transaction_ms:
            self.commit()

    def commit(self) -> None:
        """Commit the open transaction, if there is one.

        Raises:
            TransactionError: another process has aborted the transaction.
            StorageError: the storage refused or failed.
        """
        if self._open is not None:
            with self._open as transaction:
                write_missing_markers(transaction.commit())
            self._open = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._open is not None:
            self._open.__exit__(kind, error, trace)
