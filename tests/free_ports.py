"""Finds free ports for the servers that tests start."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import ExitStack


def free_ports(count: int) -> Sequence[int]:
    """Return different ports of 127.0.0.1 that no program uses now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
