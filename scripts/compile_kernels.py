"""Compiles every kernel once: `python -m scripts.compile_kernels`.

Numba compiles a kernel when the kernel is called for the first time, and stores the machine code in a cache. The set-up
runs this program, so that no job waits for the compiler.
"""

from __future__ import annotations

from pipeline.delta.chain import hash_kernels
from schemas.avro import check_kernels
from storage_engine.cleaner import filter_kernels, map_kernels, run_kernels
from storage_engine.log import growing_segment
from storage_engine.record import batch, crc, partitioner, stamping
from storage_engine.record.kernels import crc32, crc32c, decode_kernels, encode_kernels, legacy_kernels
from storage_engine.record.kernels.compiled import load_kernels

MODULES = (
    batch, crc, stamping, partitioner, crc32, crc32c, decode_kernels, encode_kernels, legacy_kernels, growing_segment,
    filter_kernels, map_kernels, run_kernels, hash_kernels, check_kernels,
)  # fmt: skip

if __name__ == "__main__":
    print(f"compiled {load_kernels()} kernels in {len(MODULES)} modules")
