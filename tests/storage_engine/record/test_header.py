"""Tests that the header table in the docstring matches the dtype, and that kernels import only this module and other
kernels.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from storage_engine.record import header

KERNELS = sorted(Path(header.__file__).with_name("kernels").glob("*.py"))


def test_the_drawing_has_the_offsets_and_sizes_of_the_dtype() -> None:
    drawn = re.findall(r"^ +(\d+) +(\d+) (\w+)", header.__doc__ or "", re.MULTILINE)
    fields = header.BATCH_HEADER.fields
    assert fields is not None
    assert [(int(offset), int(size), name) for offset, size, name in drawn] == [
        (offset, dtype.itemsize, name) for name, (dtype, offset, *_) in fields.items()
    ]


@pytest.mark.parametrize("module", KERNELS, ids=lambda path: path.name)
def test_kernels_know_nothing_of_records_but_the_header(module: Path) -> None:
    imported = [
        node.module or "" for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.ImportFrom)
    ]
    ours = {name for name in imported if name.startswith("storage_engine.")}
    assert not {name for name in ours if not name.startswith("storage_engine.record.kernels.")} - {header.__name__}
