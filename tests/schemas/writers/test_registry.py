"""Tests how the schemas with which values were written are found: in a folder, and in a schema registry."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from schemas.event_schema import writer_schemas
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
    server.schemas[item] |= {"schemaType": None, "references": None}  # some servers write null instead of nothing
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


def reasons(server: Registry, *ids: int) -> list[str | None]:
    """By id, why a value with it is no row; None if it is one. All values are items."""
    registry = client(server)
    found = decode(ITEM, *(with_id(number, encoded(ITEM, {"sku": "a"})) for number in ids), writers=registry)
    errors = {error.row: error.reason for error in found.errors}
    assert found.columns.to_pylist() == [{"sku": None if row in errors else "a"} for row in range(len(ids))]
    return [errors.get(row) for row in range(len(ids))]


def test_a_schema_that_the_registry_cannot_give_stops_only_its_own_values(server: Registry) -> None:
    item = server.add(json.dumps(ITEM), "item")
    missing = server.add(json.dumps(ORDER), "order", references=[("shop.Part", "nowhere")])
    circle = server.add(json.dumps(PART), "part", references=[("shop.Part", "part")])
    refused, invalid = 50, 51
    server.answers = {
        f"/schemas/ids/{refused}": (422, b'{"error_code": 42201}'),
        f"/schemas/ids/{invalid}": (400, b"no"),
    }
    unusable = "unusable_schema: the schema with the id {} cannot be used: {}"
    assert reasons(server, item, missing, circle, refused, invalid, item) == [
        None,
        unusable.format(missing, "it refers to a schema that the registry does not have"),
        unusable.format(circle, "a schema to which it refers refers to itself"),
        unusable.format(refused, "the registry refuses it with status 422"),
        unusable.format(invalid, "the registry refuses it with status 400"),
        None,
    ]


def test_a_schema_of_a_deleted_subject_is_still_found(server: Registry) -> None:
    server.add(json.dumps(ITEM), "item")
    server.add(json.dumps(PART), "part", references=[("shop.Item", "item")])
    order = server.add(json.dumps(ORDER), "order", references=[("shop.Part", "part"), ("shop.Item", "item")])
    for subject in ("order", "part", "item"):
        server.delete(subject)
    found = decode(READER, with_id(order, VALUE), writers=client(server))
    assert (found.errors, found.columns.to_pylist()) == ([], [{"id": 1, "item": {"sku": "a"}}])


def test_a_number_that_is_no_id_is_not_asked_for(server: Registry) -> None:
    server.add(json.dumps(ITEM), "item")
    assert reasons(server, 2**31, 2**32 - 1, 1) == [
        "no_schema_id: the 4 bytes after the byte 0 are no id, because ids are below 2^31"
    ] * 2 + [None]
    assert server.requests == ["/schemas/ids/1"]
    assert reasons(server, 2**31 - 1) == [
        f"unknown_schema: the registry {server.url} has no schema with the id 2147483647"
    ]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>Not Found</html>",
        b"{}",
        b"[]",
        b'{"error_code": 404}',
        b"\xff",
        b"[" * 100_000,
        b"null",
        b'{"schema": "x", "references": 5}',
    ],
    ids=["empty", "page", "object", "list", "404", "bytes", "deep", "null", "references"],
)
@pytest.mark.parametrize("status", [404, 200])
def test_an_answer_that_is_not_the_registrys_is_an_error_and_no_dead_letter(
    server: Registry, body: bytes, status: int
) -> None:
    server.answers = {"/schemas/ids/1": (status, body)}
    with pytest.raises(RegistryError) as caught:
        reasons(server, 1)
    odd = "gave an answer that is not in the form of a schema registry. Check the URL."
    assert str(caught.value) == f"the registry {server.url}: {odd}"


def test_an_answer_that_is_cut_off_counts_as_no_answer(server: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("schemas.writers.registry._PAUSES_S", (0.0, 0.0))
    item = server.add(json.dumps(ITEM), "item")
    server.lost_bytes = 7
    with pytest.raises(RegistryError, match="does not answer: IncompleteRead"):
        client(server).find(item)
    assert server.requests == [f"/schemas/ids/{item}"] * 3


def test_an_answer_that_drips_ends_at_the_deadline(server: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    server.drip_s = 0.02
    server.answers = {"/schemas/types": (200, b'["AVRO"]' + b" " * 50)}
    client(server).check()
    monkeypatch.setattr(registry_module, "_DEADLINE_S", 0.1)
    with pytest.raises(RegistryError) as caught:
        client(server).check()
    again = "Nothing is lost: start the job again when the registry answers."
    assert str(caught.value) == f"the registry {server.url}: does not answer: TimeoutError. {again}"


def test_a_place_that_may_contain_a_password_is_refused_and_not_shown(tmp_path: Path) -> None:
    with pytest.raises(UnknownSchemaError) as refused:
        writer_schemas("reader:sesame@registry:8081", "", "")
    assert str(refused.value) == (
        "the text is neither a folder nor a URL such as https://host:port. It is not shown, because it may contain a"
        " password. Correct the text. User and password are settings of their own."
    )
    (tmp_path / "a@b").mkdir()
    (tmp_path / "a@b/7.avsc").write_text(json.dumps(ITEM))
    assert writer_schemas(f"{tmp_path}/a@b", "", "").find(7) == WrittenSchema("AVRO", json.dumps(ITEM))


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
