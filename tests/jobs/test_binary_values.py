"""The jobs `export` and `prove` and the fresh view of topics whose values are in Avro or Protobuf, without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

import lakelog
from jobs.export import export
from lakelog.errors import ConfigError, LogError
from pipeline.export.export_request import add_export_options
from pipeline.export.proof_run import add_proof_options, prove_exports
from pipeline.job import run_job
from schemas.writers.registry import REGISTRY_PASSWORD, REGISTRY_USER
from tests.roots.delta_tables import rows_of_table
from tests.schemas.avro.avro_values import Schema, encoded, record, with_id
from tests.schemas.protobuf import messages
from tests.schemas.writers.schema_registry import Registry, schema_registry
from tests.stores import files_below, root_at, storage_at

LOGIN = ("reader", "open sesame")
ENVIRONMENT = {REGISTRY_USER: LOGIN[0], REGISTRY_PASSWORD: LOGIN[1]}
ITEM = record(("sku", "string"), ("count", "int"), name="Item")
OLD = record(("id", "string"), ("amount", "int"), ("stock", {"type": "map", "values": ITEM}))
NEW = record(
    ("amount", "long"),
    ("id", "string"),
    ("stock", {"type": "map", "values": ITEM}),
    ("note", ["null", "string", "double"], None),
)
SETTINGS = """
topics: {{orders: {{partitions: 1, cleanup.policy: compact, schema: "{schema}"{registry}}}}}
export: {{topic: orders, max.dead.letter.share: 1}}
"""


class Place:
    """A root with the topic orders, a settings file with its export, and the schema file beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = root_at(folder / "root")
        self.log = lakelog.open(self.root, create=True)
        self.log.create_topic("orders", partitions=1, config={"cleanup.policy": "compact"})
        self.environment: Mapping[str, str] = ENVIRONMENT

    def use(self, schema: Schema, registry: str | Path | None = None) -> str:
        (self.folder / "order.avsc").write_text(json.dumps(schema))
        return self.use_text(f"{self.folder}/order.avsc", registry)

    def use_text(self, text: str, registry: str | Path | None = None) -> str:
        more = "" if registry is None else f', schema.registry: "{registry}"'
        (self.folder / "conf.yaml").write_text(SETTINGS.format(schema=text, registry=more))
        return text

    def append(self, *records: tuple[bytes, bytes | None]) -> None:
        self.log.topic("orders").append([{"key": key, "value": value} for key, value in records])

    def run(self, *arguments: str) -> int:
        argv = ["--conf", str(self.folder / "conf.yaml"), "--root", self.root, *arguments]
        return run_job("export", "", export, add_export_options, argv, self.environment)

    def prove(self) -> int:
        argv = ["--conf", str(self.folder / "conf.yaml"), "--root", self.root]
        return run_job("prove", "", prove_exports, add_proof_options, argv, self.environment)

    def rows(self, table: str = "tables/orders") -> list[dict[str, Any]]:
        """The rows in the order of their offsets, without the columns of the record."""
        found = sorted(rows_of_table(storage_at(self.folder / "root"), table), key=lambda row: row["_offset"])
        return [{name: value for name, value in row.items() if not name.startswith("_")} for row in found]

    def letters(self) -> list[tuple[int, str, str | None]]:
        found = rows_of_table(storage_at(self.folder / "root"), "tables/dead_letters/export/orders")
        return sorted((row["offset"], row["reason"], row["detail"]) for row in found)

    def files(self) -> dict[str, bytes]:
        storage = storage_at(self.folder / "root")
        names = [name for each in ("meta/", "tables/", "staging/", "data/") for name in files_below(storage, each)]
        return {name: storage.read(name) for name in names}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    return Place(tmp_path)


@pytest.fixture
def server() -> Iterator[Registry]:
    with schema_registry(LOGIN) as found:
        yield found


def order(schema: Schema, name: str, amount: int, **more: Any) -> bytes:
    value = {"id": name, "amount": amount, "stock": {name: {"sku": "s", "count": amount}}, **more}
    return encoded(schema, value)


def row(name: str, amount: int, **note: Any) -> dict[str, Any]:
    stock = [(name, {"sku": "s", "count": amount})]
    return {"amount": amount, "id": name, "stock": stock, "note": note.get("note")}


