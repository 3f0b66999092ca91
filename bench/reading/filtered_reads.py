"""Measures how many bytes of the .log files a filtered read needs. Topic.read(where=...) reads 1% of the records of a
topic whose timestamps rise.

    python -m bench.reading.filtered_reads [--records 5000000]

The benchmark's storage counts the bytes that it returns. The benchmark compares the rows of each read with the rows
that Arrow's own filter selects from all rows.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median

import pyarrow as pa
import pyarrow.compute as pc

from bench.reading.filled_topic import PARTITIONS, RECORDS, START_MS, TOPIC, VALUE_BYTES, fill_topic
from bench.results import Ratio, print_ratios, write_results
from bench.turns import ROUNDS
from lakelog.root import Root
from lakelog.topic import Rows
from storage_engine.clock import SystemClock
from storage_engine.config import BrokerConfig
from storage_engine.log.filenames import LOG
from storage_engine.storage.posix import PosixStorage
from storage_engine.topic.topics import Topics

SHARE = 0.01
BATCH_BYTES = {"16 KB": 16_384, "1 MB": None}
"""Kafka's producers make batches of 16 KB by default, and a large append of Lakelog makes batches of 1 MB."""
PLACES = {"first": 0.0, "middle": 0.5, "last": 0.99}
"""The parts of 1% that are read, by name, with the share of the records that are before the part."""


class CountingStorage(PosixStorage):
    """Counts the bytes that are read from .log files, and the bytes that are read from other files."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.bytes_read: Counter[str] = Counter()

    def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        data = super().read(key, start, length)
        self.bytes_read["log" if key.endswith(LOG) else "other"] += len(data)
        return data


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=RECORDS)
    arguments = parser.parse_args(sys.argv[1:] if sys.argv[0] == __file__ else [])
    rows, ratios = [], []
    for batches, batch_bytes in BATCH_BYTES.items():
        with tempfile.TemporaryDirectory(prefix="lakelog-bench-") as folder:
            root = Path(folder, "root")
            fill_topic(root, arguments.records, batch_bytes)
            more_rows, more_ratios = measured(root, arguments.records, f"batches of {batches}")
        rows += more_rows
        ratios += more_ratios
    for row in rows:
        print(f"{row[0]:36}" + "".join(f"{cell:>14}" for cell in row[1:]), flush=True)
    if arguments.records != RECORDS:
        print_ratios(ratios)
        return
    write_results(
        "filtered_reads",
        "Filtered reads",
        f"The topic has {RECORDS:,} records in {PARTITIONS} partitions. Each record has a key of 10 bytes and a value"
        f" of {VALUE_BYTES} bytes, and the timestamps rise. Lakelog always reads whole batches, so the topic is"
        " measured with small and with large batches. Kafka's producers make small batches by default. Lakelog makes"
        " large batches if many records are appended at once. Topic.read(where=...) reads the records of a time range."
        ' The range contains the first, the middle or the last 1% of the records. The column ".log bytes" has the'
        ' bytes that are read from .log files, and the column "share" has their share of all bytes of the .log files.'
        ' The column "other bytes" has the bytes that are read from indexes and from the topic\'s state. The column'
        f' "milliseconds" has the median time of {ROUNDS} reads into an Arrow table. Each read returns the same rows'
        " that Arrow's own filter selects from all rows.",
        ["", "rows", ".log bytes", "share", "other bytes", "milliseconds"],
        rows,
        ratios,
    )


def measured(root: Path, records: int, batches: str) -> tuple[list[list[str]], list[Ratio]]:
    """The rows of the table, and the shares of the .log files that were read."""
    storage = CountingStorage(root)
    topic = Root(Topics(storage, BrokerConfig(), SystemClock())).topic(TOPIC)
    log_bytes = sum(path.stat().st_size for path in root.glob(f"data/**/*{LOG}"))
    everything = topic.read().to_arrow()
    taken = milliseconds(topic.read())
    rows = [[f"{batches}, everything", f"{records:,}", f"{log_bytes:,}", "100.00%", "", f"{taken:.1f}"]]
    ratios = []
    begin = datetime.fromtimestamp(START_MS / 1000, UTC)
    for name, before in PLACES.items():
        first = begin + timedelta(milliseconds=int(before * records))
        end = first + timedelta(milliseconds=int(SHARE * records))
        where = (pc.field("timestamp") >= pa.scalar(first)) & (pc.field("timestamp") < pa.scalar(end))
        storage.bytes_read.clear()
        found = topic.read(where=where).to_arrow()
        read = storage.bytes_read.copy()
        assert found.num_rows == int(SHARE * records)
        assert found.equals(everything.filter(where))
        share = read["log"] / log_bytes
        taken = milliseconds(topic.read(where=where))
        rows.append(
            [f"{batches}, the {name} 1%", f"{found.num_rows:,}", f"{read['log']:,}", f"{share:.2%}", f"{read['other']:,}",
             f"{taken:.1f}"]
        )  # fmt: skip
        ratios.append(
            Ratio(
                f"{batches}, the {name} 1% of the records: bytes read, in percent of all .log bytes",
                share * 100,
                at_most=1.1,
            )
        )
    return rows, ratios


def milliseconds(rows: Rows) -> float:
    """The median time to read rows into a table. Each iteration reads the rows again."""
    seconds = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        rows.to_arrow()
        seconds.append(time.perf_counter() - started)
    return median(seconds) * 1e3


if __name__ == "__main__":
    main()
