"""Takes damaged bytes out of a .log while the log is loaded, and saves them beside the .log.

    1. the damaged bytes are copied to <base>.<position>.corrupt, and synced; where all of them are zero nothing is kept
    2. damage at the end of a .log is cut off; before intact batches it is left out of a new .log, which takes the place of
       the old by a swap (kafka_dir.segment_swap)

A crash in between leaves a copy that the next load finds again by its bytes. Nothing is thrown away that is not kept.
For one thread, in a directory that is locked.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from storage_engine.kafka_dir.log_files import LogFiles
from storage_engine.kafka_dir.recovery_report import Cut, Fate
from storage_engine.kafka_dir.segment_swap import swap_in
from storage_engine.log.filenames import CLEANED, CORRUPT, INDEX_SUFFIXES, LOG, offset_name
from storage_engine.log.intact_batches import Damage


class _TailCut(NamedTuple):
    """A cut that reaches the end of its segment; a torn tail if no intact batch lies behind it in the log."""

    number: int
    row: int


class DamagedParts:
    """What is cut out of the segments of one log, and which cuts end in a torn tail."""

    def __init__(self, files: LogFiles) -> None:
        self._files = files
        self._tail_cuts: list[_TailCut] = []

    def cut_out(self, number: int, damages: Sequence[Damage], kept: Sequence[tuple[int, int]]) -> None:
        """Keep the damaged bytes of a segment beside the log, and leave them out of it.

        Args:
            damages: in order. kept: start and end of the intact parts.
        """
        files = self._files
        base, key = files.bases[number], files.key(files.bases[number])
        for damage in damages:
            if damage.end == files.size(base):
                self._tail_cuts.append(_TailCut(number, len(files.report.cuts)))
            kept_as = self._keep(base, damage)
            cut = Cut(key, damage.position, damage.size, damage.problem, kept_as, Fate.QUARANTINED)
            files.report.cuts.append(cut)
        end = sum(stop - start for start, stop in kept)
        if not kept or kept[-1][1] == end:
            with closing(files.storage.open(key)) as log:
                log.truncate(end)
                log.sync()
        else:
            self._write_without(base, kept)

    def _write_without(self, base: int, kept: Sequence[tuple[int, int]]) -> None:
        """Put a .log that has these parts only in the place of a segment's .log; its indexes go with the old one."""
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

    def settle_tail(self, newest_intact: int, *, torn: bool) -> bool:
        """Tell torn tails from other damage, and drop the segments behind the newest one that has an intact batch.

        Args:
            torn: cuts at the log's end are what a crash leaves; nothing that was durable is lost.

        Returns:
            Whether the log's end was cut, and the newest intact segment is the newest now.
        """
        tail = [cut for cut in self._tail_cuts if cut.number >= newest_intact]
        if not tail:
            return False
        files = self._files
        if torn:
            for cut in tail:
                files.report.cuts[cut.row] = replace(files.report.cuts[cut.row], fate=Fate.TORN_TAIL)
        for base in reversed(files.bases[newest_intact + 1 :]):
            files.remove_segment(base)
        del files.bases[newest_intact + 1 :]
        return True

    def _keep(self, base: int, damage: Damage) -> str:
        """Copy damaged bytes to a file of their own; returns its key, none where all of them are zero."""
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
                    return f"{files.folder}/{name}"  # an interrupted recovery came as far as this
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
        """A name for cut out bytes that no other has."""
        name, number = f"{offset_name(base)}.{position}{CORRUPT}", 1
        while name in self._files.entries:
            number += 1
            name = f"{offset_name(base)}.{position}.{number}{CORRUPT}"
        return name
