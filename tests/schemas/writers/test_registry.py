"""Tests how the schemas with which values were written are found: in a folder, and in a schema registry."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from schemas.schema_errors import RegistryError, UnknownSchemaError
from schemas.writers import registry as registry_module
from schemas.writers.registry import SchemaRegistry
from schemas.writers.writer_schemas import SchemaFolder, WrittenSchema
from tests.free_ports import free_ports
from tests.schemas.avro.avro_values import decode, encoded, record, with_id
from tests.schemas.writers.schema_registry import Registry, schema_registry

LOGIN = ("reader", "open sesame")
ITEM = record(("sku", "string"), name="shop.Item")
ORDER = record(("id", "int"), ("item", "shop.Item"), ("other", ["null", "shop.Part"]))
PART = record(("item", "shop.Item"), name="shop.Part")
READER = record(("id", "long"), ("item", ITEM))
WHOLE = record(("id", "int"), ("item", ITEM), ("other", ["null", PART]))
VALUE = encoded(WHOLE, {"id": 1, "item": {"sku": "a"}, "other": {"item": {"sku": "b"}}})


@pytest.fixture
def server() -> Iterator[Registry]:
    with schema_registry(LOGIN) as found:
        yield found


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "_PAUSES_S", (0.0, 0.0))


def client(server: Registry) -> SchemaRegistry:
    return SchemaRegistry.at(server.url, *LOGIN)


def test_a_schema_is_read_from_a_registry_with_the_schemas_to_which_it_refers(server: Registry) -> None:
    item = server.add(json.dumps(ITEM), "shop item")
    server.add(json.dumps(PART), "part", references=[("shop.Item", "shop item")])
    order = server.add(json.dumps(ORDER), "order", references=[("shop.Part", "part"), ("shop.Item", "shop item")])
    registry = client(server)
    registry.check()
    assert registry.find(item) == WrittenSchema("AVRO", json.dumps(ITEM))
    assert registry.find(order) == WrittenSchema("AVRO", json.dumps(ORDER), (json.dumps(ITEM), json.dumps(PART)))
    assert registry.find(99) is None
    server.requests.clear()
    found = decode(READER, *[with_id(order, VALUE)] * 3, writers=registry)
    assert found.errors == []
    assert found.columns.to_pylist() == [{"id": 1, "item": {"sku": "a"}}] * 3
    subjects = ["/subjects/part/versions/1", "/subjects/shop%20item/versions/1"]
    assert server.requests == [f"/schemas/ids/{order}", *subjects], "each schema is read once"


def test_a_schema_that_is_registered_later_is_found_by_the_next_batch(server: Registry) -> None:
    registry = client(server)
    values = [with_id(1, encoded(ITEM, {"sku": "a"}))] * 2
    found = decode(ITEM, *values, writers=registry)
    assert [error.reason for error in found.errors] == [
        f"unknown_schema: the registry {server.url} has no schema with the id 1"
    ] * 2
    assert server.requests == ["/schemas/ids/1"]
    server.add(json.dumps(ITEM), "item")
    assert decode(ITEM, *values, writers=registry).errors == []


def test_a_registry_that_fails_for_a_moment_is_asked_again(server: Registry) -> None:
    server.failures = [500, 429]
    server.add(json.dumps(ITEM), "item")
    assert client(server).find(1) == WrittenSchema("AVRO", json.dumps(ITEM))
    assert server.requests == ["/schemas/ids/1"] * 3


def failure(registry: SchemaRegistry) -> str:
    with pytest.raises(RegistryError) as caught:
        registry.check()
    text = f"{caught.value} {caught.value!r} {pickle.loads(pickle.dumps(caught.value))} {registry} {registry!r}"
    assert LOGIN[1] not in text
    assert "b3Blbi" not in text, "nor in base64"
    return str(caught.value)


def test_a_registry_that_cannot_be_read_is_an_error_without_secrets(server: Registry) -> None:
    place = f"the registry {server.url}"
    variables = "LAKELOG_SCHEMAS_REGISTRY_USER and LAKELOG_SCHEMAS_REGISTRY_PASSWORD"
    wrong = SchemaRegistry.at(server.url, "reader", "open barley")
    assert failure(wrong) == f"{place}: refused access: status 401. Check {variables}."
    assert failure(SchemaRegistry.at(server.url, "", "")) == f"{place}: refused access: status 401. Check {variables}."
    assert len(server.requests) == 2, "a refusal is not repeated"
    again = "Nothing is lost: start the job again when the registry answers."
    server.failures = [500] * 3
    assert failure(client(server)) == f"{place}: answered with status 500. {again}"
    server.failures = [400]
    assert failure(client(server)) == f"{place}: answered with status 400. Check the URL."
    elsewhere = SchemaRegistry.at(f"{server.url}/api/", *LOGIN)
    odd = "gave an answer that is not in the form of a schema registry. Check the URL."
    assert failure(elsewhere) == f"{place}/api: {odd}"
    (port,) = free_ports(1)
    closed = SchemaRegistry.at(f"http://127.0.0.1:{port}", *LOGIN)
    assert failure(closed) == f"the registry http://127.0.0.1:{port}: does not answer: ConnectionRefusedError. {again}"


@pytest.mark.parametrize(
    "url",
    [
        "https://reader:open sesame@registry:8081",
        "https://reader:sesame@registry:8081",
        "https://registry:8081/?key=sesame",
        "ftp://registry/sesame",
    ],
)
def test_a_url_with_a_secret_or_of_another_kind_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(UnknownSchemaError) as refused:
        SchemaRegistry.at(url, "", "")
    assert "https://host:port/path" in refused.value.problem
    assert "sesame" not in str(refused.value)


def test_the_password_goes_to_no_other_server(server: Registry) -> None:
    """A registry redirects to another server: the request arrives there without the password."""
    seen: list[str | None] = []

    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers.get("Authorization"))
            body = b'["AVRO"]'
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    class Redirecting(Other):
        def do_GET(self) -> None:
            seen.append(self.headers.get("Authorization"))
            self.send_response(302)
            self.send_header("Location", f"http://127.0.0.1:{other.server_address[1]}{self.path}")
            self.send_header("Content-Length", "0")
            self.end_headers()

    with (
        ThreadingHTTPServer(("127.0.0.1", 0), Other) as other,
        ThreadingHTTPServer(("127.0.0.1", 0), Redirecting) as one,
    ):
        threads = [Thread(target=each.serve_forever, kwargs={"poll_interval": 0.01}) for each in (one, other)]
        for thread in threads:
            thread.start()
        try:
            SchemaRegistry.at(f"http://127.0.0.1:{one.server_address[1]}", *LOGIN).check()
        finally:
            for each in (one, other):
                each.shutdown()
            for thread in threads:
                thread.join()
    assert seen[0] is not None
    assert seen[1:] == [None]


def test_the_files_of_a_folder_are_read_once(tmp_path: Path) -> None:
    (tmp_path / "7.avsc").write_text(json.dumps(ITEM))
    (tmp_path / "07.avsc").write_text("not an id")
    (tmp_path / "notes.txt").write_text("no schema")
    (tmp_path / "8.proto").write_text("message A {}")
    folder = SchemaFolder.read(str(tmp_path))
    (tmp_path / "7.avsc").unlink()
    copy = pickle.loads(pickle.dumps(folder))
    assert copy.find(7) == WrittenSchema("AVRO", json.dumps(ITEM))
    assert copy.find(8) == WrittenSchema("PROTOBUF", "message A {}")
    assert copy.find(9) is None
    assert [name for name, _ in folder.files] == ["7.avsc", "8.proto"]


def test_a_folder_without_schemas_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownSchemaError) as refused:
        SchemaFolder.read(str(tmp_path))
    assert refused.value.problem == f"the folder {tmp_path} has no schemas"
    with pytest.raises(UnknownSchemaError) as refused:
        SchemaFolder.read(str(tmp_path / "none"))
    assert refused.value.problem == f"the folder of schemas {tmp_path}/none cannot be read: No such file or directory"
