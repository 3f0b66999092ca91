"""The page docs/SCHEMAS.md: its example is exported and read, and its tables of types are compared with the columns."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import Schema as DeltaSchema

import lakelog
from jobs.export import export
from pipeline.export.export_request import add_export_options
from pipeline.ingest.rows.source_rows import names_event
from pipeline.job import run_job
from pipeline.settings import load_settings
from pipeline.topic_model import check_schemas, message_schema
from schemas.avro.avro_decoder import AvroDecoder
from schemas.protobuf.message_decoder import MessageDecoder
from schemas.writers.registry import REGISTRY_PASSWORD, SchemaRegistry
from tests.docs.pages import blocks, text_of
from tests.schemas.avro.avro_values import Schema, encoded, record, with_id
from tests.schemas.protobuf import messages
from tests.schemas.writers.schema_registry import schema_registry

PAGE = "docs/SCHEMAS.md"
ORDER = {
    "id": "a",
    "at": datetime(2026, 1, 31, tzinfo=UTC),
    "price": Decimal("7.90"),
    "items": {"tea": 2},
    "note": None,
}


def test_the_example_is_exported_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (settings, *_), (schema,), (view, _) = (blocks(PAGE, language) for language in ("yaml", "json", "python"))
    (tmp_path / "shared/events").mkdir(parents=True)
    (tmp_path / "shared/events/order.avsc").write_text(schema.text)
    topic = lakelog.open(tmp_path / "shared/lakelog", create=True).create_topic("orders", partitions=1)
    monkeypatch.setenv(REGISTRY_PASSWORD, "sesame")
    monkeypatch.setenv("LAKELOG_SCHEMAS_REGISTRY_USER", "lakelog")
    with schema_registry(("lakelog", "sesame")) as server:
        number = server.add(schema.text, "orders-value")

        def local(text: str) -> str:
            return text.replace("/mnt/shared", f"{tmp_path}/shared").replace("http://registry:8081", server.url)

        topic.append([{"key": b"a", "value": with_id(number, encoded(json.loads(schema.text), ORDER))}])
        (tmp_path / "orders.yaml").write_text(local(settings.text))
        argv = ["--conf", str(tmp_path / "orders.yaml"), "--set", "export.mode=append"]
        assert run_job("export", "", export, add_export_options, argv, {REGISTRY_PASSWORD: "sesame"}) == 0
        names: dict[str, Any] = {}
        exec(local(view.text), names)
    (row,) = names["fresh"].to_arrow().to_pylist()
    assert {name: row[name] for name in ORDER} == {**ORDER, "items": [("tea", 2)]}


def test_the_example_of_a_source_names_a_schema_that_decodes_its_messages(tmp_path: Path) -> None:
    (_, found, _), (schema,) = (blocks(PAGE, language) for language in ("yaml", "json"))
    (tmp_path / "order.avsc").write_text(schema.text)
    with schema_registry() as server:
        text = found.text.replace("http://registry:8081", server.url)
        (tmp_path / "amounts.yaml").write_text(text.replace("/mnt/shared/events", str(tmp_path)))
        settings = load_settings(tmp_path / "amounts.yaml", (), str(tmp_path / "root"))
        check_schemas(settings)
        decoded = message_schema(settings)
    assert names_event(settings)
    assert decoded is not None
    assert decoded.columns.names == list(ORDER)
    assert decoded.writers == SchemaRegistry.at(server.url, "", "")


def test_the_example_of_keys_is_exported_and_read(tmp_path: Path) -> None:
    (*_, settings), (_, view) = (blocks(PAGE, language) for language in ("yaml", "python"))
    topic = lakelog.open(tmp_path / "shared/lakelog", create=True).create_topic("stock", partitions=1)
    topic.append([{"key": b'{"shop": 7, "sku": "tea"}', "value": b'{"pieces": 2}'}])

    def local(text: str) -> str:
        return text.replace("/mnt/shared", f"{tmp_path}/shared")

    (tmp_path / "stock.yaml").write_text(local(settings.text))
    argv = ["--conf", str(tmp_path / "stock.yaml"), "--set", "export.mode=upsert"]
    assert run_job("export", "", export, add_export_options, argv, {}) == 0
    names: dict[str, Any] = {}
    exec(local(view.text), names)
    (row,) = names["fresh"].to_arrow().to_pylist()
    assert {name: row[name] for name in ("pieces", "_key_shop", "_key_sku")} == {
        "pieces": 2, "_key_shop": 7, "_key_sku": "tea",
    }  # fmt: skip


def type_name(kind: pa.DataType) -> str:
    """The type as the tables of the page name it."""
    document = json.loads(DeltaSchema.from_arrow(pa.schema([("x", kind)])).to_json())["fields"][0]["type"]
    if isinstance(document, dict):
        return str(document["type"])
    return {"long": "bigint"}.get(document, str(document))


def rows(heading: str) -> list[tuple[str, str]]:
    """The first two cells of each row of a table."""
    section = text_of(PAGE).split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"^\| (.+?) +\| (.+?) +\|$", section, re.MULTILINE)[1:]


AVRO: dict[str, Schema] = {
    "fixed": {"type": "fixed", "name": "F", "size": 2}, "enum": {"type": "enum", "name": "E", "symbols": ["A"]},
    "uuid": {"type": "string", "logicalType": "uuid"}, "date": {"type": "int", "logicalType": "date"},
    "decimal": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
    "time-millis": {"type": "int", "logicalType": "time-millis"},
    "record": record(("x", "int"), name="Inner"), "array": {"type": "array", "items": "int"},
    "map": {"type": "map", "values": "int"},
}  # fmt: skip


def test_each_avro_type_of_the_table_has_the_column_of_the_table() -> None:
    checked = set()
    for avro, column in rows("Columns of Avro"):
        if avro.startswith("a union"):
            continue
        names = re.findall(r"`([\w-]+)`", avro)
        base = names[0].rsplit("-", 1)[0]
        kinds = re.findall(r"`(\w+)", column)
        for at, name in enumerate(names):
            full = f"{base}{name}" if name.startswith("-") else name
            written: Schema = AVRO.get(full, {"type": "long", "logicalType": full} if "-" in full else full)
            (found,) = AvroDecoder(json.dumps(record(("a", written))), None).columns
            wanted = kinds[at] if len(kinds) == len(names) > 1 else kinds[0]
            assert type_name(found.type).partition("(")[0] == wanted, full
            checked.add(full)
    assert len(checked) == 23


def test_each_protobuf_type_of_the_table_has_the_column_of_the_table() -> None:
    checked = set()
    for protobuf, column in rows("Columns of Protobuf"):
        names = re.findall(r"`(\w+)`", protobuf)
        kinds = re.findall(r"`([\w(),]+)`", column)
        for at, name in enumerate(names if "`repeated`" not in protobuf else []):
            shop = messages.file()
            message = shop.message_type.add(name="A")
            kind = name if name.islower() or name[-1].isdigit() else f".google.protobuf.{name}"
            messages.add_field(message, "a", 1, kind)
            (found,) = MessageDecoder(messages.descriptors(shop), "shop.A", None).columns
            wanted = found.type if name.endswith("Value") and "inside" in column else kinds[min(at, len(kinds) - 1)]
            assert wanted in (found.type, type_name(found.type)), name
            checked.add(name)
    assert len(checked) == 22
