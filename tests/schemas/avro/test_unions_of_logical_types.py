"""Each pair of a writer's type and a union of the reader: a value gets to the member that Avro prescribes, and has the
meaning of this member, or the writer's schema is refused. The expected values are computed without Lakelog and fastavro."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from schemas.model_columns import UnsupportedFieldError
from schemas.schema_errors import UnknownSchemaError
from tests.schemas.avro.avro_values import Schema, encoded, record, with_id
from tests.schemas.avro.test_avro_resolution import folder
from tests.schemas.avro.test_avro_unions import SOME_UUID, values_of_x

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
RAW: dict[str, tuple[Any, ...]] = {
    "boolean": (True,), "int": (0, 19_000), "long": (1, 2**33), "float": (1.5,), "double": (2.5,), "bytes": (b"09", b"\1\0"),
    "string": ("ab", SOME_UUID),
}  # fmt: skip
"""Values of each type, without a logical type."""
PROMOTED = {
    "int": ("long", "float", "double"), "long": ("float", "double"), "float": ("double",), "string": ("bytes",),
    "bytes": ("string",),
}  # fmt: skip
LOGICAL = {
    "date": "int", "time-millis": "int", "time-micros": "long", "timestamp-millis": "long", "timestamp-micros": "long",
    "timestamp-nanos": "long", "local-timestamp-micros": "long", "uuid": "string", "decimal": "bytes",
}  # fmt: skip
NANOS = {"millis": 1_000_000, "micros": 1_000, "nanos": 1}
Type = tuple[str, str]
"""A type, and its logical type or an empty text."""
TYPES: list[Type] = [*((kind, "") for kind in RAW), *((kind, logical) for logical, kind in LOGICAL.items())]


def schema_of(found: Type) -> Schema:
    kind, logical = found
    more: dict[str, Any] = {"precision": 9, "scale": 2} if logical == "decimal" else {}
    return {"type": kind, "logicalType": logical, **more} if logical else kind


def in_column(written: Type, read: Type, raw: Any) -> list[Any]:
    """The possible values of the column of `read`; none if the writer's schema must be refused."""
    (kind, logical), (wanted, meaning) = written, read
    if not meaning:
        if logical:
            return []
        if wanted in ("float", "double"):
            return [float(raw)]
        return [
            raw.decode()
            if wanted == "string" and kind == "bytes"
            else raw.encode()
            if kind != wanted == "bytes"
            else raw
        ]
    if meaning == "decimal":
        return [Decimal(int.from_bytes(raw, "big", signed=True)) / 100] if kind == "bytes" else []
    if meaning == "uuid":
        return [raw] if raw == SOME_UUID else []
    name, _, unit = meaning.rpartition("-")
    if logical and logical.rpartition("-")[0] != name:
        return []
    if meaning == "date":
        return [date(1970, 1, 1) + timedelta(days=raw)]
    micros = raw * NANOS[logical.rpartition("-")[2] if logical else unit] // 1000
    if name == "time":
        return [micros] if micros < 86_400_000_000 else []
    moment = EPOCH + timedelta(microseconds=micros)
    return [moment if name == "timestamp" else moment.replace(tzinfo=None).isoformat(timespec="microseconds")]


def expected(written: Type, union: list[Type], raw: Any) -> Iterator[dict[str, Any]]:
    """The rows that are right."""
    same = [each for each in union if each[0] == written[0]]
    for branch in same or [each for each in union if each[0] in PROMOTED.get(written[0], ())][:1]:
        for value in in_column(written, branch, raw):
            yield {f"member{number}": value if each == branch else None for number, each in enumerate(union)}


@pytest.mark.parametrize("written", TYPES, ids=lambda found: found[1] or found[0])
def test_a_value_has_the_member_that_avro_prescribes(tmp_path: Path, written: Type) -> None:
    writer = record(("x", schema_of(written)))
    raws = RAW[written[0]] if written[1] != "uuid" else (SOME_UUID,)
    if written[1].startswith("time-"):
        raws = (0, 19_000)
    given = [with_id(1, encoded(written[0], raw)) for raw in raws]
    rows = 0
    for union in map(list, permutations(TYPES, 2)):
        try:
            found = values_of_x(
                record(("x", [schema_of(each) for each in union])), *given, writers=folder(tmp_path, writer)
            )
        except (UnsupportedFieldError, UnknownSchemaError):
            continue  # the union has no column
        for raw, value in zip(raws, found, strict=True):
            if isinstance(value, dict):
                rows += 1
                assert value in list(expected(written, union, raw)), (written, union, raw)
    assert rows > 0


