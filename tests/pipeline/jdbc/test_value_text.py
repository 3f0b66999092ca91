"""Values as the text that databases read: maps."""

from __future__ import annotations

import json

import pyarrow as pa

from pipeline.jdbc.value_text import text_of


def test_a_map_is_an_object_of_json() -> None:
    kind = pa.map_(pa.int64(), pa.list_(pa.struct([("raw", pa.binary())])))
    found = text_of(pa.array([[(7, [{"raw": b"\0"}, None])], [], None], kind)).to_pylist()
    assert [each and json.loads(each) for each in found] == [{"7": [{"raw": "AA=="}, None]}, {}, None]
