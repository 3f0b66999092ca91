"""Measures work on existing logs: verifying, recovering and opening a partition, and looking up an offset.

Verifying is what `lakelog verify --kafka-dir` does with a partition: it checks the header, offsets and CRC of every
batch, and compares both indexes with the batches. Recovering is PartitionLog.open after a crash, without indexes: it
checks all batches and rebuilds the indexes. Opening is PartitionLog.open after an orderly stop: it reads the ends of
each segment's files. A look-up is PartitionLog.locate, the first part of a consumer's fetch: it finds the segment by
bisection, then a position in the segment's .index, and then the batch. All files are in the page cache, and only one
thread works. The work never has to wait, so the measured time is processor time (user and system). Other
processes on the machine do not increase this time.
"""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path
from statistics import median

from bench.peers.codec import encoded
from bench.results import Ratio, write_results
from storage_engine.clock import SystemClock
from storage_engine.config.kafka_dir_keys import LogConfig
from storage_engine.kafka_dir.log_directory import LogDirectory, TopicPartition
from storage_engine.kafka_dir.partition_log import PartitionLog
from storage_engine.log.checkpoint import LEADER_EPOCHS, encode_leader_epochs
from storage_engine.log.filenames import INDEX, LOG, SNAPSHOT, TIME_INDEX, offset_name
from storage_engine.log.growing_segment import index_segment
from storage_engine.log.producers.producer_snapshot import EMPTY_SNAPSHOT
from storage_engine.record.batch import scan_batches
from storage_engine.record.stamping import stamp_batches
from storage_engine.storage.posix import PosixStorage
from storage_engine.verify.directory.directory_check import check_directory
from storage_engine.verify.segment_check import Options

LOG_BYTES = 256 * 1024**2
BATCH_BYTES = (1024, 16 * 1024, 1024 * 1024)
SEGMENTS = (10, 100, 1_000, 10_000)
LOOK_UPS = 500
ROUNDS = 5
INDEX_INTERVAL_BYTES = 4096
NAME = TopicPartition("bench", 0)


def main() -> None:
    rows = []
    ratios = []
    with tempfile.TemporaryDirectory(prefix="lakelog-bench-") as folder:
        for batch_bytes in BATCH_BYTES:
            for what, rate in checked_per_second(Path(folder, f"checked-{batch_bytes}"), batch_bytes).items():
                name = f"{what} a log, batches of {batch_bytes // 1024} KiB"
                rows.append([name, f"{rate:.2f} GB/s", ""])
                ratios.append(Ratio(f"{name}: GB/s", rate, at_least=1.0))
        look_ups = {}
        for segments in SEGMENTS:
            root = Path(folder, str(segments))
            write_partition(root, segments)
            opening, log = opened(root)
            look_ups[segments] = look_up_seconds(log)
            rows.append([f"{segments:,} segments", f"{opening * 1e3:.1f} ms", f"{look_ups[segments] * 1e6:.0f} µs"])
            if segments == 1_000:
                ratios.append(Ratio("open 1,000 segments: milliseconds", opening * 1e3, at_most=100))
                ratios.append(Ratio("look-up in 1,000 segments: microseconds", look_ups[segments] * 1e6, at_most=100))
        ratios.append(
            Ratio("time of a look-up: in 10,000 segments / in 10 segments", look_ups[10_000] / look_ups[10], at_most=2)
        )
        for row in rows:
            print(f"{row[0]:36}{row[1]:>14}{row[2]:>12}", flush=True)
    write_results(
        "logs",
        "Logs",
        f"All times are processor time on one thread, and medians of {ROUNDS} rounds. All files are in the page cache."
        f" The log that is verified and recovered is an uncompressed .log of {LOG_BYTES // 1024**2} MiB with values of"
        " 100 bytes. Recovery starts without indexes. The rows with a number of segments have two times for a"
        " partition of a plain Kafka directory: the time to open the partition after an orderly stop, and the time of"
        f" a look-up. A look-up finds the position of an offset in a .log; each round has {LOOK_UPS} random look-ups.",
        ["", "verify, recover or open", "look-up"],
        rows,
        ratios,
    )


