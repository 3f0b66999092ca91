"""Appends JSON lines to a plain Kafka log directory, for `lakelog append --kafka-dir`.

A log has no staging folder, so all records are in memory before the first of them is appended. After a wrong line, the
log is unchanged. storage_engine.kafka_dir.upkeep.append_opening decides which partitions may get records.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from lakelog.cli.directory_results import print_damage
from lakelog.cli.output import write_line
from lakelog.cli.records.input_lines import input_bytes, line_chunks
from lakelog.cli.records.json_lines import longest_line, parse_lines, place_of
from lakelog.terminal.progress_display import display_on_stderr
from storage_engine.clock import SystemClock
from storage_engine.config import INT_MAX
from storage_engine.errors import InvalidRecordError
from storage_engine.kafka_dir.upkeep.append_opening import LogsToAppend
from storage_engine.record.record_columns import TO_APPEND

if TYPE_CHECKING:
    from storage_engine.config import TopicConfig


def append_to_directory(path: Path, topic: str, partition: int | None, settings: dict[str, str]) -> bool:
    """Append the lines of standard input to a topic in a directory.

    Returns:
        Whether the recovery of the partitions has found a loss of records.
    """
    clock = SystemClock()
    with LogsToAppend(path, topic, partition, settings, clock) as opened:
        failed = print_damage(path, opened.logs)
        records, line_numbers = _records(topic, opened.config, clock.now_ms())
        offsets = opened.append(records, lambda row: place_of(line_numbers[row]))
    for number, given in offsets.items():
        write_line(f"partition {number}: {len(given)} records, offsets {given.start} to {given.stop - 1}")
    write_line(f"appended {records.num_rows} records to topic {topic}")
    return failed


def _records(topic: str, config: TopicConfig, now_ms: int) -> tuple[pa.RecordBatch, list[int]]:
    """All records of standard input, and the number of each record's line.

    Raises:
        InvalidRecordError: a line is wrong, or there are more bytes than one append can have.
    """
    parts: list[pa.RecordBatch] = []
    numbers: list[int] = []
    first_number, size = 1, 0
    with display_on_stderr().work(f"read records for {topic}") as progress:
        progress.expect(size=input_bytes())
        for lines in line_chunks(longest_line(config)):
            parsed = parse_lines(lines, first_number, now_ms)
            parts.append(parsed.records)
            numbers += parsed.line_numbers
            first_number += len(lines)
            size += sum(map(len, lines))
            if size > INT_MAX:
                raise InvalidRecordError(
                    "standard input", f"has more than {INT_MAX} bytes, the most of one append to a log directory",
                    "Nothing was appended. Append the lines in several parts.",
                )  # fmt: skip
            progress.advance(parsed.records.num_rows, sum(map(len, lines)))
    whole = pa.Table.from_batches(parts, TO_APPEND).combine_chunks().to_batches()
    return whole[0] if whole else pa.RecordBatch.from_pylist([], TO_APPEND), numbers
