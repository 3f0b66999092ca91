"""Answers scrapes of Prometheus over HTTP. Each scrape gets the metrics of its moment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from lakelog.optional import optional
from storage_engine.errors import StorageAccessError

with optional("prometheus_client", "lakelog[metrics]", "An address for scrapes"):
    from prometheus_client import start_http_server
    from prometheus_client.core import CollectorRegistry, Metric

Collect = Callable[[], Iterable[Metric]]
"""Makes the metrics of this moment. Several threads may call it."""


class CurrentMetrics(CollectorRegistry):
    """A registry with the metrics of the moment in which it is read."""

    def __init__(self, collect: Collect) -> None:
        super().__init__()
        self._collect = collect

    def collect(self) -> Iterator[Metric]:
        return iter(self._collect())


class ScrapeServer:
    """Answers scrapes at http://HOST:PORT/metrics, in threads of its own, until it is closed.

    url: the address.
    """

    def __init__(self, option: str, host: str, port: int, collect: Collect) -> None:
        """
        Args:
            option: the option that names the address, for messages.
            port: 0 chooses a free port.

        Raises:
            StorageAccessError: the port cannot be opened.
        """
        try:
            self._server, self._thread = start_http_server(port, host, CurrentMetrics(collect))
        except OSError as error:
            raise StorageAccessError(
                f"{option} {host}:{port}", f"cannot be opened: {error.strerror or error}", "Choose another address."
            ) from error
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self._server.server_port}/metrics"

    def close(self) -> None:
        """Close the port, and wait for the server's thread."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
