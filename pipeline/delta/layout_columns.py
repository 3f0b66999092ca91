"""Decides which columns can partition or cluster an exported table, and how their values are stored.

Delta stores the value of a partition column as a text in its log, not in the files. An empty text there means null. So in
a partition column, a text that Delta cannot tell from null becomes null when the record is decoded. The digest of the row
and the job `prove` then see the same value as the readers of the table.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.delta.export_plan import Export
from pipeline.delta.rows.row_columns import COORDINATES, DIGEST, STALE_SINCE, table_columns
from schemas.unknown_fields.extra_column import EXTRA

_WITH_STATISTICS = 32
"""Delta collects the statistics of so many columns, the first ones of a table. It clusters only by these columns."""
NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
"""Stands for null in the name of a folder."""
_NULL_TEXTS = ["", NULL_FOLDER]
"""The texts that Spark or Delta's log do not distinguish from null in a partition column. It is no array of Arrow: making
the first array imports pandas, which takes longer than a run that finds nothing new."""

_FOLDER_BYTES = 255
"""The longest name of a folder in most file systems. The value of a partition column is in the name of a folder."""


def unfit_partition(export: Export, name: str) -> str | None:
    """Why a column cannot partition the table, as the rest of a sentence; None if it can."""
    columns = table_columns(export)
    if name not in columns.names:
        return _unknown(columns)
    kind = columns.field(name).type
    if name in ("_key", "_offset", "_timestamp", STALE_SINCE.name, DIGEST.name):
        return "is different in nearly each row"
    if name == EXTRA.name:
        return "has texts of any length, which depend on the schema of the topic"
    return (
        None
        if can_partition(kind)
        else f"is {kind}; only texts, whole numbers, booleans and dates can partition a table"
    )


def can_partition(kind: pa.DataType) -> bool:
    """Whether all writers of Lakelog write the values of this type in the same way into Delta's log."""
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    return bool(is_text or pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_date32(kind))


def unfit_cluster(export: Export, name: str) -> str | None:
    """Why a column cannot cluster the table, as the rest of a sentence; None if it can."""
    columns = table_columns(export)
    if name not in columns.names:
        return _unknown(columns)
    kind = columns.field(name).type
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    if not (is_number or pa.types.is_string(kind) or pa.types.is_date32(kind) or pa.types.is_timestamp(kind)):
        return f"is {kind}; only texts, numbers, dates and timestamps can cluster a table"
    before = sum(
        _leaves(each.type) for each in columns if columns.get_field_index(each.name) < columns.get_field_index(name)
    )
    if before >= _WITH_STATISTICS:
        return f"comes after the first {_WITH_STATISTICS} columns, and Delta has statistics only of these"
    return None


def _unknown(columns: pa.Schema) -> str:
    fields = [
        name for name in columns.names if name not in (*COORDINATES.names, STALE_SINCE.name, DIGEST.name, EXTRA.name)
    ]
    return f"is no column of the table; the model has the columns {', '.join(fields)}"


def _leaves(kind: pa.DataType) -> int:
    """The number of columns without inner columns in a column of this type."""
    if pa.types.is_struct(kind):
        return sum(_leaves(each.type) for each in kind)
    return 1


def as_partitioned(export: Export, columns: Iterable[str]) -> Export:
    """The export into a table that is partitioned by these columns.

    Polars 2.1.0 does not find the deletion vector of a file whose path is percent-encoded, and shows the deleted rows. So a
    table that Polars reads has no deletion vectors if the folders of its partitions can have such names.
    """
    layout = replace(export.layout, partition_by=tuple(columns))
    if layout.by_polars and any(_can_be_encoded(export, each) for each in layout.partitions):
        layout = replace(layout, deletion_vectors=False)
    return replace(export, layout=layout)


def _can_be_encoded(export: Export, name: str) -> bool:
    columns = table_columns(export)
    return quote(name) != name or name not in columns.names or pa.types.is_string(columns.field(name).type)


def unfit_texts(array: pa.Array, name: str, export: Export) -> dict[int, str]:
    """By row, why a text cannot be in a partition column: no folder `name=text` can be made for it.

    In the name of a folder of deltalake, each byte that is no letter, digit, -, ., _ or ~ of ASCII takes three bytes, as in
    a URL. Spark writes U+0000 unchanged into the name, and no file system accepts it.
    """
    if name not in export.layout.partitions or not pa.types.is_string(array.type):
        return {}
    room = _FOLDER_BYTES - len(quote(name, safe="")) - 1
    perhaps = pc.indices_nonzero(pc.fill_null(pc.greater(pc.binary_length(array), room // 3), False)).to_pylist()
    too_long = [row for row in perhaps if len(quote(array[row].as_py(), safe="")) > room]
    with_nul = pc.indices_nonzero(pc.fill_null(pc.match_substring(array, "\0"), False)).to_pylist()
    return {
        **dict.fromkeys(with_nul, "the text contains U+0000, so it cannot be the name of a partition"),
        **dict.fromkeys(too_long, "the text is too long for a partition"),
    }


def as_stored(array: pa.Array, name: str, export: Export) -> pa.Array:
    """The values of a column as the table stores them. In a partition column, some texts are stored as null."""
    if name not in export.layout.partitions or not pa.types.is_string(array.type):
        return array
    return pc.if_else(pc.is_in(array, pa.array(_NULL_TEXTS)), pa.scalar(None, array.type), array)
