"""Gives the metrics of a root to Prometheus: by HTTP, or in a file for node_exporter's textfile collector.

Each scrape looks at the root once (lakelog.metrics.root_watch). If something cannot be read, the error is printed on
standard error, once. It is printed again only after it has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from lakelog.metrics.families import families
from lakelog.metrics.figures import RootFigures
from lakelog.metrics.root_watch import RootWatch, all_errors
from lakelog.metrics.scrape_server import CurrentMetrics, ScrapeServer
from lakelog.optional import optional

with optional("prometheus_client", "lakelog[metrics]", "The command `lakelog metrics`"):
    from prometheus_client import generate_latest
    from prometheus_client.core import Metric


class RootCollector:
    """Makes the metrics of a root at each scrape. Several scrapes may run at the same time."""

    def __init__(self, watch: RootWatch, warn: Callable[[str], None]) -> None:
        """
        Args:
            warn: called with each new error.
        """
        self._watch = watch
        self._warn = warn
        self._told: Mapping[str, str] = {}

    def look(self) -> RootFigures:
        """Look at the root, and report new errors."""
        figures = self._watch.look()
        errors = all_errors(figures)
        told, self._told = self._told, errors
        for place, text in errors.items():
            if told.get(place) != text:
                self._warn(text)
        return figures

    def collect(self) -> Iterator[Metric]:
        """The metrics for a scrape."""
        return families(self.look())


def exposition(figures: RootFigures) -> bytes:
    """The metrics in Prometheus's text format."""
    return generate_latest(CurrentMetrics(lambda: families(figures)))


def serve(
    collector: RootCollector, host: str, port: int, stop: Callable[[None], object], ready: Callable[[str], None]
) -> None:
    """Answer scrapes at http://HOST:PORT/metrics until `stop` returns.

    The first look may take long, because it reads older versions. So it is made before the port is opened.

    Args:
        port: 0 chooses a free port.
        stop: waits until the program must end. It is called with None.
        ready: called with the address when the port is open.

    Raises:
        StorageAccessError: the port cannot be opened.
    """
    collector.look()
    server = ScrapeServer("--listen", host, port, collector.collect)
    ready(server.url)
    stop(None)
    server.close()
