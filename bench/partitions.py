"""Measures the cost of many partitions: each command of `lakelog` on 2,500, 5,000 and 10,000 partitions.

    python -m bench.partitions [--partitions 10000]

Each command is a separate process with a hard limit of 256 open files. The commands run one after another on the same
root. Two of the commands append four records to each partition. The second append begins a second segment in most
partitions. The result has the processor time (user and system), the elapsed time, and the largest resident size. If the
number of partitions doubles, time and memory may become at most 2.5 times as large. Before the benchmark compares
10,000 with 5,000 partitions, it subtracts the cost of the same command on one partition from both costs. The benchmark
also compares the records that it reads with the records that it wrote.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bench.results import Ratio, write_results

PARTITIONS = 10_000
OPEN_FILES = 256
RECORDS = 4
"""Records of each append in each partition, on average."""
MOST_SECONDS_TO_CREATE = 10
MOST_GROWTH = 2.5
"""The largest ratio of time and of memory if the number of partitions doubles. Linear growth gives 2; the rest is for
the variation of measurements."""
COMMANDS = {
    "create": ["topics", "create", "t"],
    "describe": ["topics", "describe", "t"],
    "append": ["append", "--topic", "t"],
    "append again": ["append", "--topic", "t"],
    "read": ["read", "--topic", "t"],
    "plan": ["plan", "--topic", "t"],
    "verify": ["verify"],
    "report": ["report"],
}


@dataclass(frozen=True)
class Taken:
    """The time and memory that a command used."""

    seconds: float
    cpu_seconds: float
    mib: float


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--partitions", type=int, default=PARTITIONS)
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args(sys.argv[1:] if sys.argv[0] == __file__ else [])
    if arguments.measure:
        measured = measure(arguments.measure)
        print(json.dumps({name: [of.seconds, of.cpu_seconds, of.mib] for name, of in measured.items()}))
        return
    most = arguments.partitions
    sizes = [1, most // 4, most // 2, most]
    taken = {size: _measured(size) for size in sizes}
    rows = [
        [command, *(f"{of.seconds:.1f} / {of.cpu_seconds:.1f} / {of.mib:.0f}" for of in of_sizes)]
        for command, of_sizes in ((each, [taken[size][each] for size in sizes]) for each in COMMANDS)
    ]
    for row in rows:
        print(row)
    if most != PARTITIONS:
        return
    base, _, half, whole = (taken[size] for size in sizes)
    ratios = [Ratio("create of 10,000 partitions, seconds", whole["create"].seconds, at_most=MOST_SECONDS_TO_CREATE)]
    for command in COMMANDS:
        for what, of in (("processor time", "cpu_seconds"), ("memory", "mib")):
            first, second, third = (getattr(each[command], of) for each in (base, half, whole))
            growth = max(third - first, 0) / max(second - first, 0.05 * first)
            ratios.append(
                Ratio(f"{command}: {what} for 10,000 partitions / for 5,000 partitions", growth, at_most=MOST_GROWTH)
            )
    write_results(
        "partitions", "Thousands of partitions",
        "Each cell has three numbers: elapsed seconds / seconds of processor time / the largest memory in MiB. Each"
        f" command is a separate process with at most {OPEN_FILES} open files. Each append writes {RECORDS} records to"
        f" every partition. The second append begins a new segment on all partitions except {OPEN_FILES // 2}. Before"
        " a ratio is computed, the cost of the same command on one partition is subtracted from both costs.",
        ["command", *(f"{size:,} partition{'s' if size > 1 else ''}" for size in sizes)], rows, ratios,
    )  # fmt: skip


def _measured(partitions: int) -> dict[str, Taken]:
    """The result of measure() in a separate small process. The system counts the size of a process also for its child
    processes, so the parent of the measured commands must be small."""
    command = [sys.executable, "-m", "bench.partitions", "--measure", str(partitions)]
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return {name: Taken(*of) for name, of in json.loads(found).items()}


def measure(partitions: int) -> dict[str, Taken]:
    """The time and memory of each command on a topic with this number of partitions."""
    with tempfile.TemporaryDirectory(prefix="lakelog-bench-") as folder:
        lines = [_line(number) for number in range(partitions * RECORDS)]
        taken = {}
        for name, command in COMMANDS.items():
            more = {"create": ["--partitions", str(partitions)], "report": ["--out", f"{folder}/report.html"]}.get(
                name, []
            )
            given = "".join(lines) if name.startswith("append") else ""
            out, taken[name] = _run([*command, *more, "--root", folder], given, Path(folder, "out"))
            if name == "read":
                read = sorted(_key_and_value(json.loads(line)) for line in out.splitlines())
                written = sorted(2 * [_key_and_value(json.loads(line)) for line in lines])
                assert read == written, "what was read is not what was written"
            print(f"{partitions:,} partitions, {name}: {taken[name]}", file=sys.stderr, flush=True)
    return taken


def _line(number: int) -> str:
    key, value = (base64.b64encode(b"%s%d" % (letter, number)).decode() for letter in (b"k", b"v"))
    return json.dumps({"key": key, "value": value}) + "\n"


def _key_and_value(record: dict[str, str]) -> tuple[str, str]:
    return record["key"], record["value"]


def _run(arguments: list[str], given: str, out: Path) -> tuple[str, Taken]:
    """Run a command to its end; returns its standard output.

    Raises:
        AssertionError: the exit status of the command was not 0.
    """
    fed = out.with_name("in")
    fed.write_text(given)
    begun = time.perf_counter()
    with fed.open() as stdin, out.open("w") as stdout:
        process = subprocess.Popen(
            [
                "/bin/sh",
                "-c",
                f'ulimit -n {OPEN_FILES} && exec "$0" -m lakelog.cli "$@"',
                sys.executable,
                *arguments,
            ],
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.DEVNULL,
        )
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, f"lakelog {' '.join(arguments)} ended with {process.returncode}"
    seconds = time.perf_counter() - begun
    return out.read_text(), Taken(seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


if __name__ == "__main__":
    main()
