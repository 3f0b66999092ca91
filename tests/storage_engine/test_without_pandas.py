"""Arrow works without pandas, and finds pandas when it is asked for a frame."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
import pyarrow as pa
from storage_engine.without_pandas import let_arrow_work_without_pandas

let_arrow_work_without_pandas()
values = pa.array([1, None, 3])
print(values.to_pylist(), "pandas" in sys.modules)
print(pa.table({"a": values}).to_pandas().to_dict("list"), "pandas" in sys.modules)
"""


def test_arrow_imports_pandas_only_for_a_frame() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)

    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines() == ["[1, None, 3] False", "{'a': [1.0, nan, 3.0]} True"]
