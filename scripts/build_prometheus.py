"""Builds Prometheus and promtool, with which the tests check the metrics and the alerts, once for each .venv.

The source of both programs is a Go module. The version is fixed here. The build leaves out the clients of clouds that find
servers for Prometheus (the tag remove_all_sd), and the web pages, which the module does not contain.
"""

from __future__ import annotations

from pathlib import Path

from scripts.built_once import built_once
from scripts.go_program import install_go_programs

MODULE = "github.com/prometheus/prometheus"
VERSION = "0.316.0"
"""The version of the module. Its programs are Prometheus 3.16.0."""


def prometheus() -> Path:
    """The folder with the programs prometheus and promtool, which are built if they are missing."""
    return built_once(f"prometheus-{VERSION}", _build)


def _build(folder: Path) -> Path:
    programs = folder / "programs"
    packages = [f"{MODULE}/cmd/{name}@v{VERSION}" for name in ("prometheus", "promtool")]
    install_go_programs(programs, packages, "remove_all_sd")
    return programs


if __name__ == "__main__":
    prometheus()
