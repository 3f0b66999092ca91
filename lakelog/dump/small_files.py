"""Dumps the small files: a .txnindex, a .snapshot, and text files. Each of these files is read into memory as a whole.

    version: 0 producerId: 9 firstOffset: 0 lastOffset: 26 lastStableOffset: 0
    producerId: 9 producerEpoch: 0 coordinatorEpoch: 0 currentTxnFirstOffset: OptionalLong.empty lastTimestamp: ...

For a .txnindex, each aborted transaction gets a line. For a .snapshot, each producer gets a line. This line ends with
the producer's last batch, if the batch is known. Checkpoints and properties files are printed unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator

from lakelog.dump.fields import LARGEST_INT
from lakelog.dump.java_text import optional_long
from lakelog.dump.lines import DumpOptions, encoded, entry_line, json_line
from lakelog.dump.reading.dumped_file import DumpedFile, read_whole
from storage_engine.errors import CorruptionError
from storage_engine.log.indexes.transaction_index import ABORTED_ENTRY
from storage_engine.log.producers.producer_snapshot import decode_snapshot

_ABORTED_FIELDS = ("version", "producer_id", "first_offset", "last_offset", "last_stable_offset")
_ABORTED_LINE = "version: %d producerId: %d firstOffset: %d lastOffset: %d lastStableOffset: %d"
_PRODUCER_FIELDS = ("producer_id", "producer_epoch", "coordinator_epoch", "current_txn_first_offset", "last_timestamp")
_PRODUCER_LINE = "producerId: %d producerEpoch: %d coordinatorEpoch: %d currentTxnFirstOffset: %s lastTimestamp: %d"
_LAST_BATCH_FIELDS = ("first_sequence", "last_sequence", "last_offset", "offset_delta", "timestamp")
_LAST_BATCH_LINE = " firstSequence: %d lastSequence: %d lastOffset: %d offsetDelta: %d timestamp: %d"


def dump_text(file: DumpedFile, wanted: DumpOptions) -> Iterator[bytes]:
    """The lines of a checkpoint, partition.metadata or meta.properties, as they are."""
    data = read_whole(file.path)
    if wanted.jsonl:
        for line in data.decode(errors="replace").splitlines():
            yield encoded(json_line(file, {"line": line}))
    else:
        yield data if data.endswith(b"\n") or not data else data + b"\n"


def dump_transaction_index(file: DumpedFile, wanted: DumpOptions) -> Iterator[bytes]:
    """A line for each entry of a .txnindex.

    Raises:
        CorruptionError: an entry has an unknown version or is cut off. The entries before this entry are returned
            first.
    """
    data = read_whole(file.path)
    whole = len(data) // ABORTED_ENTRY.size * ABORTED_ENTRY.size
    for row, entry in enumerate(ABORTED_ENTRY.iter_unpack(data[:whole])):
        if entry[0] > 0:
            raise CorruptionError(str(file.path), row * ABORTED_ENTRY.size, "version 0", str(entry[0]))
        yield encoded(entry_line(file, wanted, _ABORTED_LINE, _ABORTED_FIELDS, entry))
    if whole < len(data):
        raise CorruptionError(str(file.path), whole, f"an entry of {ABORTED_ENTRY.size} bytes", str(len(data) - whole))


def dump_snapshot(file: DumpedFile, wanted: DumpOptions) -> Iterator[bytes]:
    """A line for each producer in a .snapshot.

    Raises:
        CorruptionError: the CRC is wrong, or the file is not a snapshot.
    """
    for entry in decode_snapshot(read_whole(file.path), str(file.path)):
        first_offset = entry.txn_first_offset if entry.txn_first_offset >= 0 else None
        known = (entry.producer_id, entry.producer_epoch, entry.coordinator_epoch, first_offset, entry.timestamp)
        batch: tuple[int, ...] = ()
        if entry.last_offset >= 0:
            first_sequence = (entry.last_sequence - entry.offset_delta) & LARGEST_INT
            batch = (first_sequence, entry.last_sequence, entry.last_offset, entry.offset_delta, entry.timestamp)
        if wanted.jsonl:
            fields = dict(zip(_PRODUCER_FIELDS, known, strict=True))
            yield encoded(json_line(file, fields | dict(zip(_LAST_BATCH_FIELDS, batch, strict=False))))
        else:
            line = _PRODUCER_LINE % (*known[:3], optional_long(first_offset), entry.timestamp)
            yield encoded(f"{line}{_LAST_BATCH_LINE % batch if batch else ''}\n")
