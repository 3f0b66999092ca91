"""Arrow works without pandas, and finds pandas when it is asked for a frame. An export without Spark needs no pandas."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import lakelog
from tests.stores import root_at

HOME = Path(__file__).resolve().parents[2]
PROGRAM = """
import sys
import pyarrow as pa
from pipeline.without_pandas import let_arrow_work_without_pandas

let_arrow_work_without_pandas()
values = pa.array([1, None, 3])
print(values.to_pylist(), "pandas" in sys.modules)
print(pa.table({"a": values}).to_pandas().to_dict("list"), "pandas" in sys.modules)
"""


def test_arrow_imports_pandas_only_for_a_frame() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)

    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines() == ["[1, None, 3] False", "{'a': [1.0, nan, 3.0]} True"]


def test_a_small_export_does_not_load_pandas(tmp_path: Path) -> None:
    root = root_at(tmp_path / "root")
    lakelog.open(root, create=True).create_topic("orders", 1).append([{"key": "a", "value": "1"}])
    code = (
        "import atexit, runpy, sys; atexit.register(lambda: print('pandas' in sys.modules, 'pyspark' in sys.modules))\n"
        "runpy.run_path('jobs/export.py', run_name='__main__')"
    )
    settings = [f"root={root}", "export.topic=orders", "export.table=tables/orders"]
    command = [sys.executable, "-c", code, *(word for each in settings for word in ("--set", each))]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=HOME)

    assert (ended.returncode, ended.stderr) == (0, "")
    lines = ended.stdout.splitlines()
    assert "records 1, rows appended 1" in lines[-2]
    assert lines[-1] == "False False"
