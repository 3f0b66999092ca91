"""Copies golden directories for tests that damage them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from storage_engine.kafka_dir.log_directory import LogDirectory
from storage_engine.verify.directory.directory_check import CheckedDirectory, check_directory
from storage_engine.verify.directory.directory_repair import repair_directory
from storage_engine.verify.findings import Finding, problems
from storage_engine.verify.segment_check import Options
from tests.stores import StoreFile

GOLDEN = Path(__file__).parents[2] / "golden"
ALL = sorted(path.parent.name for path in GOLDEN.glob("*/data"))
PLAIN = Options()
Damage = Callable[[Path], None]


def copied(name: str, into: Path) -> Path:
    """A copy of a golden log directory."""
    shutil.copytree(GOLDEN / name / "data", into / name)
    return into / name


def checked(path: Path, options: Options = PLAIN) -> CheckedDirectory:
    directory = LogDirectory(path)
    return check_directory(directory, directory.partitions, options, threads=1)


def problems_of(path: Path, options: Options = PLAIN) -> list[Finding]:
    return problems(checked(path, options).all_findings())


def repaired(path: Path) -> list[Finding]:
    """What is left after repairing."""
    return problems(repair_directory(checked(path), PLAIN, threads=1).all_findings())


def contents(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def overwrite(path: Path | StoreFile, position: int, data: bytes) -> None:
    """Write over some bytes of a file."""
    content = bytearray(path.read_bytes())
    content[position : position + len(data)] = data
    path.write_bytes(content)


def flip(path: Path | StoreFile, position: int, bit: int = 1) -> None:
    """Change one bit of a file."""
    overwrite(path, position, bytes([path.read_bytes()[position] ^ bit]))
