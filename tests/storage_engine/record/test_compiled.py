"""A kernel is loaded from numba's cache when it is called. A process that only imports the module of a kernel does not
load the kernel, and a process that finds its kernels in the cache does not load the compiler's rules.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_a_user_who_may_not_write_numbas_cache_can_call_a_kernel(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("not a folder")
    program = "from storage_engine.record.partitioner import partition_keys; import pyarrow as pa; "
    program += "print(partition_keys(pa.array([b'21'], pa.binary()), 1000, 0))"
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "HOME": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[340]\n", "")


def test_a_process_that_plans_a_read_compiles_no_kernel_and_a_first_call_stores_the_kernel(tmp_path: Path) -> None:
    def stored_by(program: str) -> list[str]:
        environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
        subprocess.run([sys.executable, "-c", program], env=environment, check=True)
        return sorted(path.name.split("-")[0] for path in tmp_path.rglob("*.nbi"))

    assert stored_by("import lakelog.spark.data_source, lakelog.spark.sink.writers, pipeline.python_daemon") == []
    program = "import pyarrow as pa; from storage_engine.record.partitioner import partition_keys; "
    program += "assert partition_keys(pa.array([b'21'], pa.binary()), 1000, 0) == [340]"  # as in Kafka
    assert stored_by(program) == ["partitioner._murmur2", "partitioner._partition_keys"]


def test_a_process_that_finds_its_kernels_in_the_cache_loads_no_rules_of_the_compiler(tmp_path: Path) -> None:
    program = "import sys, pyarrow as pa; from storage_engine.record.partitioner import partition_keys; "
    program += "print(partition_keys(pa.array([b'21'], pa.binary()), 1000, 0), 'numba.np.linalg' in sys.modules)"
    runs = [
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for _ in range(2)
    ]
    assert runs == ["[340] True\n", "[340] False\n"]  # the first process compiles
