"""Writes a benchmark's results to bench/results/: the figures, the ratios with their targets, and the conditions."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
_PACKAGES = ("pyspark", "pyarrow", "numpy", "numba", "crc32c", "cramjam", "aiokafka", "confluent-kafka", "kafka-python")


@dataclass(frozen=True)
class Ratio:
    """A figure of Lakelog compared with the figure of a peer. at_least, at_most: the target."""

    name: str
    value: float
    at_least: float | None = None
    at_most: float | None = None

    @property
    def wanted(self) -> str:
        return f"at least {self.at_least}" if self.at_least is not None else f"at most {self.at_most}"

    @property
    def met(self) -> bool:
        return (self.at_least is None or self.value >= self.at_least) and (
            self.at_most is None or self.value <= self.at_most
        )


def write_results(
    name: str, title: str, conditions: str, head: Sequence[str], rows: Sequence[Sequence[str]], ratios: Sequence[Ratio]
) -> None:
    """Write bench/results/<name>.md, and print the ratios that miss their targets on standard output."""
    lines = [f"# {title}", "", conditions, "", _machine(), ""]
    lines += [*_table(head, rows), ""]
    if ratios:
        lines += [*_table(["ratio", "measured", "wanted", ""], _ratio_rows(ratios)), ""]
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.md").write_text("\n".join(lines))
    for ratio in ratios:
        if not ratio.met:
            print(f"target not met: {ratio.name} is {ratio.value:.2f}, but should be {ratio.wanted}")
    met = f"{sum(ratio.met for ratio in ratios)} of {len(ratios)} ratios meet their targets; " if ratios else ""
    print(f"{met}the results are in bench/results/{name}.md")


def print_ratios(ratios: Sequence[Ratio]) -> None:
    """Print the ratios of a run whose sizes differ from those of the page. Such a run does not write the page."""
    for ratio in ratios:
        print(f"{ratio.name}: {ratio.value:.2f}, wanted {ratio.wanted}", flush=True)


def _ratio_rows(ratios: Sequence[Ratio]) -> list[list[str]]:
    return [[ratio.name, f"{ratio.value:.2f}", ratio.wanted, "" if ratio.met else "**not met**"] for ratio in ratios]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in [head, *rows]
    ]
    return [lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]]


def _machine() -> str:
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True).stderr.split('"')[1]
    packages = ", ".join(f"{package} {version(package)}" for package in _PACKAGES)
    load = ", ".join(f"{average:.1f}" for average in os.getloadavg())
    return (
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC; {platform.machine()}, {_processor()}, {os.cpu_count()} cores; load at the"
        f" end {load} (1, 5, 15 minutes); {platform.system()} {platform.release()}; Python {platform.python_version()},"
        f" Java {java}; {packages}."
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown processor"
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown processor")
