"""The properties of the Delta tables that Lakelog creates, and the layout for which an export asks. This module needs no
Spark.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

DELETION_VECTORS_PROPERTY = "delta.enableDeletionVectors"
SKIPPING_PROPERTY = "delta.dataSkippingStatsColumns"
"""Names the columns of whose statistics Delta's log has the bounds (`pipeline.delta.files.skipping_columns`)."""
INDEXED_PROPERTY = "delta.dataSkippingNumIndexedCols"
"""The number of columns with statistics, if no property names the columns."""
CATALOG_PROPERTY = "lakelog.catalog.table"
"""The name of a table in a catalog, and the folder that is registered there (`pipeline.export.catalog_name`)."""

PLAIN_TABLE_PROPERTIES = {
    # Readers other than Spark (deltalake, DuckDB, Polars) need version 1 of the protocol. These features would raise
    # the version.
    DELETION_VECTORS_PROPERTY: "false",
    "delta.columnMapping.mode": "none",
    "delta.checkpointPolicy": "classic",
}
"""The properties of a new table. They are set explicitly, because the defaults of the session may differ."""

DEAD_LETTER_PROPERTIES = {
    **PLAIN_TABLE_PROPERTIES,
    INDEXED_PROPERTY: "0",
    "delta.checkpointInterval": "100",
}
"""The properties of a new dead-letter table. No query of Lakelog uses statistics to skip files of these tables."""

_READ_DELETION_VECTORS = frozenset({"spark", "duckdb", "polars"})
"""The readers in `export.readers` that read tables with deletion vectors. deltalake is not among them: only its method
`scan` reads these tables."""


@dataclass(frozen=True)
class TableLayout:
    """How Delta stores the rows of a table. The rows are the same with every layout.

    deletion_vectors: whether files have deletion vectors.
    partition_by: the columns by which the table is partitioned.
    cluster_by: the columns by which Spark's OPTIMIZE clusters the rows (liquid clustering).
    by_polars: whether the settings name Polars as a reader.

    None: a new table has none of it, and another table stays as it is.
    """

    deletion_vectors: bool | None = None
    partition_by: tuple[str, ...] | None = None
    cluster_by: tuple[str, ...] | None = None
    by_polars: bool = False

    @property
    def partitions(self) -> list[str]:
        """The columns by which a new table is partitioned."""
        return list(self.partition_by or ())

    @property
    def properties(self) -> dict[str, str]:
        """The properties of a new table."""
        return {**PLAIN_TABLE_PROPERTIES, DELETION_VECTORS_PROPERTY: "true" if self.deletion_vectors else "false"}


def can_read_deletion_vectors(readers: Iterable[str]) -> bool:
    """Whether all of these readers read tables with deletion vectors."""
    return _READ_DELETION_VECTORS.issuperset(readers)
