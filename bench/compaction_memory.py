"""Measures the memory of a compaction with many distinct keys. The default is 50 million keys of 16 bytes, with values
of 8 bytes.

    python -m bench.compaction_memory [--keys 50000000] [--memory-bytes 134217728]

The log is written first, by another process. The benchmark measures the largest resident size of the compacting
process, including numpy and numba, and checks that exactly one record of each key is left.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from bench.results import Ratio, write_results
from storage_engine.cleaner.cleaner import CleaningTask, clean_partition
from storage_engine.cleaner.selection import CompactionBound, CompactionPlan, CompactionReason
from storage_engine.config import TopicConfig
from storage_engine.log.filenames import SegmentFolder, data_folder
from storage_engine.log.partition_state import Segment
from storage_engine.record.encoding import encode_records
from storage_engine.record.record_columns import TO_APPEND
from storage_engine.record.stamping import stamp_batches
from storage_engine.storage.posix import PosixStorage

KEYS = 50_000_000
MEMORY_BYTES = 128 * 1024**2
MOST_MIB = 512
VALUE_BYTES = 8
ROWS = 250_000
SEGMENT_ROWS = 4_000_000
FILES = SegmentFolder(data_folder("t" * 22, 0), 1)
NOW_MS = 1_700_000_000_000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--keys", type=int, default=KEYS)
    parser.add_argument("--memory-bytes", type=int, default=MEMORY_BYTES)
    parser.add_argument("--compact", metavar="ROOT", help=argparse.SUPPRESS)
    arguments = parser.parse_args(sys.argv[1:] if sys.argv[0] == __file__ else [])
    if arguments.compact:
        compact(Path(arguments.compact), arguments.keys, arguments.memory_bytes)
        return
    with tempfile.TemporaryDirectory(prefix="lakelog-bench-") as folder:
        size = write_log(Path(folder), arguments.keys)
        command = [sys.executable, "-m", "bench.compaction_memory", "--compact", folder]
        command += ["--keys", str(arguments.keys), "--memory-bytes", str(arguments.memory_bytes)]
        found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    assert found["keys"] == found["records"] == arguments.keys, found
    mib = found["kib"] / 1024
    row = [f"{arguments.keys:,}", f"{arguments.memory_bytes / 1024**2:.0f}", f"{mib:.0f}"]
    row += [f"{found['seconds']:.0f}", f"{size / found['seconds'] / 1e6:.0f}"]
    print(row)
    if arguments.keys == KEYS:
        write_results(
            "compaction_memory", "Memory of compacting many distinct keys",
            f"The log has {arguments.keys:,} distinct keys of 16 bytes, with values of {VALUE_BYTES} bytes. Every"
            f" tenth key has two records. The size of the log is {size / 1e9:.1f} GB. The column MiB is the largest"
            " resident size of the whole process.",
            ["keys", "log.cleaner.dedupe.buffer.size, MiB", "MiB", "seconds", "MB/s"], [row],
            [Ratio("MiB", mib, at_most=MOST_MIB)],
        )  # fmt: skip


def write_log(root: Path, keys: int) -> int:
    """Write all keys in pseudo-random order, every tenth key twice. Returns the size of the log in bytes."""
    (root / FILES.folder).mkdir(parents=True)
    size = 0
    records = keys + keys // 10
    for base in range(0, records, SEGMENT_ROWS):
        with (root / FILES.key(f"{base:020}")).open("wb") as file:
            for first in range(base, min(base + SEGMENT_ROWS, records), ROWS):
                numbers = np.arange(first, min(first + ROWS, base + SEGMENT_ROWS, records))
                run = encode_records(
                    _records(np.where(numbers < keys, numbers, 10 * (numbers - keys)), keys), 16 * 1024
                )
                stamp_batches(run.data, run.sizes, first, 0)
                file.write(run.data.data)
                size += len(run.data)
    return size


def _records(numbers: np.ndarray, keys: int) -> pa.RecordBatch:
    count = len(numbers)
    keyed = np.zeros((count, 2), np.int64)
    keyed[:, 0] = numbers * 0x5851F42D4C957F2D  # wraps around, and gives a different number for each key
    keyed[:, 1] = numbers % keys
    key_ends, value_ends = (np.arange(count + 1, dtype=np.int32) * size for size in (16, VALUE_BYTES))
    columns = [
        pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(key_ends), pa.py_buffer(keyed)]),
        pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(value_ends), pa.py_buffer(keyed[:, 0].copy())]),
        pa.array([[]] * count, TO_APPEND.field("headers").type),
        pa.array(np.full(count, NOW_MS)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=TO_APPEND)


def compact(root: Path, keys: int, memory_bytes: int) -> None:
    """Compact the log in the directory, and print the result as one line of JSON."""
    storage = PosixStorage(root)
    paths = sorted((root / FILES.folder).glob("*.log"))
    ends = [*(int(path.stem) for path in paths[1:]), keys + keys // 10]
    segments = tuple(
        Segment(int(path.stem), path.stem, path.stat().st_size, end, NOW_MS, end - 1, NOW_MS)
        for path, end in zip(paths, ends, strict=True)
    )
    size = sum(segment.size for segment in segments)
    plan = CompactionPlan(segments, 0, ends[-1], 0, size, CompactionBound.ACTIVE_SEGMENT, CompactionReason.FORCED)
    task = CleaningTask("t", "t" * 22, 0, FILES, plan, TopicConfig(), memory_bytes, NOW_MS)
    started = time.monotonic()
    made = clean_partition(storage, task)
    seconds = time.monotonic() - started
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = {"keys": made.keys, "records": made.records_after, "kib": most, "seconds": seconds}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
