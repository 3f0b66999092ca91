"""A .log: its entries in their order, each with its records behind it, and the offsets that are missing between them.

Lines are made for a few MiB of entries at a time. Neighbours of one kind go together: batches of magic 2 in columns,
messages of magic 0 and 1 one by one. In JSON a line is either a batch or a record; in text a batch's line stands before
those of its records.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from storage_engine.dump.batch_lines import batch_lines
from storage_engine.dump.decoded_batches import decode_whatever_holds, intact
from storage_engine.dump.dumped_file import DumpedFile
from storage_engine.dump.entries import Entries, OpenLog, read_entries
from storage_engine.dump.findings import Findings
from storage_engine.dump.lines import Shown, Wanted, encoded, json_line
from storage_engine.dump.message_lines import show_messages
from storage_engine.dump.record_lines import record_lines
from storage_engine.record.batch import Int64Array


def dump_log(file: DumpedFile, wanted: Wanted, findings: Findings) -> Iterator[bytes]:
    """Lines for entries, and for records where they are wanted; then gaps between their offsets are found, too.

    Raises:
        CorruptionError: behind the last line that could be made of it.
    """
    base_offset = file.base_offset
    log = OpenLog.of(file.path)
    if not wanted.jsonl:
        yield encoded(f"Log starting offset: {base_offset}\n")
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
    if end < log.size:
        invalid = log.size - end
        yield encoded(
            json_line(file, {"position": end, "invalid_bytes": invalid})
            if wanted.jsonl
            else f"Found {invalid} invalid bytes at the end of {file.path.name}\n"
        )


def _show_entries(entries: Entries, file: DumpedFile, wanted: Wanted) -> Iterator[Shown]:
    legacy = entries.table.is_legacy
    bounds = [0, *(np.flatnonzero(np.diff(legacy)) + 1).tolist(), len(legacy)]
    for first, end in pairwise(bounds):
        show = show_messages if legacy[first] else _show_batches
        yield from show(entries.part(slice(first, end)), file, wanted)


def _show_batches(batches: Entries, file: DumpedFile, wanted: Wanted) -> Iterator[Shown]:
    valid = intact(batches)
    if not wanted.records:
        yield Shown(batch_lines(batches, valid, file, wanted))
        return
    first = 0
    for decoded in decode_whatever_holds(batches, valid):
        rows = slice(first, first + len(decoded.counts))
        part = batches.part(rows)
        lines, error = record_lines(part, decoded, file, wanted)
        if not wanted.jsonl:
            lines = _interleaved(batch_lines(part, valid[rows], file, wanted), lines, decoded.counts)
        yield Shown(lines, decoded.offsets, error or decoded.error)
        first = rows.stop


def _interleaved(heads: list[str], lines: list[str], counts: Int64Array) -> list[str]:
    """Each batch's line with those of its records behind it; ends with the batch whose lines do not suffice."""
    mixed = []
    end = 0
    for head, count in zip(heads, counts.tolist(), strict=True):
        mixed.append(head)
        mixed += lines[end : end + count]
        end += count
        if end > len(lines):
            break
    return mixed
