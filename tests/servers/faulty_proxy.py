"""A proxy between a client and a server of an object store, on this machine, which records and damages requests.

The proxy receives a whole request, and asks its rules for a fault. If the rules give no fault, the server executes the
request. If they give a fault, the fault decides what happens. Each client connection has a thread. Each request to the
server has a connection of its own, so a cut connection harms no other request. The headers reach the server as the
client sent them, even the header Host. So if the paths contain the bucket, a signature for the address of the proxy is
also valid on the server.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from tests.servers import http_messages
from tests.servers.faults import Fault, Plan
from tests.servers.http_messages import Reply, Request
from tests.servers.object_server import ObjectServer
from tests.servers.s3_signature import signed_again

NOT_FORWARDED = {"connection", "keep-alive", "transfer-encoding"}


@dataclass(frozen=True)
class Exchange:
    """A request that passed a proxy.

    path: with the query.
    start: when the proxy had received the request, in seconds of time.monotonic().
    end: when the client had been answered.
    status: what the client saw; None if the connection was closed without a reply.
    fault: None if the request met no fault.
    """

    method: str
    path: str
    start: float
    end: float
    status: int | None
    fault: Fault | None


class FaultyProxy:
    """As a context, the proxy runs.

    exchanges: the requests since the start or since the last `forget`, in the order of their ends.
    held: the requests that a fault has kept back.
    """

    def __init__(self, server: ObjectServer, *plans: Plan, latency_seconds: float = 0) -> None:
        """
        Args:
            plans: the first plan that returns a fault decides.
            latency_seconds: each request waits so long. With a latency that is longer than the work of a client
                between two requests, requests that a client sends at the same time also overlap here.
        """
        self.latency_seconds = latency_seconds
        self.exchanges: list[Exchange] = []
        self.held: list[Request] = []
        self._server = server
        self._plans: list[Plan] = list(plans)
        self._mutex = threading.Lock()

    def __enter__(self) -> Self:
        self._listener = _Listener(self)
        self._thread = threading.Thread(target=self._listener.serve_forever, args=(0.05,), name="faulty-proxy")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown()
        self._thread.join()
        self._listener.hang_up()
        self._listener.server_close()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._listener.server_port}"

    @property
    def server(self) -> ObjectServer:
        """The server, for clients that connect to the proxy."""
        return self._server.behind(f"{self.endpoint}{urlsplit(self._server.endpoint).path}")

    def add(self, *plans: Plan) -> None:
        with self._mutex:
            self._plans.extend(plans)

    def clear(self) -> None:
        """Forget all plans: from now on, requests meet no fault."""
        with self._mutex:
            self._plans.clear()

    def forget(self) -> list[Exchange]:
        """Return the exchanges so far, and begin to count again."""
        with self._mutex:
            exchanges, self.exchanges = self.exchanges, []
        return exchanges

    def count(self, method: str | None = None, part: str = "") -> int:
        """How many requests had this method, and this text in their path."""
        return sum(method in (None, each.method) and part in each.path for each in self.exchanges)

    def release(self) -> list[Reply]:
        """Let the server execute the held requests now, in the order of their arrival."""
        with self._mutex:
            held, self.held = self.held, []
        return [self.execute(each) for each in held]

    def execute(self, request: Request) -> Reply:
        return http_messages.execute(self._address, request)

    def execute_part(self, request: Request, size: int) -> None:
        http_messages.execute_part(self._address, request, size)

    def hold(self, request: Request) -> None:
        with self._mutex:
            self.held.append(request)

    def signed_again(self, request: Request) -> Request:
        return signed_again(request, self._server.options["aws_secret_access_key"])

    def choose(self, request: Request) -> Fault | None:
        with self._mutex:
            return next((fault for plan in self._plans if (fault := plan(request)) is not None), None)

    def record(self, exchange: Exchange) -> None:
        with self._mutex:
            self.exchanges.append(exchange)

    @property
    def _address(self) -> tuple[str, int]:
        parts = urlsplit(self._server.endpoint)
        assert parts.hostname is not None, "an endpoint has a host"
        assert parts.port is not None, "a local endpoint has a port"
        return parts.hostname, parts.port


def longest_chain(exchanges: Sequence[Exchange]) -> int:
    """The largest number of exchanges that ran one after another: each began after the end of the previous one."""
    length, last_end = 0, float("-inf")
    for each in sorted(exchanges, key=lambda exchange: exchange.end):
        if each.start >= last_end:
            length, last_end = length + 1, each.end
    return length


class _Listener(ThreadingHTTPServer):
    daemon_threads = False  # server_close waits for the threads of the clients
    request_queue_size = 512

    def __init__(self, proxy: FaultyProxy) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.proxy = proxy
        self._clients: set[socket.socket] = set()
        self._mutex = threading.Lock()

    def hang_up(self) -> None:
        """End the connections of all clients."""
        with self._mutex:
            for client in self._clients:
                with suppress(OSError):  # the client has hung up
                    client.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request, client_address) -> None:
        if not isinstance(sys.exception(), OSError):  # a client may hang up at any time
            super().handle_error(request, client_address)

    def process_request(self, request, client_address) -> None:
        with self._mutex:
            self._clients.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request) -> None:
        with self._mutex:
            self._clients.discard(request)
        super().shutdown_request(request)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Listener

    def _exchange(self) -> None:
        proxy = self.server.proxy
        request = Request(self.command, self.path, self.headers.items(), self._body())
        start = time.monotonic()
        fault = proxy.choose(request)
        time.sleep(proxy.latency_seconds)
        try:
            reply = proxy.execute(request) if fault is None else fault(request, proxy)
        except (OSError, HTTPException):
            reply = None  # the server has ended
        if reply is None:
            self.close_connection = True
        # A client that has its reply also finds the exchange: the exchange is recorded first.
        status = None if reply is None else reply.status
        proxy.record(Exchange(self.command, self.path, start, time.monotonic(), status, fault))
        if reply is not None:
            self._reply(reply)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_PATCH = _exchange  # noqa: N815

    def _body(self) -> bytes:
        if self.headers.get("transfer-encoding") is None:
            return self._read(int(self.headers.get("content-length", 0)))
        chunks = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            chunks.append(self._read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(chunks)

    def _read(self, size: int) -> bytes:
        data = self.rfile.read(size)
        if len(data) < size:
            raise ConnectionError("the client has hung up")
        return data

    def _reply(self, reply: Reply) -> None:
        has_body = self.command != "HEAD" and reply.status not in (204, 304)
        self.send_response_only(reply.status)
        for name, value in reply.headers:
            if name.lower() not in NOT_FORWARDED and not (has_body and name.lower() == "content-length"):
                self.send_header(name, value)
        if has_body:
            self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        if has_body:
            self.wfile.write(reply.body[: reply.cut_after])
        if reply.cut_after is not None:
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing is logged: `exchanges` has all requests."""
