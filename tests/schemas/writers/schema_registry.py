"""A small server that answers like Confluent's Schema Registry, for the five requests that Lakelog sends.

The paths, the fields of the answers and the error codes are those of the registry's REST API reference:

    GET /schemas/types                      ["AVRO", "PROTOBUF", "JSON"]
    GET /schemas/ids/ID                     {"schema": TEXT, "schemaType": TYPE, "references": [...]}; AVRO is left out
    GET /schemas/guids/GUID                 the same
    GET /subjects/SUBJECT/versions/NUMBER   the same, with subject, version and id
    GET /subjects/SUBJECT/versions/NUMBER/?deleted=true    the same, also if the subject is deleted
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import unquote


@dataclass
class Registry:
    """The schemas of a server.

    login: user and password that each request must have; None: every request is answered.
    failures: statuses of the next answers.
    answers: by path, other bodies of the answer with their status. Each byte is sent after a pause of `drip_s`.
    lost_bytes: how many bytes of each answer are not sent, although its length counts them.
    requests: the paths of all requests.
    guids: the ids of schemas, by their GUID.
    """

    url: str = ""
    login: tuple[str, str] | None = None
    failures: list[int] = field(default_factory=list)
    answers: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    drip_s: float = 0.0
    lost_bytes: int = 0
    requests: list[str] = field(default_factory=list)
    schemas: dict[int, dict[str, Any]] = field(default_factory=dict)
    guids: dict[str, int] = field(default_factory=dict)
    subjects: dict[tuple[str, int], int] = field(default_factory=dict)
    deleted: dict[tuple[str, int], int] = field(default_factory=dict)

    def add(self, text: str, subject: str, kind: str = "AVRO", references: Sequence[tuple[str, str]] = ()) -> int:
        """Register a schema as the first version of a subject. references: names of types and subjects."""
        number = len(self.schemas) + 1
        found: dict[str, Any] = {"schema": text}
        if kind != "AVRO":
            found["schemaType"] = kind
        if references:
            found["references"] = [{"name": name, "subject": each, "version": 1} for name, each in references]
        self.schemas[number] = found
        self.subjects[subject, 1] = number
        return number

    def delete(self, subject: str) -> None:
        """Delete a subject. Its schema stays, and has its id."""
        self.deleted[subject, 1] = self.subjects.pop((subject, 1))

    def answer(self, path: str, authorization: str | None) -> tuple[int, object]:
        self.requests.append(path)
        if self.failures:
            return self.failures.pop(0), {"error_code": 50001, "message": "Error in the backend data store"}
        if self.login is not None:
            wanted = base64.b64encode(":".join(self.login).encode()).decode()
            if authorization != f"Basic {wanted}":
                return 401, {"error_code": 401, "message": "Unauthorized"}
        subjects = self.subjects
        if path.endswith("/?deleted=true"):
            path, subjects = path.removesuffix("/?deleted=true"), self.subjects | self.deleted
        match path.split("/")[1:]:
            case ["schemas", "types"]:
                return 200, ["AVRO", "PROTOBUF", "JSON"]
            case ["schemas", "ids", number] if int(number) in self.schemas:
                return 200, self.schemas[int(number)]
            case ["schemas", "guids", guid] if guid in self.guids:
                return 200, self.schemas[self.guids[guid]]
            case ["schemas", "ids" | "guids", _]:
                return 404, {"error_code": 40403, "message": "Schema not found"}
            case ["subjects", subject, "versions", version] if (unquote(subject), int(version)) in subjects:
                found = subjects[unquote(subject), int(version)]
                more: Mapping[str, Any] = {"subject": unquote(subject), "version": int(version), "id": found}
                return 200, {**more, **self.schemas[found]}
        return 404, {"error_code": 40401, "message": "Subject not found"}


@contextmanager
def schema_registry(login: tuple[str, str] | None = None) -> Iterator[Registry]:
    """A registry without schemas, which answers until the end of the block."""
    registry = Registry(login=login)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, document = registry.answer(self.path, self.headers.get("Authorization"))
            body = json.dumps(document).encode()
            status, body = registry.answers.get(self.path, (status, body))
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(body) + registry.lost_bytes))
            self.end_headers()
            for byte in body if registry.drip_s else ():
                time.sleep(registry.drip_s)
                self.wfile.write(bytes([byte]))
            self.wfile.write(b"" if registry.drip_s else body)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        registry.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield registry
        finally:
            server.shutdown()
            thread.join()
