"""Helpers for the tests of dumps: they return a whole dump as text, and make a segment that a test can damage."""

from __future__ import annotations

import shutil
from pathlib import Path

from lakelog.dump import DumpedFile, DumpOptions, Mismatches, dump_file
from storage_engine.errors import LogError

GOLDEN = Path(__file__).parents[2] / "golden"
EVERYTHING = DumpOptions(records=True, contents=True)
BASE = f"{0:020d}"
"""The segment that is damaged here: nine batches of transactions, 4,204 bytes; the second lies at 527, the third at
1245.
"""


def dumped(path: Path, wanted: DumpOptions = EVERYTHING, name: str = "file") -> tuple[str, str, LogError | None]:
    """What is printed, what is found besides, and how it ends."""
    findings = Mismatches()
    lines: list[bytes] = []
    error = None
    try:
        lines.extend(dump_file(DumpedFile(path, name, f"/{name}"), wanted, findings))
    except LogError as raised:
        error = raised
    return b"".join(lines).decode(), "".join(f"{told}\n" for told in findings.text()), error


def segment(tmp_path: Path) -> Path:
    """Copies of that segment's .log, .index and .timeindex; the path of the .log."""
    for suffix in (".log", ".index", ".timeindex"):
        shutil.copyfile(GOLDEN / "txn/data/txn-0" / f"{BASE}{suffix}", tmp_path / f"{BASE}{suffix}")
    return tmp_path / f"{BASE}.log"


def overwrite(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)
