"""Names which records of transactions a reader gets (Kafka's isolation.level)."""

from __future__ import annotations

from enum import StrEnum


class Isolation(StrEnum):
    """read_committed: up to the last stable offset, without aborted transactions. read_uncommitted: everything that is
    below the high watermark. Control records are given to neither."""

    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"
