"""Cuts damaged bytes out of a .log while the log is loaded, and saves them beside the .log.

    1. The damaged bytes are copied to <base>.<position>.corrupt, and synced. If all these bytes are 0, no copy is made.
    2. Damage at the end of a .log is cut off. If intact batches follow the damage, a new .log is written without the
       damaged bytes, and replaces the old .log by a swap (kafka_dir.segment_swap).

After a crash between steps 1 and 2, the next load compares the bytes of the copy and recognises the copy. No damaged
byte is deleted before it is saved. Only one thread may work on a log, and the log's directory must be locked.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from storage_engine.kafka_dir.log_files import LogFiles
from storage_engine.kafka_dir.recovery_report import Cut, CutReason
from storage_engine.kafka_dir.segment_swap import swap_in
from storage_engine.log.filenames import CLEANED, CORRUPT, INDEX_SUFFIXES, LOG, offset_name
from storage_engine.log.intact_batches import Damage


class _TailCut(NamedTuple):
    """A cut that reaches the end of its segment. It is a torn tail if no intact batch follows in the log."""

    number: int
    row: int


class DamagedParts:
    """Cuts the damaged parts of one log out of its segments, and decides which cuts are torn tails."""

    def __init__(self, files: LogFiles) -> None:
        self._files = files
        self._tail_cuts: list[_TailCut] = []

    def cut_out(
        self,
        number: int,
        damages: Sequence[Damage],
        kept: Sequence[tuple[int, int]],
        fate: CutReason = CutReason.QUARANTINED,
        rest: str = "",
    ) -> None:
        """Save the damaged bytes of a segment beside the log, and cut them out of the segment.

        Args:
            damages: the damaged parts, in the order of their positions.
            kept: start and end of each intact part.
            fate: the reason for the cuts, unless settle_tail finds that a cut is a torn tail.
            rest: as in Cut.
        """
        files = self._files
        base, key = files.bases[number], files.key(files.bases[number])
        for damage in damages:
            if damage.end == files.size(base) and fate is not CutReason.TRUNCATED:
                self._tail_cuts.append(_TailCut(number, len(files.report.cuts)))
            kept_as = self._keep(base, damage)
            cut = Cut(key, damage.position, damage.size, damage.problem, kept_as, fate, rest)
            files.report.cuts.append(cut)
        end = sum(stop - start for start, stop in kept)
        if not kept or kept[-1][1] == end:
            with closing(files.storage.open(key)) as log:
                log.truncate(end)
                log.sync()
            files.note_modified(base)  # as in the file system; retention uses the time if no record has a timestamp
        else:
            self._write_without(base, kept)

    def _write_without(self, base: int, kept: Sequence[tuple[int, int]]) -> None:
        """Replace a segment's .log by one with only the given parts. The indexes of the old .log are deleted."""
        files, key = self._files, self._files.key(base)
        with closing(files.storage.open(key + CLEANED)) as cleaned:
            position = 0
            for start, stop in kept:
                for data in files.pieces(key, start, stop):
                    cleaned.write_at(position, [data])
                    position += len(data)
            cleaned.sync()
        files.storage.set_modified(key + CLEANED, files.entries[offset_name(base) + LOG].modified_ns)
        for old in swap_in(files.storage, files.folder, base, [base]):
            files.storage.delete(old)
        for suffix in INDEX_SUFFIXES:
            files.entries.pop(offset_name(base) + suffix, None)

    def settle_tail(self, newest_intact: int, *, torn: bool, zeros_torn: bool) -> bool:
        """Distinguish torn tails from other damage, and delete the segments after the newest segment that has an intact
        batch.

        Args:
            torn: whether a crash explains cuts at the log's end, so that no durable byte was lost.
            zeros_torn: the same for cuts of bytes that are all zero.

        Returns:
            Whether the log's end was cut. If so, the newest intact segment is now the newest segment.
        """
        tail = [cut for cut in self._tail_cuts if cut.number >= newest_intact]
        if not tail:
            return False
        files = self._files
        cuts = files.report.cuts
        for row in (each.row for each in tail):
            if torn or (zeros_torn and cuts[row].is_zeros):
                cuts[row] = replace(cuts[row], fate=CutReason.TORN_TAIL)
        for base in reversed(files.bases[newest_intact + 1 :]):
            files.remove_segment(base)
        del files.bases[newest_intact + 1 :]
        return True

    def _keep(self, base: int, damage: Damage) -> str:
        """Copy damaged bytes to a separate file. Returns its key, or an empty string if all the bytes are zero."""
        files = self._files
        key, start, end = files.key(base), damage.position, damage.end
        if not any(np.frombuffer(data, np.uint8).any() for data in files.pieces(key, start, end)):
            return ""
        for name, entry in files.entries.items():
            if (
                name.startswith(f"{offset_name(base)}.{start}.")
                and name.endswith(CORRUPT)
                and entry.size == end - start
            ):
                kept = files.pieces(f"{files.folder}/{name}", 0, entry.size)
                if all(one == other for one, other in zip(kept, files.pieces(key, start, end), strict=True)):
                    return f"{files.folder}/{name}"  # an interrupted recovery made this copy
        name = self._free_name(base, start)
        with closing(files.storage.open(f"{files.folder}/{name}")) as copy:
            copied = 0
            for data in files.pieces(key, start, end):
                copy.write_at(copied, [data])
                copied += len(data)
            copy.sync()
        files.note_size(name, copied)
        return f"{files.folder}/{name}"

    def _free_name(self, base: int, position: int) -> str:
        """A name that no other file has, for a file with the bytes that were cut out."""
        name, number = f"{offset_name(base)}.{position}{CORRUPT}", 1
        while name in self._files.entries:
            number += 1
            name = f"{offset_name(base)}.{position}.{number}{CORRUPT}"
        return name
