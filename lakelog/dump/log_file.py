"""Dumps a .log: its entries in order, each followed by its records. Finds gaps between the records' offsets. This
module also dumps snapshots of __cluster_metadata, which have the same format.

Lines are made for a few MiB of entries at a time, and for a limited number of records at a time. The second limit is
needed because a small compressed entry can have millions of records. Neighbouring entries of the same kind are handled
together: batches of magic 2 in columns, messages of magic 0 and 1 one by one. In JSON, either every line is a batch or
every line is a record. In text, a batch's line comes before the lines of its records.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from lakelog.dump.batch_lines import batch_lines
from lakelog.dump.fields import LARGEST_INT
from lakelog.dump.lines import DumpOptions, ShownEntries, encoded, json_line
from lakelog.dump.message_lines import show_messages
from lakelog.dump.mismatches import Mismatches
from lakelog.dump.reading.decoded_batches import DecodedBatches, decode_up_to_damage, intact
from lakelog.dump.reading.dumped_file import DumpedFile
from lakelog.dump.reading.entries import LogEntries, LogFile, read_entries
from lakelog.dump.record_lines import record_lines
from storage_engine.errors import LogError
from storage_engine.record.batch import Int64Array

SNAPSHOT_OF_METADATA = ".checkpoint"
_SNAPSHOT_NAME = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
_RECORDS_AT_ONCE = 10_000
"""The lines of at most this many records are made together."""


def dump_log(file: DumpedFile, wanted: DumpOptions, findings: Mismatches) -> Iterator[bytes]:
    """The lines of the entries, and of the records if they are wanted. With records, gaps between offsets are found,
    too.

    Raises:
        CorruptionError: the file is damaged. The error is raised after the last line that could be made.
    """
    opening = _opening(file)
    log = LogFile.of(file.path)
    limit = LARGEST_INT if wanted.max_bytes is None else wanted.max_bytes
    if limit < LARGEST_INT:
        log = log._replace(size=min(log.size, limit))
    if not wanted.jsonl:
        yield encoded(f"{opening}\n")
    end = 0
    previous = -1
    for entries in read_entries(log):
        for shown in _show_entries(entries, file, wanted):
            yield encoded("".join(shown.lines))
            if len(shown.offsets):
                befores = np.concatenate(([previous], shown.offsets[:-1]))
                gaps = np.flatnonzero(shown.offsets != befores + 1)
                if len(gaps):
                    findings.gaps[file.absolute_name].append(np.stack((befores[gaps], shown.offsets[gaps])))
                previous = int(shown.offsets[-1])
            if shown.error is not None:
                raise shown.error
        end = entries.end
    if end < log.size and limit == LARGEST_INT:
        invalid = log.size - end
        yield encoded(
            json_line(file, {"position": end, "invalid_bytes": invalid})
            if wanted.jsonl
            else f"Found {invalid} invalid bytes at the end of {file.path.name}\n"
        )


def _opening(file: DumpedFile) -> str:
    """The line that begins the dump."""
    name = file.path.name
    if not name.endswith(SNAPSHOT_OF_METADATA):
        return f"Log starting offset: {file.base_offset}"
    found = _SNAPSHOT_NAME.fullmatch(name)
    if found is None:
        raise LogError(
            str(file.path), f"expected a name such as {0:020d}-{0:010d}{SNAPSHOT_OF_METADATA}, found {name!r}",
            "Kafka names a snapshot after its end offset and its epoch.",
        )  # fmt: skip
    return f"Snapshot end offset: {int(found[1])}, epoch: {int(found[2])}"


def _show_entries(entries: LogEntries, file: DumpedFile, wanted: DumpOptions) -> Iterator[ShownEntries]:
    legacy = entries.table.is_legacy
    bounds = [0, *(np.flatnonzero(np.diff(legacy)) + 1).tolist(), len(legacy)]
    for first, end in pairwise(bounds):
        show = show_messages if legacy[first] else _show_batches
        yield from show(entries.part(slice(first, end)), file, wanted)


def _show_batches(batches: LogEntries, file: DumpedFile, wanted: DumpOptions) -> Iterator[ShownEntries]:
    valid = intact(batches)
    if not wanted.records:
        yield ShownEntries(batch_lines(batches, valid, file, wanted))
        return
    first = 0
    for decoded in decode_up_to_damage(batches, valid):
        for piece, begun, rows in _pieces(decoded):
            part = batches.part(slice(first + rows.start, first + rows.stop))
            lines, error = record_lines(part, piece, file, wanted)
            if not wanted.jsonl:
                new = slice(first + rows.start + begun, first + rows.stop)
                heads = [""] * begun + batch_lines(batches.part(new), valid[new], file, wanted)
                lines = _interleaved(heads, lines, piece.counts)
            yield ShownEntries(lines, piece.offsets, error or piece.error)
            if error is not None:
                return
        first += len(decoded.counts)


def _pieces(decoded: DecodedBatches) -> Iterator[tuple[DecodedBatches, int, slice]]:
    """Divide batches into pieces with few records, because one batch can have millions of records.

    Returns:
        A piece; the number of its first batches whose first records are in earlier pieces, 0 or 1; the rows of the
        piece's batches. The count of a batch is the number of its records in the piece.
    """
    ends = np.cumsum(decoded.counts)
    starts = ends - decoded.counts
    total = decoded.records.num_rows
    for first in range(0, max(total, 1), _RECORDS_AT_ONCE):
        last = min(first + _RECORDS_AT_ONCE, total)
        new = int(np.searchsorted(starts, first))
        rows = slice(
            min(new, int(np.searchsorted(ends, first, side="right"))),
            int(np.searchsorted(starts, last)) if last < total else len(starts),
        )
        counts = np.clip(ends[rows], first, last) - np.clip(starts[rows], first, last)
        error = decoded.error if last == total else None
        yield DecodedBatches(counts, decoded.records.slice(first, last - first), error), new - rows.start, rows


def _interleaved(heads: list[str], lines: list[str], counts: Int64Array) -> list[str]:
    """Each batch's line, followed by the lines of its records. Ends at the first batch with a missing record."""
    mixed = []
    end = 0
    for head, count in zip(heads, counts.tolist(), strict=True):
        mixed.append(head)
        mixed += lines[end : end + count]
        end += count
        if end > len(lines):
            break
    return mixed
