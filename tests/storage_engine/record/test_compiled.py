"""Kernels are loaded from numba's cache when they are called, and not by processes that only import their modules."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_a_process_that_plans_a_read_compiles_no_kernel_and_a_first_call_stores_the_kernel(tmp_path: Path) -> None:
    def stored_by(program: str) -> list[str]:
        environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
        subprocess.run([sys.executable, "-c", program], env=environment, check=True)
        return sorted(path.name.split("-")[0] for path in tmp_path.rglob("*.nbi"))

    assert stored_by("import lakelog.spark.data_source, lakelog.spark.sink.writers, pipeline.python_daemon") == []
    program = "import pyarrow as pa; from storage_engine.record.partitioner import partition_keys; "
    program += "assert partition_keys(pa.array([b'21'], pa.binary()), 1000, 0) == [340]"  # as in Kafka
    assert stored_by(program) == ["partitioner._murmur2", "partitioner._partition_keys"]
