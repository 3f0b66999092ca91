"""Tests the defaults of fields that are no values of their types."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from schemas.avro.avro_decoder import AvroDecoder
from schemas.avro.avro_schema import AvroSchemaError
from schemas.writers.writer_schemas import SchemaFolder
from tests.schemas.avro.avro_values import Schema, decode, encoded, record, with_id

ENUM: Schema = {"type": "enum", "name": "E", "symbols": ["A"]}
INNER = record(("x", "int"), name="S")
WRONG: list[tuple[Schema, Any, Any]] = [
    ("double", "5", 1.5), ("float", True, 1.5), ("int", True, 1), ("int", 2**31, 1), ("long", 2**63, 1),
    (ENUM, "B", "A"), ({"type": "fixed", "name": "F", "size": 2}, "abc", b"ab"),
    ({"type": "array", "items": "int"}, ["a"], [1]), ({"type": "map", "values": ENUM}, {"a": "A", "b": "B"}, {}),
    (INNER, {}, {"x": 1}), (INNER, {"x": True}, {"x": 1}), (["null", ENUM], "B", None),
]  # fmt: skip
"""A type, a default that is no value of the type, and a value."""


@pytest.mark.parametrize(("kind", "default", "value"), WRONG, ids=range(len(WRONG)))
def test_a_wrong_default_is_refused_unless_only_a_writer_has_it(
    tmp_path: Path, kind: Schema, default: Any, value: Any
) -> None:
    with pytest.raises(AvroSchemaError, match="the default of the field part is no value of the field's type"):
        AvroDecoder(json.dumps(record(("a", "int"), ("part", kind, default))), None)
    (tmp_path / "1.avsc").write_text(json.dumps(record(("part", kind, default), ("a", "int"))))
    written = encoded(record(("part", kind), ("a", "int")), {"part": value, "a": 7})
    found = decode(record(("a", "int")), with_id(1, written), writers=SchemaFolder.read(str(tmp_path)))
    assert (found.errors, found.columns.to_pylist()) == ([], [{"a": 7}])


def test_a_default_may_be_a_value_of_any_member_of_a_union_and_a_record_may_leave_out_fields_with_defaults(
    tmp_path: Path,
) -> None:
    inner = record(("x", "int"), ("y", ["null", "long"], 2**40), name="S")
    reader = record(
        ("a", "int"), ("number", ["int", "long"], 2**31), ("text", [ENUM, "string"], "B"),
        ("symbol", ["string", "null", "E"], "A"), ("inner", ["null", inner], {"x": 1}), ("real", ["null", "float"], 2),
    )  # fmt: skip
    plain = record(("a", "int"))
    (tmp_path / "1.avsc").write_text(json.dumps(plain))
    found = decode(reader, with_id(1, encoded(plain, {"a": 7})), writers=SchemaFolder.read(str(tmp_path)))
    assert found.errors == []
    assert found.columns.to_pylist() == [
        {
            "a": 7,
            "number": 2**31,
            "text": {"member0": None, "member1": "B"},
            "symbol": {"member0": "A", "member1": None},
            "inner": {"x": 1, "y": 2**40},
            "real": 2.0,
        }
    ]
