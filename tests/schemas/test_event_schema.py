"""Tests that an event model is found by its name in schemas/, or elsewhere as module:Class. Also tests that a model is
made from Spark's DDL.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from schemas.event_decoding import decode_values
from schemas.event_schema import EventSchema, names
from schemas.flight import Flight
from schemas.model_columns import arrow_schema
from schemas.schema_errors import MissingFormatError, UnknownSchemaError

SHOP = """
from pydantic import BaseModel, RootModel

class Item(BaseModel):
    name: str

class Order(BaseModel):
    id: int
    items: list[Item]

class Bag(RootModel[dict[str, int]]):
    pass

class Odd(BaseModel):
    anything: object

NOTE = "no class"
"""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with the package shop_of_one, its module events and a module that cannot be imported."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "shop_of_one").mkdir()
    (folder / "shop_of_one" / "events.py").write_text(SHOP)
    (folder / "shop_of_one" / "broken.py").write_text("import shop_of_two\n")
    (folder / "shop_of_one" / "typo.py").write_text("class X(:\n")
    return str(folder)


def test_a_model_of_schemas_is_found_by_the_name_of_its_module() -> None:
    assert EventSchema("flight").model is Flight
    assert names() == ["basket", "flight", "order"]


@pytest.mark.parametrize(("text", "is_ddl"), [("shop:DATE", True), ("shop:date", True), ("shop:Date", False)])
def test_a_class_may_have_the_name_of_a_type(text: str, is_ddl: bool) -> None:
    assert EventSchema(text).is_ddl is is_ddl


def test_a_model_of_ones_own_is_found_in_the_folders_of_the_settings_by_other_processes_too(shop: str) -> None:
    schema = EventSchema("shop_of_one.events:Order", (shop,))
    wanted = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field(
                "items",
                pa.list_(
                    pa.field("element", pa.struct([pa.field("name", pa.string(), nullable=False)]), nullable=False)
                ),
                nullable=False,
            ),
        ]
    )
    assert arrow_schema(schema.model) == wanted
    # A model that is no EventModel keeps its own rules: pydantic's default makes a number of a text.
    assert decode_values(schema.model, pa.array([b'{"id": "7", "items": [{"name": "tea"}]}'])).columns.to_pylist() == [
        {"id": 7, "items": [{"name": "tea"}]}
    ]
    script = (
        "import pickle, sys; from schemas.model_columns import arrow_schema;"
        "print(arrow_schema(pickle.load(sys.stdin.buffer).model), end='')"
    )
    other = subprocess.run([sys.executable, "-c", script], input=pickle.dumps(schema), capture_output=True, check=True)
    assert other.stdout.decode() == str(wanted)


@pytest.mark.parametrize(
    ("text", "problem", "remedy"),
    [
        (
            "fligth",
            "there is no model 'fligth' in schemas/, which has only basket, flight, order",
            "Did you mean flight?",
        ),
        ("event_model", "there is no model 'event_model' in schemas/", "Name a class of your own as module:Class."),
        (
            "shop_of_one.evnts:Order",
            "there is no module shop_of_one.evnts: it is not installed, and not in ",
            "PYTHONPATH",
        ),
        (
            "shop_of_none.events:Order",
            "there is no module shop_of_none: it is not installed, and not in ",
            "schemas.path",
        ),
        ("shop_of_one.events:Ordr", "has no class Ordr; its models are Item, Odd, Order", "shop_of_one.events:Order?"),
        ("shop_of_one.events:NOTE", "NOTE of the module shop_of_one.events (", "derives from pydantic.BaseModel"),
        ("shop_of_one.events:Bag", "is not a pydantic model with fields", "but not from RootModel"),
        ("shop_of_one.events:Odd", "cannot become columns: Odd.anything: ", "Change the type of this field"),
        ("shop_of_one.broken:X", "cannot be imported: ModuleNotFoundError: No module named 'shop_of_two'", "python -c"),
        ("shop_of_one.typo:X", "the module shop_of_one.typo cannot be imported: SyntaxError: ", "python -c"),
        ("../flight", "is neither a model nor columns in Spark's DDL: found '../flight'", "module:Class"),
        ("", "is neither a model nor columns in Spark's DDL: at the start: found the end", "basket, flight, order"),
    ],
)
def test_what_is_no_model_is_an_error_that_says_what_was_looked_for_and_where(
    shop: str, text: str, problem: str, remedy: str
) -> None:
    with pytest.raises(UnknownSchemaError) as caught:
        EventSchema(text, (shop,)).model  # noqa: B018 - raises
    assert problem in caught.value.problem
    assert remedy in caught.value.remedy
    if "not installed" in problem:
        assert shop in caught.value.problem, "says which folders were searched"
        assert str(Path(sys.prefix) / "lib") not in caught.value.problem, "and not those of the installed packages"


@pytest.mark.parametrize(
    ("text", "module", "package", "extra"),
    [
        ("o.avsc", "fastavro", "fastavro", "avro"),
        ("o.desc:a.B", "google.protobuf.descriptor_pb2", "protobuf", "protobuf"),
    ],
)
def test_a_missing_package_is_an_error_that_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, module: str, package: str, extra: str
) -> None:
    (tmp_path / text.partition(":")[0]).write_text("{}")
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    with pytest.raises(MissingFormatError) as missing:
        EventSchema(f"{tmp_path}/{text}").loaded()
    assert (missing.value.problem, missing.value.remedy) == (
        f"values of this schema need the package {package}, which is not installed",
        f"Run: pip install 'lakelog[{extra}]'.",
    )


def test_a_schema_of_a_file_needs_no_file_in_other_processes(tmp_path: Path) -> None:
    file = tmp_path / "o.avsc"
    file.write_text('{"type": "record", "name": "O", "fields": [{"name": "a", "type": "int"}]}')
    schema = EventSchema(str(file)).loaded()
    file.unlink()
    script = "import pickle, sys; print(pickle.load(sys.stdin.buffer).columns, end='')"
    other = subprocess.run([sys.executable, "-c", script], input=pickle.dumps(schema), capture_output=True, check=True)
    assert other.stdout.decode() == "a: int64 not null"