def checked_per_second(root: Path, batch_bytes: int) -> dict[str, float]:
    """How many GB of a log are verified per second, and how many are recovered per second."""
    folder = root / NAME.folder
    folder.mkdir(parents=True)
    chunks = [data.copy() for data, _ in encoded("uncompressed", 100, batch_bytes)]
    end = size = 0
    with Path(folder, offset_name(0) + LOG).open("wb") as file:
        while size < LOG_BYTES:
            for data in chunks:
                end = stamp_batches(data, scan_batches(data, "").sizes, end, 0)
                size += file.write(data.data)
    storage, clock, config = PosixStorage(root), SystemClock(), LogConfig()
    recover_seconds, verify_seconds = [], []
    for _ in range(1 + ROUNDS):
        for suffix in (INDEX, TIME_INDEX):
            Path(folder, offset_name(0) + suffix).unlink(missing_ok=True)
        started = time.process_time()
        log = PartitionLog.open(storage, NAME.folder, config, clock, clean=False)
        recover_seconds.append(time.process_time() - started)
        log.close()
        started = time.process_time()
        directory = LogDirectory(root)
        checked = check_directory(directory, directory.partitions, Options(), threads=1)
        verify_seconds.append(time.process_time() - started)
        assert checked.partitions[NAME].end_offset == end, "every batch was read"
    return {
        "verify": size / median(verify_seconds[1:]) / 1e9,
        "recover": size / median(recover_seconds[1:]) / 1e9,
    }


def write_partition(root: Path, segments: int) -> None:
    """Write a partition as a broker leaves it after an orderly stop: each segment has four batches, indexes and a
    snapshot."""
    folder = root / NAME.folder
    folder.mkdir(parents=True)
    data = encoded("uncompressed", 100, INDEX_INTERVAL_BYTES)[0][0].copy()
    sizes = scan_batches(data, "").sizes[:4]
    data = data[: int(sizes.sum())]
    base = 0
    for _ in range(segments):
        end = stamp_batches(data, sizes, base, 0)
        indexes = index_segment(base, scan_batches(data, ""), INDEX_INTERVAL_BYTES)
        stem = offset_name(base)
        Path(folder, stem + LOG).write_bytes(data.tobytes())
        Path(folder, stem + INDEX).write_bytes(indexes.offset_index_bytes())
        Path(folder, stem + TIME_INDEX).write_bytes(indexes.time_index_bytes())
        Path(folder, offset_name(end) + SNAPSHOT).write_bytes(EMPTY_SNAPSHOT)
        base = end
    Path(folder, LEADER_EPOCHS).write_bytes(encode_leader_epochs([(0, 0)]))


def opened(root: Path) -> tuple[float, PartitionLog]:
    """The seconds that opening takes, and an open log."""
    storage, clock = PosixStorage(root), SystemClock()
    config = LogConfig(index_interval_bytes=INDEX_INTERVAL_BYTES)
    seconds = []
    for _ in range(1 + ROUNDS):
        started = time.process_time()
        log = PartitionLog.open(storage, NAME.folder, config, clock, clean=True)
        seconds.append(time.process_time() - started)
        log.close()
    return median(seconds[1:]), PartitionLog.open(storage, NAME.folder, config, clock, clean=True)


def look_up_seconds(log: PartitionLog) -> float:
    """The seconds of one look-up."""
    offsets = random.Random(1).sample(range(log.log_end_offset), LOOK_UPS)
    seconds = []
    for _ in range(1 + ROUNDS):
        started = time.process_time()
        for offset in offsets:
            log.locate(offset)
        seconds.append((time.process_time() - started) / LOOK_UPS)
    return median(seconds[1:])


if __name__ == "__main__":
    main()
