"""Reads and changes the files of one partition's folder while the log is loaded (kafka_dir.log_loading).

The folder is listed once. LogFiles then updates this listing with each change that it makes. The report names each file
that was removed or rebuilt. Files are written in place and synced. If a crash damages a file, the next load rebuilds
the file. Only one thread may use a LogFiles, and the directory must be locked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace

from storage_engine.config import INT_MAX
from storage_engine.errors import CorruptionError
from storage_engine.kafka_dir.recovery_report import RecoveryReport
from storage_engine.log.filenames import INDEX_SUFFIXES, LOG, SNAPSHOT, is_offset_name, offset_name, offsets_in
from storage_engine.log.segment_reader import READ_BYTES
from storage_engine.record.decoding import NO_END
from storage_engine.storage import Directory, FolderEntry


class LogFiles:
    """The listing of one folder, and changes of its files.

    entries: the files by name, with their sizes.
    bases: base offsets of the segments, in order. A segment's number is its index in this list.
    """

    def __init__(self, storage: Directory, folder: str, entries: Sequence[FolderEntry], now_ms: int) -> None:
        """
        Args:
            entries: the listing of the folder.
            now_ms: the modification time for new and changed files.

        Raises:
            CorruptionError: as load_log.
        """
        self.storage = storage
        self.folder = folder
        self.report = RecoveryReport(folder)
        self.bases: list[int] = []
        self._now_ms = now_ms
        self.entries: dict[str, FolderEntry] = {entry.name: entry for entry in entries if not entry.is_folder}
        for name in sorted(name for name in self.entries if name.endswith(LOG)):
            place = f"{storage.uri}/{self.folder}/{name}"
            if not is_offset_name(name.removesuffix(LOG)):
                raise CorruptionError(
                    place, 0, "a name of 20 digits: the base offset", repr(name),
                    "Move the file away. A broker also refuses this file.",
                )  # fmt: skip
            if self.entries[name].size > INT_MAX:
                raise CorruptionError(place, INT_MAX, "at most 2 GiB", f"{self.entries[name].size} bytes")
            self.bases.append(int(name.removesuffix(LOG)))

    def remove_stray_indexes(self) -> None:
        """Remove indexes without a .log."""
        for name in sorted(self.entries):
            stem, _, suffix = name.partition(".")
            if "." + suffix in INDEX_SUFFIXES and stem + LOG not in self.entries:
                self.remove(name)

    def has(self, base: int, suffix: str) -> bool:
        """Whether a segment has a file of this kind."""
        return offset_name(base) + suffix in self.entries

    def key(self, base: int, suffix: str = LOG) -> str:
        """The storage key of a segment's file."""
        return f"{self.folder}/{offset_name(base)}{suffix}"

    def size(self, base: int, suffix: str = LOG) -> int:
        """The size of a segment's file in bytes; 0 if it is missing."""
        entry = self.entries.get(offset_name(base) + suffix)
        return entry.size if entry else 0

    def modified_ms(self, base: int) -> int:
        """When a segment's .log was last modified."""
        return self.entries[offset_name(base) + LOG].modified_ms

    def following(self, number: int) -> int:
        """The base offset of the next segment; NO_END after the newest."""
        return self.bases[number + 1] if number + 1 < len(self.bases) else NO_END

    def snapshot_offsets(self) -> list[int]:
        """The offsets that have a .snapshot, sorted."""
        return offsets_in(self.entries, SNAPSHOT)

    def pieces(self, key: str, start: int, end: int) -> Iterator[bytes]:
        """The bytes of a range of a file, in pieces of bounded size."""
        while start < end and (data := self.storage.read(key, start, min(READ_BYTES, end - start))):
            yield data
            start += len(data)

    def write(self, name: str, data: bytes) -> None:
        """Make a file contain these bytes, durably. A file that contains them already is not written."""
        key = f"{self.folder}/{name}"
        entry = self.entries.get(name)
        if entry is not None and entry.size == len(data) and self.storage.read(key) == data:
            return
        with closing(self.storage.open(key)) as file:
            file.write_at(0, [data])
            file.truncate(len(data))
            file.sync()
        self.note_size(name, len(data))
        self.report.rebuilt.append(name)

    def note_size(self, name: str, size: int) -> None:
        """Record that a file was created or has a new size."""
        entry = self.entries.get(name) or FolderEntry(name, False, 0, self._now_ms * 1_000_000, (0, 0))
        self.entries[name] = replace(entry, size=size)

    def note_modified(self, base: int) -> None:
        """Record that a segment's .log was changed now."""
        name = offset_name(base) + LOG
        self.entries[name] = replace(self.entries[name], modified_ns=self._now_ms * 1_000_000)

    def remove(self, name: str) -> None:
        """Delete a file."""
        self.storage.delete(f"{self.folder}/{name}")
        del self.entries[name]
        self.report.removed.append(name)

    def remove_segment(self, base: int) -> None:
        """Delete a segment's files, the .log last."""
        for suffix in (*INDEX_SUFFIXES, SNAPSHOT, LOG):
            if self.has(base, suffix):
                self.remove(offset_name(base) + suffix)
