"""Contains SQL that decides which of two records is newer. Spark, PostgreSQL, MariaDB and MySQL can run this SQL. This
module needs no Spark."""

from __future__ import annotations

SqlPlace = tuple[str, str, str]
"""SQL expressions of a partition, an offset and a timestamp."""


def of_row(alias: str) -> SqlPlace:
    """The place of a row's record."""
    return f"{alias}._partition", f"{alias}._offset", f"{alias}._timestamp"


def of_place(column: str) -> SqlPlace:
    """The place in a column that has the form of `pipeline.delta.rows.export_rows.place`."""
    return f"{column}.partition", f"{column}.offset", f"{column}.timestamp"


def is_newer(one: SqlPlace, other: SqlPlace, within: str = ">") -> str:
    """SQL that is true if the record at `one` is newer than the record at `other`. Both records have the same key.

    within: the operator that compares offsets in one partition. With >=, a record counts as newer than itself.
    """
    partition, offset, timestamp = one
    than_partition, than_offset, than_timestamp = other
    return (
        f"(({partition} = {than_partition} AND {offset} {within} {than_offset}) OR"
        f" ({partition} <> {than_partition} AND ({timestamp} > {than_timestamp} OR"
        f" ({timestamp} = {than_timestamp} AND {partition} > {than_partition}))))"
    )
