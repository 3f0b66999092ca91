"""Defines whether a reader gets the records of open and aborted transactions (Kafka's isolation.level)."""

from __future__ import annotations

from enum import StrEnum


class Isolation(StrEnum):
    """The records that a reader gets. Control records are never among them.

    read_committed: records below the last stable offset, without those of aborted transactions.
    read_uncommitted: all records below the high watermark.
    """

    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"
