"""Asks a schema registry for a schema, through the REST API of Confluent's Schema Registry.

    GET /schemas/types                          at the start of a job: is this a registry that answers?
    GET /schemas/ids/ID                         {"schema": ..., "schemaType": ..., "references": [...]}
    GET /schemas/guids/GUID                     the same, for a GUID
    GET /subjects/SUBJECT/versions/VERSION      the same, for a schema that another schema refers to

A registry that is silent for ten seconds, or has not given its whole answer after thirty, or answers with a status of
500 or more, is asked three times in all. An id is missing only if the registry says so with its own error code, because
a proxy also answers 404 if it does not reach the registry. A schema that the registry cannot give, or whose references
are not complete, concerns only the values with its id.

The user and the password go only to the server of the URL, and not to a server to which it redirects. No message
contains them. Python uses the proxies of the environment variables http_proxy and https_proxy. A proxy for an http URL
can read the password; use https.
"""

from __future__ import annotations

import base64
import http.client
import json
import queue
import re
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Collection
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from uuid import UUID

from schemas.schema_errors import RegistryError, UnknownSchemaError
from schemas.writers.writer_schemas import SchemaId, UnusableSchemaError, WrittenSchema

REGISTRY_USER = "LAKELOG_SCHEMAS_REGISTRY_USER"
REGISTRY_PASSWORD = "LAKELOG_SCHEMAS_REGISTRY_PASSWORD"
"""The environment variables of the settings schemas.registry.user and schemas.registry.password."""
_TIMEOUT_S = 10
_DEADLINE_S = 30.0
_PAUSES_S = (0.2, 1.0)
_MOST_BYTES = 16 << 20
_MOST_REFERENCES = 1000
_DEEPEST_REFERENCE = 100
_GUIDS = "/schemas/guids"
_NO_ID = (40403,)
_NO_SUBJECT = (40401, 40402)
"""The registry's error codes in answers with the status 404."""
_ONLY_THIS_SCHEMA = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY)
_ACCEPTED = "application/vnd.schemaregistry.v1+json, application/json"
_URL = re.compile(r"https?://(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?(?:/[^?#@\s]*)?")
_AGAIN = "Nothing is lost: start the job again when the registry answers."