@pytest.mark.parametrize(
    ("written", "union", "raw", "decoded"),
    [
        (
            ("long", ""),
            [("string", ""), ("long", "timestamp-micros")],
            7,
            {"member1": EPOCH + timedelta(microseconds=7)},
        ),
        (
            ("long", ""),
            [("double", ""), ("long", "timestamp-millis")],
            7,
            {"member1": EPOCH + timedelta(milliseconds=7)},
        ),
        (("int", ""), [("string", ""), ("int", "date")], 19_000, {"member1": date(2022, 1, 8)}),
        (("int", ""), [("float", ""), ("long", "timestamp-micros")], 5, {"member0": 5.0}),
        (("int", ""), [("double", ""), ("long", "")], 5, {"member0": 5.0}),
        (("int", ""), [("long", "timestamp-micros"), ("float", "")], 5, {"member0": EPOCH + timedelta(microseconds=5)}),
        (("bytes", ""), [("bytes", "decimal"), ("string", "")], b"09", {"member0": Decimal("123.45")}),
        (("string", ""), [("string", "uuid"), ("long", "")], SOME_UUID.upper(), {"member0": SOME_UUID}),
    ],
)
def test_if_only_the_union_has_a_logical_type_it_applies(
    tmp_path: Path, written: Type, union: list[Type], raw: Any, decoded: dict[str, Any]
) -> None:
    writer, reader = record(("x", schema_of(written))), record(("x", [schema_of(each) for each in union]))
    (found,) = values_of_x(reader, with_id(1, encoded(written[0], raw)), writers=folder(tmp_path, writer))
    assert found == {"member0": None, "member1": None} | decoded


@pytest.mark.parametrize(
    ("written", "union", "problem"),
    [
        (
            ("long", ""),
            [("int", ""), ("long", "timestamp-micros")],
            "long where a union of the settings has timestamp-micros",
        ),
        (("int", ""), [("int", "date"), ("long", "")], "int where a union of the settings has date"),
        (("bytes", ""), [("string", ""), ("bytes", "decimal")], "bytes where a union of the settings has decimal"),
        (
            ("long", "timestamp-nanos"),
            [("string", ""), ("double", "")],
            "timestamp-nanos where the schema of the settings has double",
        ),
    ],
)
def test_a_type_whose_values_would_get_to_another_member_is_refused(
    tmp_path: Path, written: Type, union: list[Type], problem: str
) -> None:
    writer, reader = record(("x", schema_of(written))), record(("x", [schema_of(each) for each in union]))
    value = with_id(1, encoded(written[0], RAW[written[0]][0]))
    (found,) = values_of_x(reader, value, writers=folder(tmp_path, writer))
    assert found.startswith("unusable_schema: the schema with the id 1 cannot be used")
    assert found.endswith(f": it has {problem}")


@pytest.mark.parametrize("wide", [("long", ""), ("long", "timestamp-micros")], ids=["long", "timestamp"])
def test_an_int_beside_a_long_is_refused_if_no_order_of_the_union_is_right_for_both(tmp_path: Path, wide: Type) -> None:
    union = [schema_of(each) for each in (("double", ""), wide)]
    writer, reader = record(("x", "int"), ("y", "long")), record(("x", union), ("y", union))
    value = with_id(1, encoded(writer, {"x": 5, "y": 7}))
    (found,) = values_of_x(reader, value, writers=folder(tmp_path, writer))
    problem = "it has int where a union of the settings has double"
    assert found == f"unusable_schema: the schema with the id 1 cannot be used: {problem}"
    plain = record(("x", "int"))
    (found,) = values_of_x(record(("x", union)), with_id(1, encoded("int", 5)), writers=folder(tmp_path, plain))
    assert found == {"member0": 5.0, "member1": None}


def test_a_uuid_has_the_form_of_a_uuid_whoever_wrote_it(tmp_path: Path) -> None:
    writer, reader = record(("x", "string")), record(("x", {"type": "string", "logicalType": "uuid"}))
    values = [
        with_id(1, encoded("string", text)) for text in (SOME_UUID, SOME_UUID.upper(), "no uuid", SOME_UUID + "\n")
    ]
    wrong = "malformed: a uuid has another form than 8-4-4-4-12 hexadecimal digits"
    assert values_of_x(reader, *values, writers=folder(tmp_path, writer)) == [SOME_UUID, SOME_UUID, wrong, wrong]
