"""Tests that the column `_extra` has each field of a JSON text that the model does not have, with all of its digits."""

from __future__ import annotations

import re
from typing import Annotated

import pyarrow as pa
import pytest
from pydantic import AliasChoices, AliasPath, BaseModel, ConfigDict, Field, RootModel, model_validator

from schemas.event_model import EventModel
from schemas.event_schema import EventSchema, model_hash
from tests.docs.pages import text_of
from tests.schemas.unknown_fields.kept_fields import kept_fields


class City(EventModel):
    name: str


class Stop(EventModel):
    city: City
    minutes: int | None = None


class Stops(RootModel[list[Stop]]):
    pass


class Trip(EventModel):
    number: int
    stops: list[Stop] | None = None
    grid: list[list[City]] | None = None
    via: Stops | None = None


class Aliases(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    one: int = Field(alias="uno")
    two: int = Field(
        default=2, validation_alias=AliasChoices("zwei", AliasPath("numbers", "two"), AliasPath("list", 1))
    )
    three: int = Field(default=3, validation_alias=AliasPath("numbers", "three"))


class Picked(EventModel):
    first: City = Field(validation_alias=AliasPath("cities", 0))
    last: City = Field(validation_alias=AliasPath("cities", -1))
    far: City | None = Field(default=None, validation_alias=AliasPath("cities", 9))


class OnlyAlias(BaseModel):
    one: int = Field(default=1, alias="uno")


class FirstOfList(EventModel):
    """A model whose own code accepts a list of objects."""

    number: int

    @model_validator(mode="before")
    @classmethod
    def _first(cls, value: list[dict[str, int]]) -> dict[str, int]:
        return value[0]


class Unpacked(EventModel):
    """A model whose own code takes the fields from another place than the text has them."""

    number: int

    @model_validator(mode="before")
    @classmethod
    def _unpack(cls, value: dict[str, dict[str, int]]) -> dict[str, int]:
        return value["data"]


HERE = __name__
DDL = "number BIGINT NOT NULL, stop STRUCT<city: STRING>, price DECIMAL(30, 10)"


def extras(schema: str, *values: str | bytes | None) -> list[str | None]:
    kept, plain = (EventSchema(schema, has_extra=has_extra).decoder for has_extra in (True, False))
    return kept_fields(kept, plain, [each.encode() if isinstance(each, str) else each for each in values])


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ('{"number": 1}', None),
        ('{"number": 1, "stops": null, "grid": [], "via": []}', None),
        ('{"number": 1, "Number": 2, "b": null, "a": [1, {"y": true, "x": []}, "é"]}',
         '{"Number":2,"a":[1,{"x":[],"y":true},"é"],"b":null}'),
        # Each digit counts, and so does the way in which a number is written.
        ('{"n": 0.10000000000000000000000001, "number": 1, "m": 123456789012345678901234567890, "z": -0, "e": 1.50E+400}',
         '{"e":1.50E+400,"m":123456789012345678901234567890,"n":0.10000000000000000000000001,"z":-0}'),
        ('{"number": 1, "a": NaN, "b": [-Infinity, Infinity]}', '{"a":"NaN","b":["-Infinity","Infinity"]}'),
        ('{"number": 1, "text": "a\\u0000\\"\\\\\\ud83d\\ude00\\n", "\\n": {}}',
         '{"\\n":{},"text":"a\\u0000\\"\\\\😀\\n"}'),
        ('{"number": 1, "a": 1, "number": 2, "a": 3}', '{"a":3}'),
        ('{"number": 1, "stops": [{"city": {"name": "Rome"}}, {"city": {"name": "Pisa", "zip": "56"}, "bus": 1}]}',
         '{"stops":[null,{"bus":1,"city":{"zip":"56"}}]}'),
        ('{"number": 1, "grid": [[], [{"name": "Rome", "zip": 1}]], "via": [{"city": {"name": "Pisa"}, "x": 1}]}',
         '{"grid":[null,[{"zip":1}]],"via":[{"x":1}]}'),
    ],
)  # fmt: skip
def test_unknown_fields_are_kept_as_they_are(value: str, expected: str | None) -> None:
    assert extras(f"{HERE}:Trip", value, None, f"\0\0\0\0\7{value}") == [expected, None, expected]


@pytest.mark.parametrize(
    ("model", "value", "expected"),
    [
        ("Aliases", '{"uno": 1, "zwei": 2, "numbers": {"two": 5, "three": 6, "four": 4}, "list": [1, 2, 3], "tre": 3}',
         '{"list":[1,null,3],"numbers":{"four":4},"tre":3}'),
        ("Aliases", '{"one": 1, "two": 2, "three": 3}', None),
        ("Picked", '{"cities": [{"name": "Rome", "zip": 1}, {"name": "Pisa"}, {"name": "Bari", "zip": 3}]}',
         '{"cities":[{"zip":1},{"name":"Pisa"},{"zip":3}]}'),
        ("Picked", '{"cities": [{"name": "Rome"}]}', None),
        ("OnlyAlias", '{"uno": 1, "one": 2}', '{"one":2}'),
        ("FirstOfList", '[{"number": 1, "x": 2}]', None),
        # The text is compared, and not what code of the model makes of it.
        ("Unpacked", '{"data": {"number": 1, "x": 2}, "y": 3}', '{"data":{"number":1,"x":2},"y":3}'),
    ],
)  # fmt: skip
def test_a_field_is_known_by_its_name_or_its_aliases(model: str, value: str, expected: str | None) -> None:
    assert extras(f"{HERE}:{model}", value) == [expected]


def test_columns_in_ddl_have_unknown_fields_too() -> None:
    values = (
        '{"number": 1, "stop": {"city": "Rome", "at": 1.0}, "price": 0.1234567891, "tax": 0.12345678912345678}',
        "{}",
    )
    assert extras(DDL, values[0]) == ['{"stop":{"at":1.0},"tax":0.12345678912345678}']
    decoded = EventSchema(DDL, has_extra=True).decoder.decode(pa.array([each.encode() for each in values]))
    assert [each.reason for each in decoded.errors] == ["missing at number"]
    assert decoded.columns["_extra"].to_pylist()[1] is None


def test_the_example_of_the_page_is_true() -> None:
    section = text_of("docs/SCHEMAS.md").partition("## Unknown fields\n")[2]
    _, _, schema, value, _, extra = re.findall("`([^`]+)`", section)[:6]
    assert extras(schema, value) == [extra]


class Wide(EventModel):
    amount: Annotated[int, Field(ge=0)]


def test_a_proof_knows_whether_rows_have_unknown_fields() -> None:
    """The hash of an export's commit says which columns its records had."""
    schema = EventSchema(f"{HERE}:Wide")
    kept = EventSchema(f"{HERE}:Wide", has_extra=True)
    assert model_hash(schema, None) != model_hash(kept, None)