def is_url(text: str) -> bool:
    """Whether the text names a registry, and not a folder."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", text) is not None


@dataclass(frozen=True)
class SchemaRegistry:
    """A schema registry. user, password: sent with each request if the user is not empty."""

    url: str
    user: str = ""
    password: str = field(repr=False, default="")

    @classmethod
    def at(cls, url: str, user: str, password: str) -> SchemaRegistry:
        """The registry at a URL.

        Raises:
            UnknownSchemaError: the URL has another form. The error does not show the URL, which may contain a password.
        """
        if _URL.fullmatch(url) is None:
            raise UnknownSchemaError(
                "the URL of the schema registry is not of the form https://host:port/path. It is not shown, because it may"
                " contain a password",
                f"Give user and password with {REGISTRY_USER} and {REGISTRY_PASSWORD}.",
            )
        return cls(url.rstrip("/"), user, password)

    @property
    def shown(self) -> str:
        return f"the registry {self.url}"

    def check(self) -> None:
        """Check that the registry answers.

        Raises:
            RegistryError: it does not, or refuses access, or is no schema registry.
        """
        if not isinstance(self._get("/schemas/types"), list):
            raise self._odd_answer()

    def find(self, schema_id: SchemaId) -> WrittenSchema | None:
        """The schema with an id or a GUID; None if there is none.

        Raises:
            RegistryError: the registry is unavailable, or gives an answer that cannot be used.
            UnusableSchemaError: the registry does not give this schema, or not all schemas to which it refers.
        """
        found = self._get(f"{_GUIDS if isinstance(schema_id, UUID) else '/schemas/ids'}/{schema_id}", _NO_ID)
        if found is None:
            return None
        if not isinstance(found, dict):
            raise self._odd_answer()
        referred: dict[tuple[str, int], str] = {}
        self._add_references(found, referred, ())
        return WrittenSchema(str(found.get("schemaType") or "AVRO"), self._text(found), tuple(referred.values()))

    def _add_references(
        self, schema: dict[str, Any], found: dict[tuple[str, int], str], outer: tuple[tuple[str, int], ...]
    ) -> None:
        references = schema.get("references") or []
        if not isinstance(references, list):
            raise self._odd_answer()
        for each in references:
            try:
                key = (str(each["subject"]), int(each["version"]))
            except (TypeError, KeyError, ValueError):
                raise self._odd_answer() from None
            if key in found:
                continue
            if key in outer:
                raise UnusableSchemaError("a schema to which it refers refers to itself")
            if len(found) >= _MOST_REFERENCES or len(outer) >= _DEEPEST_REFERENCE:
                raise UnusableSchemaError("it refers to too many schemas")
            subject = urllib.parse.quote(key[0], safe="")
            path = f"/subjects/{subject}/versions/{key[1]}"
            referred = self._get(path, _NO_SUBJECT)
            if referred is None:  # its subject may be deleted: the registry then gives the schema only on request
                referred = self._get(f"{path}/?deleted=true", _NO_SUBJECT)
            if referred is None:
                raise UnusableSchemaError("it refers to a schema that the registry does not have")
            if not isinstance(referred, dict):
                raise self._odd_answer()
            self._add_references(referred, found, (*outer, key))
            found[key] = self._text(referred)

    def _text(self, answer: dict[str, Any]) -> str:
        text = answer.get("schema")
        if not isinstance(text, str):
            raise self._odd_answer()
        return text

    def _get(self, path: str, missing: Collection[int] = ()) -> Any:
        """The document at a path; None if the registry says that there is none.

        Args:
            missing: the error codes with which it says so.
        """
        request = urllib.request.Request(f"{self.url}{path}", headers={"Accept": _ACCEPTED})
        if self.user:
            login = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
            request.add_unredirected_header("Authorization", f"Basic {login}")
        problem = ""
        for pause in (*_PAUSES_S, None):
            try:
                status, body = _answer_in_time(request)
            except (OSError, http.client.HTTPException) as error:
                reason = error.reason if isinstance(error, urllib.error.URLError) else error
                problem = f"does not answer: {type(reason).__name__}"
            else:
                if status < HTTPStatus.BAD_REQUEST:
                    return self._document(body)
                problem = f"answered with status {status}"
                if status < HTTPStatus.INTERNAL_SERVER_ERROR and status != HTTPStatus.TOO_MANY_REQUESTS:
                    return self._none(path, status, body, missing)
            if pause is not None:
                time.sleep(pause)
        raise RegistryError(self.shown, problem, _AGAIN)

    def _document(self, body: bytes) -> Any:
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            found = None
        if found is None:
            raise self._odd_answer()
        return found

    def _none(self, path: str, status: int, body: bytes, missing: Collection[int]) -> None:
        """None if an answer says that there is no document. Any other answer is an error."""
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            raise RegistryError(
                self.shown, f"refused access: status {status}", f"Check {REGISTRY_USER} and {REGISTRY_PASSWORD}."
            )
        if missing and status in _ONLY_THIS_SCHEMA:
            raise UnusableSchemaError(f"the registry refuses it with status {status}")
        if status != HTTPStatus.NOT_FOUND:
            raise RegistryError(self.shown, f"answered with status {status}", "Check the URL.")
        found = self._document(body)
        code = found.get("error_code") if isinstance(found, dict) else None
        if code == HTTPStatus.NOT_FOUND and path.startswith(_GUIDS):
            raise RegistryError(
                self.shown,
                f"does not know the path {_GUIDS}, so it cannot find a schema by the GUID in a header",
                "Use a newer version of the registry, or a folder of schemas.",
            )
        if code not in missing:
            raise self._odd_answer()

    def _odd_answer(self) -> RegistryError:
        return RegistryError(
            self.shown, "gave an answer that is not in the form of a schema registry", "Check the URL."
        )


def _answer_in_time(request: urllib.request.Request) -> tuple[int, bytes]:
    """Status and body of the answer.

    urllib limits only the time between two parts of an answer. So a thread of its own waits for the answer, and is left
    alone if this takes too long.

    Raises:
        OSError, HTTPException: there is no answer, or not in time.
    """
    done = queue.SimpleQueue[tuple[int, bytes] | Exception]()

    def ask() -> None:
        try:
            done.put(_answer(request))
        except Exception as error:  # noqa: BLE001 - raised again below
            done.put(error)

    threading.Thread(target=ask, name="schema registry", daemon=True).start()
    try:
        found = done.get(timeout=_DEADLINE_S)
    except queue.Empty:
        raise TimeoutError from None
    if isinstance(found, Exception):
        raise found
    return found


def _answer(request: urllib.request.Request) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            body = answer.read(_MOST_BYTES)
            if answer.length and len(body) < _MOST_BYTES:
                raise http.client.IncompleteRead(body, answer.length)
            return answer.status, body
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read(_MOST_BYTES)
