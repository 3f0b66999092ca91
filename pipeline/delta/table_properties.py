"""The properties of the Delta tables that Lakelog creates. This module needs no Spark."""

from __future__ import annotations

PLAIN_TABLE_PROPERTIES = {
    # Readers other than Spark (deltalake, DuckDB, Polars) need version 1 of the protocol. These features would raise
    # the version.
    "delta.enableDeletionVectors": "false",
    "delta.columnMapping.mode": "none",
    "delta.checkpointPolicy": "classic",
}
"""The properties of a new table. They are set explicitly, because the defaults of the session may differ."""

DEAD_LETTER_PROPERTIES = {
    **PLAIN_TABLE_PROPERTIES,
    "delta.dataSkippingNumIndexedCols": "0",
    "delta.checkpointInterval": "100",
}
"""The properties of a new dead-letter table. No query of Lakelog uses statistics to skip files of these tables."""
