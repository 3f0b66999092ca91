"""Fixtures of the tests of bad input: run the commands and jobs, and compare the bytes of all files of a root."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jobs.compaction import compaction
from jobs.export import export
from jobs.ingest import ingest
from jobs.maintenance import maintenance
from jobs.retention import retention
from pipeline.clean.cleaning_job import add_cleaning_options
from pipeline.job import run_job
from tests.in_process import Ended
from tests.lakelog.cli.conftest import Lakelog, lakelog

__all__ = ["Ended", "Lakelog", "RunJob", "contents", "lakelog", "said"]

RunJob = Callable[..., Ended]
_CLEANING = {"retention": retention, "compaction": compaction, "maintenance": maintenance}
_SPEAKERS = tuple(f"{name}: " for name in ("lakelog", "ingest", "export", *_CLEANING))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The root that `lakelog` and `job` work on."""
    return tmp_path / "root"


@pytest.fixture
def job(root: Path, capfd: pytest.CaptureFixture[str]) -> RunJob:
    """Runs a job on the root as its process would: job("export", "--set", "export.topic=t")."""

    def run(name: str, *arguments: str, environ: dict[str, str] | None = None, with_root: bool = True) -> Ended:
        argv = [*(("--root", str(root)) if with_root else ()), *arguments]
        capfd.readouterr()
        if name in _CLEANING:
            status = run_job(name, "", _CLEANING[name], add_cleaning_options, argv, environ or {})
        elif name == "ingest":
            status = run_job(name, "", ingest, _no_arguments_of_its_own, argv, environ or {})
        else:
            status = run_job(name, "", export, None, argv, environ or {})
        return Ended(status, *capfd.readouterr())

    return run


def _no_arguments_of_its_own(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(take_over=False, accept_new_checkpoint=False)


def contents(root: Path) -> dict[str, bytes]:
    """Every file of meta/ and data/, by its path: what a failure may not change."""
    return {str(path.relative_to(root)): path.read_bytes() for path in _files(root)}


def _files(root: Path) -> Iterator[Path]:
    for folder in ("meta", "data"):
        yield from (path for path in sorted((root / folder).rglob("*")) if path.is_file())


def said(ended: Ended, place: str = "", status: int = 1) -> str:
    """The one line that an error is; a traceback, or anything on standard output, fails the test."""
    assert ended.status == status, ended
    assert ended.out == "", ended
    lines = [line for line in ended.err.splitlines() if line.startswith(_SPEAKERS)]
    assert len(lines) == 1, ended.err
    assert "Traceback" not in ended.err, ended.err
    assert place in lines[0]
    return lines[0]
