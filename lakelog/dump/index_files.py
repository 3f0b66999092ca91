"""Dumps a .index or a .timeindex, entry by entry, and compares each entry with the .log of the same segment.

    offset: 11 position: 527
    timestamp: 1700000005500 offset: 11

An entry of a .index has the position of a batch and the last offset of this batch. An entry of a .timeindex has the
last offset of a batch and the largest timestamp up to this offset. A broker and this module use the .index to find the
batch. If there is no .index, the .log is searched from its start. A contradiction is a finding. An impossible position
of a batch is damage.

With `verify_only`, entries are compared but not printed. With `sanity_only`, this module makes only the check that a
broker makes at its start (AbstractIndex.sanityCheck).

A broker preallocates both files, and trims them when it stops or rolls the segment. So an entry of zeros that is not
the first entry marks the end: the entries of the file end before this entry.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from lakelog.dump.lines import DumpOptions, encoded, entry_line, json_line
from lakelog.dump.mismatches import Mismatches
from lakelog.dump.reading.dumped_file import DumpedFile, read_whole
from lakelog.dump.reading.entries import LogEntries, LogFile, entry_at
from lakelog.dump.reading.lookup import DERIVABLE, Cursor, indexed_position, last_offset
from lakelog.dump.reading.messages import LegacyMessage, messages_in
from storage_engine.errors import CorruptionError, NotFoundError
from storage_engine.log.filenames import INDEX, LOG
from storage_engine.log.indexes.offset_index import OFFSET_ENTRY
from storage_engine.log.indexes.time_index import TIME_ENTRY
from storage_engine.record.decoding import decode_until_damage
from storage_engine.record.header import HEADER_BYTES, NO_TIMESTAMP
from storage_engine.record.record_columns import CREATE_TIME


def dump_index(file: DumpedFile, wanted: DumpOptions, findings: Mismatches) -> Iterator[bytes]:
    """A line for each entry of a .index.

    Raises:
        CorruptionError: the file is damaged. The error is raised after the last line that could be made.
        NotFoundError, StorageError: the file or its .log cannot be read.
    """
    base_offset = file.base_offset
    data = read_whole(file.path)
    entries = _whole_entries(data, OFFSET_ENTRY)
    log = LogFile.of(file.sibling(LOG))
    if not len(entries):
        if not wanted.jsonl:
            yield encoded(f"{file.name} is empty.\n")
        return
    if wanted.sanity_only:
        _check_sanity(file, data, OFFSET_ENTRY)
        yield _passed(file, wanted)
        return
    offsets, positions = base_offset + entries["relative_offset"].astype(np.int64), entries["position"]
    for row, (offset, position) in enumerate(zip(offsets.tolist(), positions.tolist(), strict=True)):
        if offset == base_offset and row > 0:
            return  # the rest was preallocated and not trimmed
        entry = entry_at(log, position) if position >= 0 else None
        if entry is None:
            place = row * OFFSET_ENTRY.itemsize
            raise CorruptionError(
                str(file.path), place, f"a position of a batch in {log.key}", str(position), DERIVABLE
            )  # fmt: skip
        size = int(entry.table.sizes[0])
        if wanted.max_message_bytes is not None and size > wanted.max_message_bytes:
            raise CorruptionError(
                str(log.name), position, f"a batch of at most {wanted.max_message_bytes} bytes (--max-message-size)",
                f"{size} bytes",
            )  # fmt: skip
        if last_offset(entry) != offset:
            findings.index_mismatches[file.absolute_name][offset] = last_offset(entry)
        if not wanted.verify_only:
            values = (offset, position)
            yield encoded(entry_line(file, wanted, "offset: %d position: %d", ("offset", "position"), values))


def dump_time_index(file: DumpedFile, wanted: DumpOptions, findings: Mismatches) -> Iterator[bytes]:
    """A line for each entry of a .timeindex.

    Raises:
        CorruptionError: the file is damaged. The error is raised after the last line that could be made.
        NotFoundError, StorageError: the file or its .log cannot be read.
    """
    base_offset = file.base_offset
    data = read_whole(file.path)
    entries = _whole_entries(data, TIME_ENTRY)
    log = LogFile.of(file.sibling(LOG))
    if wanted.sanity_only:
        _check_sanity(file, data, TIME_ENTRY)
        yield _passed(file, wanted)
        return
    try:
        index = _whole_entries(read_whole(file.sibling(INDEX)), OFFSET_ENTRY)
    except NotFoundError:
        index = np.empty(0, OFFSET_ENTRY)  # without the .index the search takes longer
    offsets = base_offset + entries["relative_offset"].astype(np.int64)
    cursor = Cursor(log)
    previous = NO_TIMESTAMP
    for row, (timestamp, offset) in enumerate(zip(entries["timestamp"].tolist(), offsets.tolist(), strict=True)):
        if offset == base_offset and row > 0:
            return  # the rest was preallocated and not trimmed
        entry = cursor.first_to(indexed_position(index, offset - base_offset), offset)
        if entry is None or last_offset(entry) != offset:
            found = -1 if entry is None else last_offset(entry)
            findings.not_found[file.absolute_name].append((offset, found))
        else:
            largest = _largest_timestamp(log, entry)
            if largest != timestamp:
                findings.time_mismatches[file.absolute_name].append((timestamp, largest))
            if previous >= timestamp:
                findings.out_of_order[file.absolute_name].append((timestamp, previous))
        if not wanted.verify_only:
            values = (timestamp, offset)
            yield encoded(entry_line(file, wanted, "timestamp: %d offset: %d", ("timestamp", "offset"), values))
        previous = timestamp


def _passed(file: DumpedFile, wanted: DumpOptions) -> bytes:
    return encoded(json_line(file, {"sane": True}) if wanted.jsonl else f"{file.name} passed sanity check.\n")


def _check_sanity(file: DumpedFile, data: bytes, kind: np.dtype[Any]) -> None:
    """The check that a broker makes of an index when it starts.

    Raises:
        CorruptionError: a broker would rebuild this index.
    """
    entries = _whole_entries(data, kind)
    place, last = str(file.path), max(0, len(entries) - 1) * kind.itemsize
    if len(entries) and entries["relative_offset"][-1] < 0:
        found = file.base_offset + int(entries["relative_offset"][-1])
        raise CorruptionError(place, last, f"a last offset of at least {file.base_offset}", str(found), DERIVABLE)
    if kind is TIME_ENTRY and len(entries) and entries["timestamp"][-1] < entries["timestamp"][0]:
        first, found = int(entries["timestamp"][0]), int(entries["timestamp"][-1])
        raise CorruptionError(place, last, f"a last timestamp of at least {first}", str(found), DERIVABLE)
    if len(data) % kind.itemsize:
        raise CorruptionError(
            place, len(data), f"a size that is a multiple of {kind.itemsize}", f"{len(data)} bytes", DERIVABLE
        )  # fmt: skip


def _whole_entries(data: bytes, kind: np.dtype[Any]) -> npt.NDArray[Any]:
    """The entries of an index file, including the zeros at the end of a preallocated file."""
    return np.frombuffer(data[: len(data) // kind.itemsize * kind.itemsize], kind)


def _largest_timestamp(log: LogFile, header: LogEntries) -> int:
    """The largest timestamp of the records in the entry with this header; -1 if the entry has no records any more."""
    position, size = header.position, int(header.table.sizes[0])
    entry = LogEntries.of(log, position, log.read(position, size + HEADER_BYTES), [0], size)
    table = entry.table
    if table.is_legacy[0]:
        message = LegacyMessage.of(entry, 0)
        if message.timestamp_type != CREATE_TIME:
            return message.timestamp
        return max(inner.timestamp for inner in messages_in(message, log.name, position))
    records, error = decode_until_damage(entry.data, table, log.name, position)
    if error is not None:
        raise error
    append_time = table.is_log_append_time[0] and records.num_rows
    timestamps = table.max_timestamps if append_time else records["timestamp"].to_numpy()
    return int(timestamps.max(initial=NO_TIMESTAMP))
