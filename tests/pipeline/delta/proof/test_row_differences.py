"""Which values of two columns with maps differ."""

from __future__ import annotations

import pyarrow as pa

from pipeline.delta.proof.row_differences import differing_rows

Entries = list[tuple[str, float | None]] | None
PAIRS: list[tuple[Entries, Entries, bool]] = [
    ([("a", 1.0)], [("a", 1.0)], False),
    ([("a", 1.0)], [("a", 2.0)], True),
    ([("a", 1.0)], [("b", 1.0)], True),
    ([("a", 1.0), ("b", 2.0)], [("b", 2.0), ("a", 1.0)], True),
    ([("a", None)], [("a", None)], False),
    ([("a", None)], [("a", 0.0)], True),
    ([("a", float("nan"))], [("a", float("nan"))], False),
    ([], [], False),
    ([], None, True),
    (None, None, False),
    ([], [("a", 1.0)], True),
]


def test_maps_are_compared_entry_by_entry() -> None:
    kind = pa.map_(pa.string(), pa.float64())
    one, other = (pa.array([pair[side] for pair in PAIRS], kind) for side in (0, 1))
    wanted = [differs for _, _, differs in PAIRS]
    assert differing_rows(one, other).tolist() == wanted
    assert differing_rows(one.slice(2, 6), other.slice(2, 6)).tolist() == wanted[2:8]
    nested = pa.struct([("map", kind)])
    records = [pa.array([{"map": entries} for entries in each.to_pylist()], nested) for each in (one, other)]
    assert differing_rows(*records).tolist() == wanted