def test_values_of_two_writers_are_exported_proved_and_viewed(
    place: Place, server: Registry, capfd: pytest.CaptureFixture[str]
) -> None:
    one, two = server.add(json.dumps(OLD), "orders-value"), server.add(json.dumps(NEW), "new orders")
    text = place.use(NEW, server.url)
    place.append(
        (b"a", with_id(one, order(OLD, "a", 1))),
        (b"b", with_id(two, order(NEW, "b", 2, note="ä"))),
        (b"c", with_id(two, order(NEW, "c", 3))),
        (b"c", with_id(9, order(NEW, "c", 4))),
        (b"d", b'{"id": "d"}'),
    )
    assert place.run() == 0
    rows = [row("a", 1), row("b", 2, note={"member0": "ä", "member1": None}), row("c", 3)]
    assert place.rows() == rows
    unknown = f"unknown_schema: the registry {server.url} has no schema with the id 9"
    no_id = "no_schema_id: neither a header nor the first bytes of the value are the id of a schema"
    assert place.letters() == [(3, "undecodable", unknown), (4, "undecodable", no_id)]
    assert place.prove() == 0

    place.append((b"b", None), (b"a", with_id(two, order(NEW, "a", 5, note=0.5))))
    view = place.log.topic("orders").table(schema=text, registry=server.url).to_arrow().sort_by("_offset")
    shown = [{name: value for name, value in each.items() if not name.startswith("_")} for each in view.to_pylist()]
    assert shown == [row("c", 3), row("a", 5, note={"member0": None, "member1": 0.5})]
    assert place.run() == 0
    assert place.rows() == shown
    assert place.prove() == 0

    printed = capfd.readouterr()
    assert "c\x06" not in printed.out + printed.err, "no contents"
    for name, content in {**place.files(), "output": f"{printed}".encode()}.items():
        assert LOGIN[1].encode() not in content, name


def test_schemas_that_headers_name_are_used_by_exports_proofs_and_views(place: Place, tmp_path: Path) -> None:
    guid = UUID("89791762-2336-4186-9674-299b90a802e2")
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "7.avsc").write_text(json.dumps(NEW))
    text = place.use(NEW, tmp_path / "schemas")

    def append(key: bytes, value: bytes, header: bytes) -> None:
        record = {"key": key, "value": value, "headers": [("__value_schema_id", header)]}
        place.log.topic("orders").append([record])

    append(b"a", order(NEW, "a", 1), with_id(7, b""))
    append(b"b", order(OLD, "b", 2), b"\1" + guid.bytes)
    assert place.run() == 0
    assert place.rows() == [row("a", 1)]
    unknown = f"unknown_schema: the folder {tmp_path}/schemas has no schema with the id {guid}"
    assert place.letters() == [(1, "undecodable", unknown)]
    (tmp_path / "schemas" / f"{guid}.avsc").write_text(json.dumps(OLD))
    append(b"b", order(OLD, "b", 2), b"\1" + guid.bytes)
    assert place.run() == 0
    assert place.rows() == [row("a", 1), row("b", 2)]
    assert place.prove() == 0
    append(b"c", order(OLD, "c", 3), b"\1" + guid.bytes)
    view = place.log.topic("orders").table(schema=text, registry=f"{tmp_path}/schemas").to_arrow()
    assert sorted(view["id"].to_pylist()) == ["a", "b", "c"]


def test_plain_values_and_the_schemas_of_a_folder_need_no_registry(place: Place, tmp_path: Path) -> None:
    place.use(NEW)
    place.append((b"a", order(NEW, "a", 1)), (b"b", b""))
    assert place.run() == 0
    assert place.rows() == [row("a", 1)]
    assert place.letters() == [(1, "undecodable", "too_short: the value ends before all of its fields")]

    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "7.avsc").write_text(json.dumps(OLD))
    place.use(NEW, tmp_path / "schemas")
    place.append((b"c", with_id(7, order(OLD, "c", 3))))
    assert place.run("--accept-schema") == 0, "the format of the values has changed"
    assert place.rows() == [row("a", 1), row("c", 3)]
    assert place.prove() == 0


def test_protobuf_is_exported_proved_and_viewed(place: Place, server: Registry, tmp_path: Path) -> None:
    shop = messages.file()
    message = shop.message_type.add(name="Order")
    messages.add_field(message, "amount", 1, "int64")
    messages.add_field(message, "note", 2, "optional string")
    messages.add_map(message, "stock", 3, "string", "int32", "shop")
    content = messages.descriptors(shop)
    (tmp_path / "shop.desc").write_bytes(content)
    text = place.use_text(f"{tmp_path}/shop.desc:shop.Order", server.url)
    number = server.add('syntax = "proto3"; package shop; message Order { }', "orders-value", "PROTOBUF")

    def value(**fields: Any) -> bytes:
        return messages.framed(number, [0], messages.encoded(content, "shop.Order", **fields))

    place.append((b"a", value(amount=1, stock={"y": 1, "x": 2})), (b"b", value(note="")), (b"c", value()[:-1]))
    assert place.run() == 0
    first = {"amount": 1, "note": None, "stock": [("x", 2), ("y", 1)]}
    assert place.rows() == [first, {"amount": 0, "note": "", "stock": []}]
    assert place.letters() == [
        (2, "undecodable", "no_message_indexes: the id is not followed by the place of a message")
    ]
    assert place.prove() == 0
    place.append((b"b", None))
    view = place.log.topic("orders").table(schema=text, registry=server.url).to_arrow()
    assert view.select(["amount", "note", "stock"]).to_pylist() == [first]
    assert view.schema.field("stock").type == pa.map_(pa.string(), pa.int64())


