"""Forwards TCP connections to a NameNode, and cuts them at a chosen call, as a failing network does."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self


class CutConnection:
    """A forwarder to a port of 127.0.0.1; as a context it is started and ended.

    port: of the forwarder. cuts: how many connections were cut.
    """

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._call = b""
        self._executes = True
        self._is_down_afterwards = False
        self._is_down = False
        self.cuts = 0

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()

    def cut_at(self, call: str, *, executes: bool, is_down_afterwards: bool = False) -> None:
        """Cut the connection once, at the next call of this name.

        Args:
            call: name of a call in the protocol of the NameNode.
            executes: the NameNode executes the call, and its reply is lost. Otherwise, the call is lost.
            is_down_afterwards: also refuse every later connection.
        """
        self._executes, self._is_down_afterwards = executes, is_down_afterwards
        self._call = call.encode()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client = self._listener.accept()[0]
                if self._is_down:
                    client.close()
                    continue
                server = socket.create_connection(("127.0.0.1", self._target_port))
                lost = threading.Event()
                threading.Thread(target=self._requests, args=(client, server, lost), daemon=True).start()
                threading.Thread(target=self._replies, args=(client, server, lost), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket, lost: threading.Event) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                if self._call and self._call in data:
                    self._call = b""
                    self.cuts += 1
                    self._is_down = self._is_down_afterwards
                    if not self._executes:
                        break
                    lost.set()
                server.sendall(data)
        if not lost.is_set():
            _end(client, server)

    def _replies(self, client: socket.socket, server: socket.socket, lost: threading.Event) -> None:
        with suppress(OSError):
            while (data := server.recv(65536)) and not lost.is_set():
                client.sendall(data)
        _end(client, server)


def _end(*ends: socket.socket) -> None:
    for each in ends:
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()
