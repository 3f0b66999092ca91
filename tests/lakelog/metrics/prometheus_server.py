"""Runs promtool and Prometheus, which scripts/go_programs.py builds."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

_PATIENCE_SECONDS = 300


def promtool(programs: Path, *arguments: str | Path) -> str:
    """Run promtool to its end; an error is a failure of the test, with all that promtool printed."""
    done = subprocess.run(
        [programs / "promtool", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=_PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class PrometheusServer:
    """A running Prometheus that asks every second."""

    def __init__(self, port: int) -> None:
        self._port = port

    def ask(self, path: str, **query: str) -> Any:
        """The data of an answer of the HTTP API."""
        url = f"http://127.0.0.1:{self._port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=_PATIENCE_SECONDS) as answer:
            return json.load(answer)["data"]

    def value(self, expression: str) -> float | None:
        """The value of an expression with one result; None if there is no result."""
        found = self.ask("query", query=expression)["result"]
        return float(found[0]["value"][1]) if found else None

    def wait_until(self, expression: str, wanted: float) -> None:
        """Wait until an expression has a value."""
        end = time.monotonic() + _PATIENCE_SECONDS
        while (found := self.value(expression)) != wanted:
            assert time.monotonic() < end, f"{expression} is {found}, not {wanted}"
            time.sleep(0.2)

    def firing(self) -> set[str]:
        """The names of the alerts that fire."""
        return {each["labels"]["alertname"] for each in self.ask("alerts")["alerts"] if each["state"] == "firing"}

    def wait_for_alerts(self, wanted: set[str]) -> None:
        """Wait until all of these alerts fire."""
        end = time.monotonic() + _PATIENCE_SECONDS
        while missing := wanted - self.firing():
            assert time.monotonic() < end, f"these alerts do not fire: {sorted(missing)}"
            time.sleep(0.5)


@contextmanager
def running_prometheus(programs: Path, folder: Path, targets: list[str], rules: Path) -> Iterator[PrometheusServer]:
    """Start Prometheus on a free port.

    Args:
        targets: HOST:PORT of what it scrapes.
        rules: the file of alerts.
    """
    settings = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": [{"job_name": "lakelog", "static_configs": [{"targets": targets}]}],
    }
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(settings))
    port = free_port()
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                programs / "prometheus", f"--config.file={file}", f"--storage.tsdb.path={folder / 'tsdb'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log, stderr=log, cwd=folder,
        )  # fmt: skip
        try:
            end = time.monotonic() + _PATIENCE_SECONDS
            while not _is_ready(port):
                assert process.poll() is None, (folder / "prometheus.log").read_text()
                assert time.monotonic() < end
                time.sleep(0.2)
            yield PrometheusServer(port)
        finally:
            process.terminate()
            process.wait(_PATIENCE_SECONDS)


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