def test_a_schema_that_breaks_readers_is_refused_before_anything_is_read(
    place: Place, server: Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    number = server.add(json.dumps(OLD), "orders-value")
    place.use(OLD, server.url)
    place.append((b"a", with_id(number, order(OLD, "a", 1))))
    assert place.run() == 0
    place.append((b"b", with_id(number, order(OLD, "b", 2))))
    after = place.files()
    capsys.readouterr()
    place.use(record(("id", "string"), ("amount", "string"), ("price", "double")), server.url)
    assert place.run() == 1
    assert capsys.readouterr().err.startswith(
        f"export: {place.folder}/conf.yaml, line 2, topics.orders.schema: the new model is not compatible with the model"
        " that is recorded in topic orders: amount was int and is now str; price is new and required; stock is removed."
    )
    place.use(OLD)
    assert place.run() == 1
    assert "(format) was Avro with schema ids and is now Avro " in capsys.readouterr().err
    assert place.files() == after
    place.use(OLD, server.url)
    assert place.run() == 0
    assert [each["id"] for each in place.rows()] == ["a", "b"]


def test_what_is_wrong_with_a_schema_or_registry_ends_the_job_at_its_start(
    place: Place, server: Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    place.append((b"a", b"x"))
    untouched = place.files()
    conf = f"{place.folder}/conf.yaml, line 2, topics.orders."
    relative = "Check the path; a relative path begins at the current directory."

    def refused(text: str, registry: str | Path | None = None) -> str:
        place.use_text(text, registry)
        assert place.run() == 1
        assert place.files() == untouched
        found = capsys.readouterr().err
        assert LOGIN[1] not in found
        return found.removeprefix("export: ").rstrip("\n")

    missing = f"{place.folder}/missing.avsc"
    problem = f"the schema's file {missing} cannot be read: No such file or directory. {relative}"
    assert refused(missing) == f"{conf}schema: {problem}"
    place.use(NEW)
    known = f"{place.folder}/order.avsc"
    folder = place.folder / "schemas"
    assert refused(known, folder).startswith(f"{conf}schema.registry: the folder of schemas {folder} cannot be read: ")
    only = "a registry is only for Avro and Protobuf, but topics.orders.schema is not in one of these formats"
    assert refused("id STRING", server.url).startswith(f"{conf}schema.registry: {only}. Set topics.orders.schema")
    url = server.url.replace("//", f"//reader:{LOGIN[1]}@")
    assert refused(known, url).startswith(f"{conf}schema.registry: the URL of the schema registry is not of the form")
    place.environment = {**ENVIRONMENT, REGISTRY_PASSWORD: "open barley"}
    assert refused(known, server.url).startswith(f"the registry {server.url}: refused access: status 401. Check ")


def test_a_registry_that_fails_during_an_export_commits_nothing(
    place: Place, server: Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    number = server.add(json.dumps(NEW), "orders-value")
    place.use(NEW, server.url)
    place.append((b"a", with_id(number, order(NEW, "a", 1))))
    check = server.answer

    def failing(path: str, authorization: str | None) -> tuple[int, object]:
        return check(path, authorization) if path == "/schemas/types" else (503, {})

    server.answer = failing  # type: ignore[method-assign]
    assert place.run() == 1
    again = "Nothing is lost: start the job again when the registry answers."
    assert f"the registry {server.url}: answered with status 503. {again}" in capsys.readouterr().err
    assert files_below(storage_at(place.folder / "root"), "tables/") == []
    server.answer = check  # type: ignore[method-assign]
    assert place.run() == 0
    assert place.rows() == [row("a", 1)]


def test_a_view_with_a_wrong_registry_is_an_error(place: Place, server: Registry) -> None:
    place.use(NEW, server.url)
    number = server.add(json.dumps(NEW), "orders-value")
    place.append((b"a", with_id(number, order(NEW, "a", 1))))
    assert place.run() == 0
    topic = place.log.topic("orders")
    with pytest.raises(ConfigError, match="the URL of the schema registry is not of the form"):
        topic.table(schema=f"{place.folder}/order.avsc", registry="https://a:b@c")
    with pytest.raises(LogError, match="gave an answer that is not in the form of a schema registry"):
        topic.table(schema=f"{place.folder}/order.avsc", registry=f"{server.url}/none")
