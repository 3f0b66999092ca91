"""Values as the text that databases read: maps, and times in maps that no database can store."""

from __future__ import annotations

import json

import pyarrow as pa

from pipeline.jdbc.value_text import outside_moments, text_of

LATE = 2**60
"""Microseconds: a time after the year 9999."""


def test_a_time_inside_a_map_that_no_database_can_store_is_found() -> None:
    kind = pa.map_(pa.string(), pa.timestamp("us", tz="UTC"))
    times = pa.array([[("a", 1)], None, [("b", None), ("c", LATE)], [], [("x", 1), ("y", -LATE)]], kind)
    assert outside_moments(times).to_pylist() == [False, False, True, False, True]
    assert outside_moments(times.slice(1, 3)).to_pylist() == [False, True, False]


def test_a_map_is_an_object_of_json() -> None:
    kind = pa.map_(pa.int64(), pa.list_(pa.struct([("raw", pa.binary())])))
    found = text_of(pa.array([[(7, [{"raw": b"\0"}, None])], [], None], kind)).to_pylist()
    assert [each and json.loads(each) for each in found] == [{"7": [{"raw": "AA=="}, None]}, {}, None]
