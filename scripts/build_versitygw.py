"""Builds versitygw, the S3 server of the tests, once for each .venv.

versitygw is an open-source S3 server in one program, and stores objects as files of a folder. Its source is a Go module. The
version is fixed here.
"""

from __future__ import annotations

from pathlib import Path

from scripts.built_once import built_once
from scripts.go_program import install_go_programs

MODULE = "github.com/versity/versitygw"
VERSION = "1.8.0"


def versitygw() -> Path:
    """The program, which is built if it is missing."""
    return built_once(f"versitygw-{VERSION}", _build)


def _build(folder: Path) -> Path:
    install_go_programs(folder, [f"{MODULE}/cmd/versitygw@v{VERSION}"])
    return folder / "versitygw"


if __name__ == "__main__":
    versitygw()
