"""Reads a Delta table with DuckDB's extension `delta`, as a user does with `delta_scan`.

The extension exists for fewer versions of DuckDB than DuckDB's own package. So a DuckDB with the extension is installed
once in a folder of .venv, beside the DuckDB of the tests, and reads the table in another process. DuckDB loads only
extensions that are signed by DuckDB's authors.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

from scripts.built_once import built_once

VERSION = "1.5.5"
_READ = """
import pickle, sys
import duckdb
duckdb.execute(f"SET TimeZone = 'UTC'; SET enable_progress_bar = false; LOAD '{sys.argv[1]}'")
found = duckdb.sql("SELECT * FROM delta_scan(?)", params=[sys.argv[2]])
rows = [dict(zip(found.columns, row)) for row in found.fetchall()]
sys.stdout.buffer.write(pickle.dumps(rows))
"""


def rows_in_duckdb(table: str) -> list[dict[str, Any]]:
    """All rows of the table at a local path."""
    home = _installed()
    extension = home / f"duckdb_extension_delta/extensions/v{VERSION}/delta.duckdb_extension"
    done = subprocess.run(
        [sys.executable, "-c", _READ, str(extension), table],
        env=os.environ | {"PYTHONPATH": str(home)}, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    rows: list[dict[str, Any]] = pickle.loads(done.stdout)
    return rows


def _installed() -> Path:
    def install(folder: Path) -> Path:
        packages = [f"duckdb=={VERSION}", f"duckdb-extension-delta=={VERSION}"]
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*command, "--target", str(folder / "duckdb"), *packages], check=True, stdout=sys.stderr)
        return folder / "duckdb"

    return built_once(f"duckdb-delta-{VERSION}", install)
