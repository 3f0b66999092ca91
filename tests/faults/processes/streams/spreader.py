"""Writes to several topics with two streaming queries. Both queries read files. Each query writes to a topic of its
own, and to a topic that both queries share.

    python -m tests.faults.processes.streams.spreader GATE ROOT FOLDER

Each row of a file becomes one record. `RECORD` says in SQL how a row becomes a record, and `expected` says the same in
Python. The program reports that Spark is ready, and starts the queries when the file GATE exists. If this file contains
the text of the constant ONCE, each query writes the rows that exist at its start, and then ends.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pipeline.spark.session import spark_session
from tests.faults.processes.driver import wait_at_gate
from tests.faults.processes.streams.copier import ONCE, run
from tests.faults.processes.streams.feeder import Entry

FIRST, SECOND = "first", "second"
"""The queries. Each has a topic of its own, which has its name."""
SHARED = "shared"
PARTITIONS = 3
ROWS, FILES = 60, 2
"""The rows of a file, and the files of a micro-batch."""
BEGAN_MS = 1_700_000_000_000
_PLACES = {FIRST: 0, SECOND: 1}

_HEADER = "named_struct('key', '{}', 'value', cast({} as binary))"
_HEADERS = f"array({_HEADER.format('row', 'cast(row as string)')}, {_HEADER.format('none', 'null')})"
RECORD = (
    f"if(row % 3 = 2, '{SHARED}', '{{query}}') topic",
    "if(row % 7 = 6, null, concat('{query} ', row % 17)) key",
    "if(row % 11 = 10, null, concat(file, ' ', row, ' ', repeat('x', row))) value",
    f"if(row % 4 = 3, null, {_HEADERS}) headers",
    "if(row % 5 = 4, cast(file % {partitions} as int), null) partition",
    "timestamp_millis({began_ms} + (file * {rows} + row) * 2 + {place}) timestamp",
)


class Written(NamedTuple):
    """A row as a record. partition: None if the row does not name it."""

    topic: str
    partition: int | None
    entry: Entry


def expected(query: str, file: int, row: int) -> Written:
    return Written(
        topic=SHARED if row % 3 == 2 else query,
        partition=file % PARTITIONS if row % 5 == 4 else None,
        entry=Entry(
            key=None if row % 7 == 6 else f"{query} {row % 17}".encode(),
            value=None if row % 11 == 10 else f"{file} {row} {'x' * row}".encode(),
            headers=() if row % 4 == 3 else (("row", b"%d" % row), ("none", None)),
            timestamp=datetime.fromtimestamp(BEGAN_MS // 1000, UTC)
            + timedelta(milliseconds=(file * ROWS + row) * 2 + _PLACES[query]),
        ),
    )


def main(gate: Path, root: str, folder: Path) -> None:
    spark = spark_session("spreader")
    wait_at_gate(spark, gate)
    run(
        spark,
        {query: _writer(spark, root, folder, query) for query in (FIRST, SECOND)},
        folder,
        once=gate.read_text() == ONCE,
    )


def _writer(spark: SparkSession, root: str, folder: Path, query: str) -> DataStreamWriter:
    files = spark.readStream.schema("file INT, row INT").option("maxFilesPerTrigger", FILES)
    columns = (
        column.format(query=query, partitions=PARTITIONS, began_ms=BEGAN_MS, rows=ROWS, place=_PLACES[query])
        for column in RECORD
    )
    rows = files.json(str(folder / query / "source")).selectExpr(*columns)
    return rows.writeStream.format("lakelog").option("root", root)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
