"""Requests and replies of HTTP as values, and a function that sends a request to a server."""

from __future__ import annotations

import http.client
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

Headers = Sequence[tuple[str, str]]
PATIENCE_SECONDS = 120


@dataclass(frozen=True)
class Request:
    """path: as sent, with the query. headers: as sent. body: without the framing of chunks."""

    method: str
    path: str
    headers: Headers
    body: bytes

    def header(self, name: str) -> str | None:
        return next((value for each, value in self.headers if each.lower() == name.lower()), None)

    def without(self, *names: str) -> Self:
        lowered = [name.lower() for name in names]
        return replace(self, headers=[each for each in self.headers if each[0].lower() not in lowered])


@dataclass(frozen=True)
class Reply:
    """cut_after: None for a whole reply; otherwise the connection ends after so many bytes of the body."""

    status: int
    headers: Headers
    body: bytes
    cut_after: int | None = None


def execute(address: tuple[str, int], request: Request) -> Reply:
    """Send a request on a connection of its own, with its headers as they are. A signature covers the header Host."""
    connection = http.client.HTTPConnection(*address, timeout=PATIENCE_SECONDS)
    try:
        _begin(connection, request)
        connection.endheaders(_framed(request))
        response = connection.getresponse()
        return Reply(response.status, response.getheaders(), response.read())
    finally:
        connection.close()


def execute_part(address: tuple[str, int], request: Request, size: int) -> None:
    """Send a request that ends after the first `size` bytes of its body."""
    connection = http.client.HTTPConnection(*address, timeout=PATIENCE_SECONDS)
    try:
        _begin(connection, request)
        connection.endheaders(_framed(request)[:size])
    finally:
        connection.close()


def _begin(connection: http.client.HTTPConnection, request: Request) -> None:
    connection.putrequest(request.method, request.path, skip_host=True, skip_accept_encoding=True)
    for name, value in request.without("expect").headers:
        connection.putheader(name, value)


def _framed(request: Request) -> bytes:
    if request.header("transfer-encoding") is None:
        return request.body
    chunk = b"%x\r\n%s\r\n" % (len(request.body), request.body) if request.body else b""
    return chunk + b"0\r\n\r\n"
