"""Measures how long `lakelog ui` needs for the pages of a root with 10,000 partitions.

    python -m bench.pages [--partitions 10000]

In each round, a new server opens the root. The first request asks for the overview as soon as the port is open. Two
seconds later, the second request asks for the page of the topic, and the third for the same page again. The benchmark
reads each answer to its end, and checks that the answer names the topic. The result has the medians.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import lakelog
from bench.results import Ratio, print_ratios, write_results

PARTITIONS = 10_000
ROUNDS = 5
TOPIC = "telemetry"
MOST_SECONDS = 1.0
PAUSE_SECONDS = 2.0
PAGES = {
    "overview, as soon as the port is open": "",
    "page of the topic": f"topics/{TOPIC}",
    "page of the topic, again": f"topics/{TOPIC}",
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--partitions", type=int, default=PARTITIONS)
    arguments = parser.parse_args(sys.argv[1:] if sys.argv[0] == __file__ else [])
    with tempfile.TemporaryDirectory(prefix="lakelog-bench-") as folder:
        topic = lakelog.open(folder, create=True).create_topic(TOPIC, partitions=arguments.partitions)
        topic.append([{"key": str(number), "value": "reading"} for number in range(arguments.partitions)])
        rounds = [_seconds(folder) for _ in range(ROUNDS)]
    seconds = {page: statistics.median(each[page] for each in rounds) for page in PAGES}
    ratios = [Ratio(f"seconds: {page}", taken, at_most=MOST_SECONDS) for page, taken in seconds.items()]
    if arguments.partitions != PARTITIONS:
        print_ratios(ratios)
        return
    write_results(
        "pages", "Pages of `lakelog ui`",
        f"A topic with {PARTITIONS:,} partitions, of which each has a record. Medians of {ROUNDS} servers, each of which"
        f" answers these requests one after another. {PAUSE_SECONDS:.0f} seconds lie between the first two requests.",
        ["page", "seconds"], [[page, f"{taken:.2f}"] for page, taken in seconds.items()], ratios,
    )  # fmt: skip


def _seconds(root: str) -> dict[str, float]:
    """The seconds of each page, from a new server."""
    program = Path(sys.executable).with_name("lakelog")
    command = [str(program), "ui", "--root", root, "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            address = server.stdout.readline().removeprefix("pages at ").strip()
            taken = {}
            for number, (page, path) in enumerate(PAGES.items()):
                time.sleep(PAUSE_SECONDS if number == 1 else 0)
                began = time.perf_counter()
                with urllib.request.urlopen(f"{address}{path}") as answer:
                    content = answer.read()
                taken[page] = time.perf_counter() - began
                assert TOPIC.encode() in content
        finally:
            server.terminate()
    return taken


if __name__ == "__main__":
    main()
