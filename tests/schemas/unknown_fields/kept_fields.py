"""What a decoder keeps of unknown fields, and that it changes nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from schemas.decoder import Decoder


def kept_fields(decoder: Decoder, plain: Decoder, values: Sequence[bytes | None]) -> list[str | None]:
    """The column `_extra` of values that can be decoded.

    Args:
        plain: the same decoder without this column.
    """
    data = pa.array(values, pa.binary())
    found = decoder.decode(data)
    assert found.errors == []
    assert found.columns.schema.field("_extra").type == pa.string()
    assert decoder.fields == plain.fields
    assert found.columns.drop_columns(["_extra"]).equals(plain.decode(data).columns)
    column: list[str | None] = found.columns["_extra"].to_pylist()
    return column
