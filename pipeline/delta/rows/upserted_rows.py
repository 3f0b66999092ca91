"""Contains queries that merge the records of an increment with the rows of an upsert table.

The queries express the rules of `pipeline.delta.rows.export_rows` as SQL. The SQL compares a row `t` of the table with
a row `s` of the source. The source has one row for each key of the increment. An export uses the SQL in a MERGE. A
fresh view of the table and a rebuild compute the same rows without a MERGE.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakelog.spark.types import nullable, quoted, spark_struct
from pipeline.delta.export_plan import Export
from pipeline.delta.rows.export_rows import deciding, first_undecodable
from pipeline.delta.rows.newer_sql import is_newer, of_place, of_row
from pipeline.delta.rows.row_columns import STALE_SINCE, row_columns

_THERE, _BAD = "t._stale_since", "s._bad"

DECIDES = "coalesce(s._decides, false)"
"""Whether the key has a record that can be decoded or is a tombstone."""
WINS = f"{DECIDES} AND {is_newer(of_row('s'), of_row('t'), '>=')}"
"""Whether the key's record replaces or deletes the row."""
BECOMES_STALE = f"{_BAD} IS NOT NULL AND ({_THERE} IS NULL OR {is_newer(of_place(_THERE), of_place(_BAD))})"
"""Whether the row is kept, but gets another value of `_stale_since`."""
_STAYS_STALE = f"{_THERE} IS NOT NULL AND {is_newer(of_place(_THERE), of_row('s'))}"
_IS_FIRST = f"{_BAD} IS NULL OR {is_newer(of_place(_BAD), of_place(_THERE))}"
STALE_AFTER = f"CASE WHEN {_STAYS_STALE} AND ({_IS_FIRST}) THEN {_THERE} ELSE {_BAD} END"
"""`_stale_since` of a row that is replaced."""


def upsert_source(export: Export, rows: DataFrame, first: DataFrame | None) -> DataFrame:
    """The source of an upsert: one row for each key that has a record.

    Columns: those of the rows; `_tombstone`; `_decides`, which is null if no record of the key decides its row; `_bad`,
        the place of the key's first record that cannot be decoded and is newer than the key's row.

    Args:
        rows: reduced rows.
        first: the result of `first_undecodable`; None if all rows could be decoded.
    """
    names = map(quoted, row_columns(export).names)
    source = deciding(rows).select(*names, F.col("_tombstone"), F.lit(True).alias("_decides"))
    if first is None:
        place = nullable(spark_struct(pa.schema([STALE_SINCE])))[0].dataType
        return source.withColumn("_bad", F.lit(None).cast(place))
    # The source contains each key that has a record, even if the key's row is newer. So the row is not deleted.
    met = rows.where("_reason IS NOT NULL AND _key IS NOT NULL").select("_key").distinct()
    return source.join(met, "_key", "full_outer").join(first.select("_key", "_bad"), "_key", "left")


def upserted_rows(export: Export, rows: DataFrame, table: DataFrame, *, with_undecodable: bool) -> DataFrame:
    """The rows that the keys of the increment have after an upsert, with the columns of the table.

    Args:
        rows: reduced rows.
        table: the table before the upsert.
        with_undecodable: whether some of the rows could not be decoded.
    """
    source = upsert_source(export, rows, first_undecodable(rows, table) if with_undecodable else None)
    joined = source.alias("s").join(table.alias("t"), F.expr("s._key = t._key"), "left")
    has_row = F.col("t._key").isNotNull()
    wins = F.when(has_row, F.coalesce(F.expr(WINS), F.lit(False))).otherwise(F.expr(DECIDES))
    joined = joined.where((has_row & ~wins) | (wins & ~F.coalesce(F.col("s._tombstone"), F.lit(False))))
    written = set(row_columns(export).names)

    def column(name: str) -> Column:
        before = F.col(f"t.{quoted(name)}")
        if name == STALE_SINCE.name:
            after = F.when(has_row, F.expr(STALE_AFTER)).otherwise(F.col(_BAD))
            before = F.when(F.expr(BECOMES_STALE), F.col(_BAD)).otherwise(before)
        else:
            # A column that is no longer in the model becomes null.
            after = F.col(f"s.{quoted(name)}") if name in written else F.lit(None)
        return F.when(wins, after).otherwise(before).alias(name)

    return joined.select(*(column(name) for name in table.columns))
