"""The files of a Kafka log as people read them, in the words of Kafka's own tool (DumpLogSegments of 4.3.1).

    Dumping orders-0/00000000000000000000.log
    Log starting offset: 0
    baseOffset: 0 lastOffset: 1 count: 2 baseSequence: -1 ... position: 0 CreateTime: 1700000000042 size: 94 magic: 2 ...
    | offset: 0 CreateTime: 1700000000042 keySize: 2 valueSize: -1 sequence: -1 headerKeys: [] key: k1
    | offset: 1 CreateTime: 1700000000041 keySize: -1 valueSize: 5 sequence: -1 headerKeys: [] payload: hello
    Found 17 invalid bytes at the end of 00000000000000000000.log

    Non-consecutive offsets in /logs/orders-0/00000000000000000000.log
      1 is followed by 7

A line for each batch; with `records` one for each record, too, with `contents` its key and value in it. A .index or
.timeindex is held against the .log beside it. What does not fit together is told behind the last file (Findings): it
need not be damage, for compaction leaves gaps. Or one JSON object a line, for programs: Kafka's names in snake case,
bytes in base64.

Damage is what such a tool is for. A batch is shown whatever its CRC says (isvalid: false), its records up to the first
that cannot be decoded; then a CorruptionError ends the file. Kafka's tool ends with a stack trace there, and earlier:
it also stops over segments above 2 GiB, a .timeindex without its .index, and batches above 5 MiB that a .index names.

A .log goes through in pieces of a few MiB, whatever its size; a .index is held whole.
"""

from __future__ import annotations

import binascii
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_engine.checkpoint import META_PROPERTIES, PARTITION_METADATA
from storage_engine.errors import CorruptionError, LogError, NotFoundError
from storage_engine.log.filenames import INDEX, LOG, SNAPSHOT, TIME_INDEX, TRANSACTION_INDEX
from storage_engine.log.offset_index import OFFSET_ENTRY
from storage_engine.log.producer_snapshot import decode_snapshot
from storage_engine.log.time_index import TIME_ENTRY
from storage_engine.log.transaction_index import ABORTED_ENTRY
from storage_engine.record.batch import (
    BATCH_HEADER,
    CODEC_MASK,
    CONTROL,
    DELETE_HORIZON,
    HEADER_BYTES,
    HEADER_BYTES_UP_TO_MAGIC,
    LENGTH_POSITION,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAGIC,
    NO_TIMESTAMP,
    SHORTEST,
    TRANSACTIONAL,
    BatchTable,
    ByteArray,
    Int64Array,
    batch_crcs,
)
from storage_engine.record.columns import (
    CREATE_TIME,
    LOG_APPEND_TIME_TYPE,
    NO_TIMESTAMP_TYPE,
    RECORDS,
    TIMESTAMP_TYPE_NAMES,
)
from storage_engine.record.compression import LZ4_OF_MAGIC_0, Codec
from storage_engine.record.control import control_type, decode_marker
from storage_engine.record.decoding import ANY_OFFSET, decode_parts, decode_until_damage
from storage_engine.record.sections import Room, Sections, uncompressed
from storage_engine.storage.posix import PosixStorage

_READ_BYTES = 4 * 1024**2
_PART_BYTES = 4 * 1024**2
_SHORTEST = min(SHORTEST)
"""The smallest length that Kafka takes for one, whatever the magic."""
_LARGEST_INT = 2**31 - 1
_WARM_ENTRIES = 8192 // OFFSET_ENTRY.itemsize
_REMEDY = "It can be derived again from the .log file."
_CODECS = {codec.value: codec.name.lower() for codec in Codec}
_CHECKPOINT = "-checkpoint"
_SUFFIXES = (LOG, INDEX, TIME_INDEX, TRANSACTION_INDEX, SNAPSHOT)

_encode_json = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


@dataclass(frozen=True)
class Wanted:
    """What to print. records: a line for each record. contents: keys and values in it. jsonl: as lines of JSON."""

    records: bool = False
    contents: bool = False
    jsonl: bool = False


@dataclass(frozen=True)
class DumpedFile:
    """A file, and how it is named in what is printed: as it was given, and absolutely in what is told at the end."""

    path: Path
    name: str
    absolute_name: str

    @classmethod
    def of(cls, argument: str) -> DumpedFile:
        """A file by the path that somebody typed, named as java.io.File would."""
        name = re.sub("/+", "/", argument)
        name = name.rstrip("/") or name
        return cls(Path(argument), name, name if name.startswith("/") else f"{Path.cwd()}/{name}")


Pairs = list[tuple[int, int]]


@dataclass
class Findings:
    """What does not fit together in the files dumped so far, by the absolute name of the file."""

    index_mismatches: dict[str, dict[int, int]] = field(default_factory=dict)
    """Indexed offset -> last offset of the batch that stands there."""
    time_mismatches: dict[str, Pairs] = field(default_factory=dict)
    """Indexed timestamp, largest of the batch."""
    out_of_order: dict[str, Pairs] = field(default_factory=dict)
    """Indexed timestamp, the one before."""
    not_found: dict[str, Pairs] = field(default_factory=dict)
    """Indexed offset, last offset of the batch that holds it, -1 where none does."""
    gaps: dict[str, list[Int64Array]] = field(default_factory=dict)
    """Offset, the one behind it; shape (2, gaps)."""

    def text(self) -> Iterator[str]:
        """All of it in Kafka's words and in its order: files as a java.util.HashMap has them, kind by kind."""
        for name in _java_order(self.index_mismatches):
            # Kafka keeps them in a TreeMap with its order turned round.
            pairs = sorted(self.index_mismatches[name].items(), reverse=True)
            yield _told(f"Mismatches in :{name}", "  Index offset: %d, log offset: %d", pairs)
        for name in _java_order(self.time_mismatches):
            pairs = self.time_mismatches[name]
            yield _told(f"Found timestamp mismatch in :{name}", "  Index timestamp: %d, log timestamp: %d", pairs)
        for name in _java_order(self.out_of_order):
            line = "  Index timestamp: %d, Previously indexed timestamp: %d"
            yield _told(f"Found out of order timestamp in :{name}", line, self.out_of_order[name])
        for name in _java_order(self.not_found):
            head = f"The following indexed offsets are not found in :{name}"
            yield _told(head, "Indexed offset: %d, found log offset: %d", self.not_found[name])
        for name in _java_order(self.gaps):
            before, after = np.concatenate(self.gaps[name], axis=1)
            order = np.argsort(before, kind="stable")
            before, after = before[order], after[order]
            latest = np.append(before[1:] != before[:-1], True)
            pairs = list(zip(before[latest].tolist(), after[latest].tolist(), strict=True))
            yield _told(f"Non-consecutive offsets in {name}", "  %d is followed by %d", pairs)


def _told(head: str, line: str, pairs: Iterable[tuple[int, int]]) -> str:
    return "\n".join([head, *(line % pair for pair in pairs)])


def _java_order(names: Iterable[str]) -> list[str]:
    """Texts in the order in which a java.util.HashMap hands them out."""
    names = list(names)
    buckets = 16
    while len(names) > buckets * 3 // 4:
        buckets *= 2
    return sorted(names, key=lambda name: _java_hash(name) & (buckets - 1))


def _java_hash(text: str) -> int:
    """How java.util.HashMap spreads a java.lang.String."""
    folded = 0
    for unit in np.frombuffer(text.encode("utf-16-be", "surrogatepass"), ">u2").tolist():
        folded = (31 * folded + unit) & 0xFFFFFFFF
    return folded ^ (folded >> 16)


def dump_file(file: DumpedFile, wanted: Wanted, findings: Findings) -> Iterator[bytes]:
    """What a file holds, in pieces of whole lines; what is found in it besides goes to `findings`.

    Raises:
        CorruptionError: behind the last line that could be made of a damaged file.
        NotFoundError, StorageError: it, or the .log that an index belongs to, cannot be read.
        LogError: it is none of a log's files.
    """
    name = file.path.name
    if not wanted.jsonl:
        yield f"Dumping {file.name}\n".encode(errors="replace")
    if name in (PARTITION_METADATA, META_PROPERTIES) or name.endswith(_CHECKPOINT):
        yield from _dump_text(file, wanted)
        return
    suffix = next((each for each in _SUFFIXES if name.endswith(each)), None)
    match suffix:
        case ".log":
            yield from _dump_log(file, wanted, findings)
        case ".index":
            yield from _dump_index(file, wanted, findings)
        case ".timeindex":
            yield from _dump_time_index(file, wanted, findings)
        case ".txnindex":
            yield from _dump_transaction_index(file, wanted)
        case ".snapshot":
            yield from _dump_snapshot(file, wanted)
        case _:
            raise LogError(
                file.name, f"ignoring unknown file: expected one that ends in {', '.join(_SUFFIXES)} or {_CHECKPOINT}",
                "Name a file of a Kafka log directory.",
            )  # fmt: skip


def _storage(path: Path) -> tuple[PosixStorage, str]:
    """Where a file lies and its key there; reading it names it in every error."""
    return PosixStorage(path.parent), path.name


def _read(path: Path) -> bytes:
    storage, key = _storage(path)
    return storage.read(key)


def _base_offset(path: Path) -> int:
    digits = path.name.partition(".")[0]
    if not digits.isdecimal():
        raise LogError(
            str(path), f"expected a name that begins with a base offset, found {digits!r}",
            "Kafka names a segment's files after its base offset, in 20 digits.",
        )  # fmt: skip
    return int(digits)


def _json_line(file: DumpedFile, fields: dict[str, Any]) -> str:
    return _encode_json({"file": file.name} | fields) + "\n"


# ---------------------------------------------------------------------------------------------- checkpoints and text


def _dump_text(file: DumpedFile, wanted: Wanted) -> Iterator[bytes]:
    data = _read(file.path)
    if wanted.jsonl:
        for line in data.decode(errors="replace").splitlines():
            yield _json_line(file, {"line": line}).encode()
    else:
        yield data if data.endswith(b"\n") or not data else data + b"\n"


# ------------------------------------------------------------------------------------------------------------- .log


class _OpenLog(NamedTuple):
    """A .log file with the size that it had when it was looked at first."""

    storage: PosixStorage
    key: str
    size: int

    @classmethod
    def of(cls, path: Path) -> _OpenLog:
        storage, key = _storage(path)
        storage.read(key, 0, 0)  # says in our words why it cannot be opened
        return cls(storage, key, path.stat().st_size)

    @property
    def name(self) -> str:
        return str(self.storage.path(self.key))

    def read(self, position: int, length: int) -> bytes:
        return self.storage.read(self.key, position, length)


class _Entries(NamedTuple):
    """Neighbouring entries of a .log: batches, or messages of magic 0 and 1.

    data: uint8; begins with the first entry and goes on behind the last. position: of the first in the file. starts,
    sizes: int64, in data. headers: BATCH_HEADER, of which a message of magic 0 or 1 has what stands before the CRC.
    """

    data: ByteArray
    position: int
    starts: Int64Array
    sizes: Int64Array
    headers: npt.NDArray[Any]

    def part(self, rows: slice) -> _Entries:
        return self._replace(starts=self.starts[rows], sizes=self.sizes[rows], headers=self.headers[rows])

    def column(self, name: str) -> Int64Array:
        column: Int64Array = self.headers[name].astype(np.int64)
        return column

    @property
    def last_offsets(self) -> Int64Array:
        """Of a message of magic 0 or 1 its own offset, which in a compressed one is that of the last inside."""
        deltas = np.where(self.headers["magic"] < MAGIC, 0, self.headers["last_offset_delta"])
        return self.column("base_offset") + deltas


def _entries_of(data: bytes, position: int, starts: list[int], end: int) -> _Entries:
    # What a short entry lacks of a header is taken from what follows, as Kafka does; at the file's end from zeros.
    padded = np.frombuffer(data + bytes(HEADER_BYTES), np.uint8)
    windows = np.lib.stride_tricks.sliding_window_view(padded, HEADER_BYTES)
    headers = windows[starts].reshape(-1).view(BATCH_HEADER)
    begin = np.array(starts, np.int64)
    return _Entries(padded, position, begin, np.diff(begin, append=end), headers)


def _read_entries(log: _OpenLog) -> Iterator[_Entries]:
    """All entries, up to one that is cut off (Kafka's FileLogInputStream).

    Raises:
        CorruptionError: a length that no entry can have.
    """
    position = 0
    wanted = _READ_BYTES
    while log.size - position > HEADER_BYTES_UP_TO_MAGIC:
        available = min(wanted, log.size - position)
        data = log.read(position, available + HEADER_BYTES)
        starts, end = _whole_entries(data, available)
        if starts:
            yield _entries_of(data, position, starts, end)
            position += end
            wanted = _READ_BYTES
            continue
        size = _entry_size(log, position, data)
        if size > log.size - position:
            return
        wanted = (
            size + HEADER_BYTES_UP_TO_MAGIC
        )  # larger than what was read; Kafka never takes an entry shorter than this


def _whole_entries(data: bytes, available: int) -> tuple[list[int], int]:
    """Where whole entries in the first bytes begin, and where the last one ends."""
    starts = []
    position = 0
    while position + HEADER_BYTES_UP_TO_MAGIC < available:
        length = int.from_bytes(data[position + LENGTH_POSITION : position + LOG_OVERHEAD], "big", signed=True)
        end = position + LOG_OVERHEAD + length
        if length < _SHORTEST or end > available:
            break
        starts.append(position)
        position = end
    return starts, position


def _entry_size(log: _OpenLog, position: int, data: bytes) -> int:
    """What an entry's header says how many bytes it takes; data begins with it."""
    length = int.from_bytes(data[LENGTH_POSITION:LOG_OVERHEAD], "big", signed=True)
    if length < _SHORTEST:
        raise CorruptionError(log.name, position, f"a batch length of at least {_SHORTEST}", str(length))
    return LOG_OVERHEAD + length


def _dump_log(file: DumpedFile, wanted: Wanted, findings: Findings) -> Iterator[bytes]:
    base_offset = _base_offset(file.path)
    log = _OpenLog.of(file.path)
    if not wanted.jsonl:
        yield f"Log starting offset: {base_offset}\n".encode()
    end = 0
    previous = -1
    for entries in _read_entries(log):
        for shown in _show_entries(entries, log.name, file, wanted):
            yield shown.lines
            if len(shown.offsets):
                befores = np.concatenate(([previous], shown.offsets[:-1]))
                gaps = np.flatnonzero(shown.offsets != befores + 1)
                if len(gaps):
                    pairs = np.stack((befores[gaps], shown.offsets[gaps]))
                    findings.gaps.setdefault(file.absolute_name, []).append(pairs)
                previous = int(shown.offsets[-1])
            if shown.error is not None:
                raise shown.error
        end = entries.position + int(entries.starts[-1] + entries.sizes[-1])
    if end < log.size:
        if wanted.jsonl:
            yield _json_line(file, {"position": end, "invalid_bytes": log.size - end}).encode(errors="replace")
        else:
            yield f"Found {log.size - end} invalid bytes at the end of {file.path.name}\n".encode(errors="replace")


class _Shown(NamedTuple):
    """Some entries as lines. offsets: of the records in them. error: why no more can be shown."""

    lines: bytes
    offsets: Int64Array = np.empty(0, np.int64)
    error: CorruptionError | None = None


def _show_entries(entries: _Entries, log_name: str, file: DumpedFile, wanted: Wanted) -> Iterator[_Shown]:
    legacy = entries.headers["magic"] < MAGIC
    bounds = [0, *(np.flatnonzero(np.diff(legacy)) + 1).tolist(), len(legacy)]
    for first, end in pairwise(bounds):
        show = _show_messages if legacy[first] else _show_batches
        yield from show(entries.part(slice(first, end)), log_name, file, wanted)


def _show_batches(entries: _Entries, log_name: str, file: DumpedFile, wanted: Wanted) -> Iterator[_Shown]:
    valid = _valid(entries)
    if not wanted.records:
        yield _Shown("".join(_batch_lines(entries, valid, file, wanted)).encode(errors="replace"))
        return
    first = 0
    for decoded in _decode(entries, valid, log_name):
        rows = slice(first, first + len(decoded.counts))
        part = entries.part(rows)
        lines, error = _record_lines(part, decoded, log_name, file, wanted)
        if not wanted.jsonl:
            lines = _interleaved(_batch_lines(part, valid[rows], file, wanted), lines, decoded.counts)
        yield _Shown("".join(lines).encode(errors="replace"), decoded.offsets, error or decoded.error)
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


def _valid(entries: _Entries) -> npt.NDArray[np.bool_]:
    """Whether the bytes of each batch are those that its CRC was computed of."""
    computed = batch_crcs(entries.data[entries.starts[0] :], entries.sizes)
    valid: npt.NDArray[np.bool_] = (entries.sizes >= HEADER_BYTES) & (computed == entries.headers["crc"])
    return valid


_BATCH_FIELDS = (
    "base_offset", "last_offset", "count", "base_sequence", "last_sequence", "producer_id", "producer_epoch",
    "partition_leader_epoch", "is_transactional", "is_control", "delete_horizon_ms", "position", "timestamp_type",
    "max_timestamp", "size", "magic", "compresscodec", "crc", "isvalid",
)  # fmt: skip
_BATCH_LINE = (
    "baseOffset: %d lastOffset: %d count: %d baseSequence: %d lastSequence: %d producerId: %d producerEpoch: %d"
    " partitionLeaderEpoch: %d isTransactional: %s isControl: %s deleteHorizonMs: %s position: %d %s: %d size: %d"
    " magic: %d compresscodec: %s crc: %d isvalid: %s\n"
)


def _batch_lines(entries: _Entries, valid: npt.NDArray[np.bool_], file: DumpedFile, wanted: Wanted) -> list[str]:
    headers = entries.headers
    attributes, base_sequences = entries.column("attributes"), entries.column("base_sequence")
    deltas = entries.column("last_offset_delta")
    last_sequences = np.where(base_sequences == -1, -1, _sequences(base_sequences, deltas))
    horizons = _chosen(attributes & DELETE_HORIZON, headers["base_timestamp"])
    columns = [
        headers["base_offset"], entries.last_offsets, headers["records_count"], base_sequences, last_sequences,
        headers["producer_id"], headers["producer_epoch"], headers["partition_leader_epoch"],
        (attributes & TRANSACTIONAL) != 0, (attributes & CONTROL) != 0,
    ]  # fmt: skip
    rows = zip(
        *(column.tolist() for column in columns), horizons, (entries.position + entries.starts).tolist(),
        _timestamp_types(attributes), headers["max_timestamp"].tolist(), entries.sizes.tolist(),
        headers["magic"].tolist(), [_codec_name(each) for each in (attributes & CODEC_MASK).tolist()],
        headers["crc"].tolist(), valid.tolist(), strict=True,
    )  # fmt: skip
    if wanted.jsonl:
        return [_json_line(file, dict(zip(_BATCH_FIELDS, row, strict=True))) for row in rows]
    return [
        _BATCH_LINE % (*row[:8], *map(_java_bool, row[8:10]), _optional_long(row[10]), *row[11:18], _java_bool(row[18]))
        for row in rows
    ]


def _chosen(chosen: npt.NDArray[Any], values: npt.NDArray[Any]) -> list[int | None]:
    """The values where chosen is not 0, None elsewhere."""
    return [value if take else None for take, value in zip(chosen.tolist(), values.tolist(), strict=True)]


def _sequences(bases: Int64Array, deltas: Int64Array) -> Int64Array:
    """Sequence numbers so far behind the first of a batch; behind the largest they begin again at 0, in Java's ints."""
    ends = (_LARGEST_INT - deltas).astype(np.int32)
    return np.where(bases > ends, deltas - (_LARGEST_INT - bases) - 1, bases + deltas).astype(np.int32).astype(np.int64)


def _timestamp_types(attributes: Int64Array) -> list[str]:
    return [TIMESTAMP_TYPE_NAMES[kind] for kind in ((attributes & LOG_APPEND_TIME) != 0).astype(int).tolist()]


def _codec_name(codec: int) -> str:
    return _CODECS.get(codec, f"unknown ({codec})")


def _java_bool(value: bool) -> str:
    return "true" if value else "false"


def _optional_long(value: int | None) -> str:
    """As a java.util.OptionalLong prints itself."""
    return "OptionalLong.empty" if value is None else f"OptionalLong[{value}]"


class _Decoded(NamedTuple):
    """Neighbouring batches with their records in columns.RECORDS. counts: int64, how many records each has there."""

    counts: Int64Array
    records: pa.RecordBatch
    error: CorruptionError | None = None

    @property
    def offsets(self) -> Int64Array:
        return np.asarray(self.records["offset"])


def _decode(entries: _Entries, valid: npt.NDArray[np.bool_], log_name: str) -> Iterator[_Decoded]:
    """All batches, some at a time; where a record cannot be decoded the last has an error, and what came before it."""
    table = _table(entries)
    believed = valid & (table.records_counts >= 0)
    first = 0
    while first < len(table):
        same = np.flatnonzero(believed[first:] != believed[first])
        end = first + int(same[0]) if len(same) else len(table)
        if believed[first]:
            run = table.select(slice(first, end))
            ends = np.cumsum(run.records_counts)
            done = 0
            try:
                for records in decode_parts(
                    entries.data, run, log_name, entries.position, ANY_OFFSET, control=True, part_bytes=_PART_BYTES
                ):
                    before = int(ends[done - 1]) if done else 0
                    until = int(np.searchsorted(ends, before + records.num_rows, side="right"))
                    yield _Decoded(run.records_counts[done:until], records)
                    done = until
            except CorruptionError:
                end = first + done  # what is left goes one by one
                believed[end:] = False
            else:
                if done < len(run):
                    yield _Decoded(run.records_counts[done:], RECORDS.empty_table().to_batches()[0])
            first = end
            continue
        one = table.select(slice(first, first + 1))
        records, error = decode_until_damage(entries.data, one, log_name, entries.position)
        yield _Decoded(np.array([records.num_rows]), records, error)
        if error is not None:
            return
        first += 1


def _table(entries: _Entries) -> BatchTable:
    """What decoding has to know of batches of magic 2."""
    headers = {name: entries.headers[name].astype(np.int64) for name in BATCH_HEADER.names or ()}
    return BatchTable(
        positions=entries.starts,
        sizes=entries.sizes,
        base_offsets=headers["base_offset"],
        last_offsets=entries.last_offsets,
        leader_epochs=headers["partition_leader_epoch"],
        attributes=headers["attributes"],
        base_timestamps=headers["base_timestamp"],
        max_timestamps=headers["max_timestamp"],
        producer_ids=headers["producer_id"],
        producer_epochs=headers["producer_epoch"],
        base_sequences=headers["base_sequence"],
        records_counts=headers["records_count"],
        crcs=headers["crc"],
        magics=headers["magic"],
    )


_RECORD_FIELDS = ("offset", "timestamp_type", "timestamp", "key_size", "value_size", "sequence", "header_keys")


def _record_lines(
    entries: _Entries, decoded: _Decoded, log_name: str, file: DumpedFile, wanted: Wanted
) -> tuple[list[str], CorruptionError | None]:
    """A line for each record, up to a control record that is none; and what is wrong with that."""
    records, counts, offsets = decoded.records, decoded.counts, decoded.offsets
    base_offsets, base_sequences, append_times, attributes = (
        np.repeat(entries.column(name), counts)
        for name in ("base_offset", "base_sequence", "max_timestamp", "attributes")
    )
    timestamps = np.where((attributes & LOG_APPEND_TIME) != 0, append_times, records["timestamp"])
    sequences = np.where(base_sequences < 0, -1, _sequences(base_sequences, offsets - base_offsets))
    places = np.repeat(entries.position + entries.starts, counts)
    control, end, error = _control_fields(records, (attributes & CONTROL) != 0, places, log_name)
    rows = zip(
        offsets.tolist(), _timestamp_types(attributes), timestamps.tolist(), _sizes(records["key"]),
        _sizes(records["value"]), sequences.tolist(),
        _header_keys(records["headers"]), strict=True,
    )  # fmt: skip
    if wanted.jsonl:
        contents = _json_contents(records) if wanted.contents else [{} for _ in range(len(offsets))]
        lines = [
            _json_line(file, dict(zip(_RECORD_FIELDS, fields, strict=True)) | control.get(row, content))
            for row, (fields, content) in enumerate(zip(rows, contents, strict=True))
        ]
    else:
        tails = _text_contents(records) if wanted.contents else [""] * len(offsets)
        for row, fields in control.items():
            tails[row] = "".join(f" {_CONTROL_NAMES[name]}: {value}" for name, value in fields.items())
        lines = [
            f"| offset: {offset} {kind}: {timestamp} keySize: {key_size} valueSize: {value_size} sequence: {sequence}"
            f" headerKeys: [{','.join(names)}]{tail}\n"
            for (offset, kind, timestamp, key_size, value_size, sequence, names), tail in zip(rows, tails, strict=True)
        ]
    return lines[:end], error


def _sizes(column: pa.Array) -> list[int]:
    sizes: list[int] = pc.binary_length(column).fill_null(-1).to_pylist()
    return sizes


def _header_keys(headers: pa.Array) -> list[list[str]]:
    """The names of each record's headers."""
    flat = headers.flatten()
    if not len(flat):
        return [[] for _ in range(len(headers))]
    names = iter(java_texts(flat.field("key").cast(pa.binary())))
    return [[str(next(names)) for _ in range(count)] for count in headers.value_lengths().to_pylist()]


_CONTROL_NAMES = {
    "end_txn_marker": "endTxnMarker",
    "coordinator_epoch": "coordinatorEpoch",
    "control_type": "controlType",
}


def _control_fields(
    records: pa.RecordBatch, is_control: npt.NDArray[np.bool_], places: Int64Array, log_name: str
) -> tuple[dict[int, dict[str, Any]], int, CorruptionError | None]:
    """What control records say, by their row; the row of the first that is none, and what is wrong with it."""
    found: dict[int, dict[str, Any]] = {}
    for row in np.flatnonzero(is_control).tolist():
        key, value = records["key"][row].as_py(), records["value"][row].as_py()
        try:
            marker = decode_marker(key, value, log_name, int(places[row]))
        except CorruptionError as error:
            return found, row, error
        if marker is not None:
            found[row] = {
                "end_txn_marker": marker.control_type.name,
                "coordinator_epoch": marker.coordinator_epoch,
            }
        else:
            kind = control_type(key, log_name, int(places[row]))
            found[row] = {"control_type": f"{_CLUSTER_CONTROL_TYPES.get(kind, 'UNKNOWN')}({kind})"}
    return found, len(is_control), None


_CLUSTER_CONTROL_TYPES = {
    2: "LEADER_CHANGE",
    3: "SNAPSHOT_HEADER",
    4: "SNAPSHOT_FOOTER",
    5: "KRAFT_VERSION",
    6: "KRAFT_VOTERS",
}
"""Only in a cluster's own metadata log. Kafka's tool also knows what they hold."""


def _text_contents(records: pa.RecordBatch) -> list[str]:
    """Key and value as they end a record's line."""
    pairs = zip(java_texts(records["key"]), java_texts(records["value"]), strict=True)
    return [_text_content(key, value) for key, value in pairs]


def _text_content(key: str | None, value: str | None) -> str:
    return f"{'' if key is None else f' key: {key}'}{'' if value is None else f' payload: {value}'}"


def _json_contents(records: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    flat = records["headers"].flatten()
    names = iter(java_texts(flat.field("key").cast(pa.binary())))
    values = iter(flat.field("value").to_pylist())
    for key, value, count in zip(
        records["key"].to_pylist(), records["value"].to_pylist(), records["headers"].value_lengths().to_pylist(),
        strict=True,
    ):  # fmt: skip
        headers = [[next(names), _base64(next(values))] for _ in range(count)]
        yield {"key": _base64(key), "value": _base64(value), "headers": headers}


def _base64(data: bytes | None) -> str | None:
    return None if data is None else binascii.b2a_base64(data, newline=False).decode()


_HALF_PAIR = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
"""Half of a surrogate pair in three bytes, or what is left of one."""


def java_texts(column: pa.Array) -> list[str | None]:
    """Bytes as the texts that new String(bytes, UTF_8) makes of them in Java, None where they are null.

    What is no UTF-8 becomes U+FFFD, as many as Python puts there too, but for half a surrogate pair, which is one.
    """
    try:
        texts: list[str | None] = column.cast(pa.string()).to_pylist()
    except pa.ArrowInvalid:
        texts = [
            None if data is None else _HALF_PAIR.sub(b"\xff", data).decode(errors="replace")
            for data in column.to_pylist()
        ]
    return texts


# ------------------------------------------------------------------------------------- messages of magic 0 and 1

_LEGACY_LINE = "offset: %d position: %d %s: %d size: %d magic: %d compresscodec: %s crc: %d isvalid: %s\n"
_LEGACY_FIELDS = (
    "offset", "position", "timestamp_type", "max_timestamp", "size", "magic", "compresscodec", "crc", "isvalid",
)  # fmt: skip
_MESSAGE_LINE = "| offset: %d %s: %d keySize: %d valueSize: %d isValid: %s crc: %d"
_MESSAGE_FIELDS = ("offset", "timestamp_type", "timestamp", "key_size", "value_size", "is_valid", "crc")


class _Message(NamedTuple):
    """An entry of magic 0 or 1, or a message inside of one (record.legacy draws it)."""

    offset: int
    data: bytes  # from the CRC on

    @property
    def crc(self) -> int:
        return int.from_bytes(self.data[:4], "big")

    @property
    def valid(self) -> bool:
        return zlib.crc32(self.data[4:]) == self.crc

    @property
    def magic(self) -> int:
        return int.from_bytes(self.data[4:5], "big", signed=True)

    @property
    def codec(self) -> int:
        return self.data[5] & CODEC_MASK

    @property
    def timestamp_type(self) -> int:
        if self.magic == 0:
            return NO_TIMESTAMP_TYPE
        return LOG_APPEND_TIME_TYPE if self.data[5] & LOG_APPEND_TIME else CREATE_TIME

    @property
    def timestamp(self) -> int:
        return NO_TIMESTAMP if self.magic == 0 else int.from_bytes(self.data[6:14], "big", signed=True)

    def key_and_value(self, log_name: str, position: int) -> tuple[bytes | None, bytes | None]:
        """Both; None where there is none. The position is that of the entry, for an error."""
        start = 6 if self.magic == 0 else 14
        found: list[bytes | None] = []
        for name in ("key", "value"):
            length = int.from_bytes(self.data[start : start + 4], "big", signed=True)
            start += 4
            if start > len(self.data) or length > len(self.data) - start:
                raise CorruptionError(log_name, position, f"a {name} inside its message", "a length that leaves it")
            found.append(None if length < 0 else self.data[start : start + length])
            start += max(length, 0)
        return found[0], found[1]


def _show_messages(entries: _Entries, log_name: str, file: DumpedFile, wanted: Wanted) -> Iterator[_Shown]:
    """Message by message: nobody writes them any more."""
    for row in range(len(entries.starts)):
        entry, position = _entry_message(entries, row), entries.position + int(entries.starts[row])
        kind = TIMESTAMP_TYPE_NAMES[entry.timestamp_type]
        lines, offsets, error = [], [], None
        if not (wanted.jsonl and wanted.records):
            fixed = (entry.offset, position, kind, entry.timestamp, int(entries.sizes[row]), entry.magic)
            values = (*fixed, _codec_name(entry.codec), entry.crc, entry.valid)
            lines.append(
                _json_line(file, dict(zip(_LEGACY_FIELDS, values, strict=True)))
                if wanted.jsonl
                else _LEGACY_LINE % (*values[:-1], _java_bool(entry.valid))
            )
        try:
            for message in _messages(entry, log_name, position) if wanted.records else ():
                timestamp = message.timestamp
                if message.magic > 0 and entry.timestamp_type == LOG_APPEND_TIME_TYPE:
                    timestamp = entry.timestamp
                lines.append(_message_line(message, kind, timestamp, log_name, position, file, wanted))
                offsets.append(message.offset)
        except CorruptionError as damage:
            error = damage
        yield _Shown("".join(lines).encode(errors="replace"), np.array(offsets, np.int64), error)
        if error is not None:
            return


def _entry_message(entries: _Entries, row: int) -> _Message:
    start, size = int(entries.starts[row]), int(entries.sizes[row])
    data = entries.data[start + LOG_OVERHEAD : start + size].tobytes()
    return _Message(int(entries.headers["base_offset"][row]), data)


def _message_line(
    message: _Message, kind: str, timestamp: int, log_name: str, position: int, file: DumpedFile, wanted: Wanted
) -> str:
    pair = message.key_and_value(log_name, position)
    sizes = [-1 if each is None else len(each) for each in pair]
    values = (message.offset, kind, timestamp, *sizes, message.valid, message.crc)
    if wanted.jsonl:
        contents: dict[str, Any] = {}
        if wanted.contents:
            contents = {"key": _base64(pair[0]), "value": _base64(pair[1]), "headers": []}
        return _json_line(file, dict(zip(_MESSAGE_FIELDS, values, strict=True)) | contents)
    line = _MESSAGE_LINE % (*values[:5], _java_bool(message.valid), message.crc)
    key, value = java_texts(pa.array(pair, pa.binary())) if wanted.contents else (None, None)
    return f"{line}{_text_content(key, value)}\n"


def _messages(entry: _Message, log_name: str, position: int) -> list[_Message]:
    """What a wrapper holds, with the offsets in the log; else the entry itself (DeepRecordsIterator of Kafka).

    Raises:
        CorruptionError: its value does not decompress, holds nothing, or a wrapper again.
    """
    if entry.codec == Codec.NONE:
        return [entry]
    _, value = entry.key_and_value(log_name, position)
    codec = LZ4_OF_MAGIC_0 if entry.magic == 0 and entry.codec == Codec.LZ4 else entry.codec
    stored = np.frombuffer(value or b"", np.uint8)
    whole = Sections(stored, np.zeros(1, np.int64), np.array([len(stored)], np.int64))
    inner = uncompressed(whole, np.array([codec]), np.array([position]), log_name, Room())
    data = inner.data[: int(inner.ends[0])].tobytes()
    messages = []
    start = 0
    while start + LOG_OVERHEAD <= len(data):
        length = int.from_bytes(data[start + LENGTH_POSITION : start + LOG_OVERHEAD], "big", signed=True)
        end = start + LOG_OVERHEAD + length
        if length < _SHORTEST:
            raise CorruptionError(log_name, position, f"messages of a length of at least {_SHORTEST}", str(length))
        if end > len(data):
            break  # cut off; Kafka ends here, too
        offset = int.from_bytes(data[start : start + 8], "big", signed=True)
        messages.append(_Message(offset, data[start + LOG_OVERHEAD : end]))
        start = end
    if not messages or any(message.codec for message in messages):
        found = "a wrapper in it" if messages else "nothing in it"
        raise CorruptionError(log_name, position, "a wrapper of plain messages", found)
    # Offsets in a wrapper of magic 1 count from any number, but where an old librdkafka left 0 in its own.
    shift = entry.offset - messages[-1].offset if entry.magic == 1 and entry.offset else 0
    if shift < 0:
        raise CorruptionError(
            log_name, position, f"offsets in a wrapper up to its own, {entry.offset}", str(messages[-1].offset)
        )
    return [message._replace(offset=message.offset + shift) for message in messages]


# ------------------------------------------------------------------------------------------------- .index, .timeindex


class _Header(NamedTuple):
    """What an index entry is held against."""

    position: int
    size: int
    last_offset: int


def _header_at(log: _OpenLog, position: int) -> _Header | None:
    """The header of the entry at a position, None where the log ends or that entry is cut off."""
    if log.size - position <= HEADER_BYTES_UP_TO_MAGIC:
        return None
    data = log.read(position, HEADER_BYTES)
    size = _entry_size(log, position, data)
    if size > log.size - position:
        return None
    return _Header(position, size, int(_entries_of(data, position, [0], size).last_offsets[0]))


def _sibling(path: Path, suffix: str) -> Path:
    """The file of the same segment with this suffix."""
    return path.with_name(path.name[: path.name.rfind(".")] + suffix)


def _whole(data: bytes, kind: np.dtype[Any]) -> npt.NDArray[Any]:
    """The entries of an index file, with what a preallocated one goes on with."""
    return np.frombuffer(data[: len(data) // kind.itemsize * kind.itemsize], kind)


def _dump_index(file: DumpedFile, wanted: Wanted, findings: Findings) -> Iterator[bytes]:
    base_offset = _base_offset(file.path)
    entries = _whole(_read(file.path), OFFSET_ENTRY)
    log = _OpenLog.of(_sibling(file.path, LOG))
    if not len(entries):
        if not wanted.jsonl:
            yield f"{file.name} is empty.\n".encode(errors="replace")
        return
    offsets, positions = base_offset + entries["relative_offset"].astype(np.int64), entries["position"]
    for row, (offset, position) in enumerate(zip(offsets.tolist(), positions.tolist(), strict=True)):
        if offset == base_offset and row > 0:
            return  # preallocated, and not trimmed
        header = _header_at(log, position) if position >= 0 else None
        if header is None:
            place = row * OFFSET_ENTRY.itemsize
            raise CorruptionError(str(file.path), place, f"a position of a batch in {log.key}", str(position), _REMEDY)
        if header.last_offset != offset:
            findings.index_mismatches.setdefault(file.absolute_name, {})[offset] = header.last_offset
        yield _line(file, wanted, "offset: %d position: %d", ("offset", "position"), (offset, position))


def _dump_time_index(file: DumpedFile, wanted: Wanted, findings: Findings) -> Iterator[bytes]:
    base_offset = _base_offset(file.path)
    entries = _whole(_read(file.path), TIME_ENTRY)
    log = _OpenLog.of(_sibling(file.path, LOG))
    index = _whole(_read_if_there(_sibling(file.path, INDEX)), OFFSET_ENTRY)
    offsets = base_offset + entries["relative_offset"].astype(np.int64)
    cursor = _Cursor(log)
    previous = NO_TIMESTAMP
    for row, (timestamp, offset) in enumerate(zip(entries["timestamp"].tolist(), offsets.tolist(), strict=True)):
        if offset == base_offset and row > 0:
            return  # preallocated, and not trimmed
        header = cursor.first_to(_indexed_position(index, offset - base_offset), offset)
        if header is None or header.last_offset != offset:
            found = -1 if header is None else header.last_offset
            findings.not_found.setdefault(file.absolute_name, []).append((offset, found))
        else:
            largest = _largest_timestamp(log, header)
            if largest != timestamp:
                findings.time_mismatches.setdefault(file.absolute_name, []).append((timestamp, largest))
            if previous >= timestamp:
                findings.out_of_order.setdefault(file.absolute_name, []).append((timestamp, previous))
        yield _line(file, wanted, "timestamp: %d offset: %d", ("timestamp", "offset"), (timestamp, offset))
        previous = timestamp


def _line(file: DumpedFile, wanted: Wanted, template: str, names: Sequence[str], values: tuple[Any, ...]) -> bytes:
    if wanted.jsonl:
        return _json_line(file, dict(zip(names, values, strict=True))).encode(errors="replace")
    return f"{template % values}\n".encode()


def _read_if_there(path: Path) -> bytes:
    """A .timeindex without its .index is a slower one."""
    try:
        return _read(path)
    except NotFoundError:
        return b""


def _indexed_position(entries: npt.NDArray[Any], relative_offset: int) -> int:
    """Where Kafka begins to look for an offset (OffsetIndex.lookup), also by an index that is out of order.

    It tries the last entries first: those are in the page cache.
    """
    if not len(entries):
        return 0
    offsets, positions = entries["relative_offset"], entries["position"]
    first_warm = max(0, len(entries) - 1 - _WARM_ENTRIES)
    if offsets[first_warm] < relative_offset:
        low, high = first_warm, len(entries) - 1
    elif offsets[0] > relative_offset:
        return 0
    else:
        low, high = 0, first_warm
    while low < high:
        middle = (low + high + 1) // 2
        if offsets[middle] == relative_offset:
            return int(positions[middle])
        if offsets[middle] > relative_offset:
            high = middle - 1
        else:
            low = middle
    return int(positions[low])


class _Cursor:
    """Finds batches by their offsets, going on from the one found before where that gives the same answer."""

    def __init__(self, log: _OpenLog) -> None:
        self._log = log
        self._start = self._offset = 0
        self._reached = 0

    def first_to(self, start: int, offset: int) -> _Header | None:
        """The first batch from this position on that ends at the offset or behind it; None where there is none."""
        position = start
        if start >= self._start and offset >= self._offset:
            position = max(start, self._reached)
        if not 0 <= position <= self._log.size:
            place = f"a position up to {self._log.size} in the .index"
            raise CorruptionError(self._log.name, self._log.size, place, str(position), _REMEDY)
        while (header := _header_at(self._log, position)) is not None and header.last_offset < offset:
            position += header.size
        self._start, self._offset, self._reached = start, offset, position
        return header


def _largest_timestamp(log: _OpenLog, header: _Header) -> int:
    """The largest of the batch's records, -1 where it has none left."""
    entries = _entries_of(log.read(header.position, header.size + HEADER_BYTES), header.position, [0], header.size)
    if entries.headers["magic"][0] < MAGIC:
        entry = _entry_message(entries, 0)
        if entry.timestamp_type != CREATE_TIME:
            return entry.timestamp
        return max(message.timestamp for message in _messages(entry, log.name, header.position))
    records, error = decode_until_damage(entries.data, _table(entries), log.name, header.position)
    if error is not None:
        raise error
    attributes = int(entries.headers["attributes"][0])
    append_time = attributes & LOG_APPEND_TIME and records.num_rows
    timestamps = entries.headers["max_timestamp"] if append_time else records["timestamp"].to_numpy()
    return int(timestamps.max(initial=NO_TIMESTAMP))


# ------------------------------------------------------------------------------------------------ .txnindex, .snapshot

_ABORTED_FIELDS = ("version", "producer_id", "first_offset", "last_offset", "last_stable_offset")
_ABORTED_LINE = "version: %d producerId: %d firstOffset: %d lastOffset: %d lastStableOffset: %d"


def _dump_transaction_index(file: DumpedFile, wanted: Wanted) -> Iterator[bytes]:
    data = _read(file.path)
    whole = len(data) // ABORTED_ENTRY.size * ABORTED_ENTRY.size
    for row, entry in enumerate(ABORTED_ENTRY.iter_unpack(data[:whole])):
        if entry[0] > 0:
            raise CorruptionError(str(file.path), row * ABORTED_ENTRY.size, "version 0", str(entry[0]))
        yield _line(file, wanted, _ABORTED_LINE, _ABORTED_FIELDS, entry)
    if whole < len(data):
        raise CorruptionError(str(file.path), whole, f"an entry of {ABORTED_ENTRY.size} bytes", str(len(data) - whole))


_PRODUCER_FIELDS = ("producer_id", "producer_epoch", "coordinator_epoch", "current_txn_first_offset", "last_timestamp")
_PRODUCER_LINE = "producerId: %d producerEpoch: %d coordinatorEpoch: %d currentTxnFirstOffset: %s lastTimestamp: %d"
_LAST_BATCH_FIELDS = ("first_sequence", "last_sequence", "last_offset", "offset_delta", "timestamp")
_LAST_BATCH_LINE = " firstSequence: %d lastSequence: %d lastOffset: %d offsetDelta: %d timestamp: %d"


def _dump_snapshot(file: DumpedFile, wanted: Wanted) -> Iterator[bytes]:
    for entry in decode_snapshot(_read(file.path), str(file.path)):
        first_offset = entry.txn_first_offset if entry.txn_first_offset >= 0 else None
        known = (entry.producer_id, entry.producer_epoch, entry.coordinator_epoch, first_offset, entry.timestamp)
        batch: tuple[int, ...] = ()
        if entry.last_offset >= 0:
            first_sequence = (entry.last_sequence - entry.offset_delta) & _LARGEST_INT
            batch = (first_sequence, entry.last_sequence, entry.last_offset, entry.offset_delta, entry.timestamp)
        if wanted.jsonl:
            fields = dict(zip(_PRODUCER_FIELDS, known, strict=True))
            yield _json_line(file, fields | dict(zip(_LAST_BATCH_FIELDS, batch, strict=False))).encode()
        else:
            line = _PRODUCER_LINE % (*known[:3], _optional_long(first_offset), entry.timestamp)
            yield f"{line}{_LAST_BATCH_LINE % batch if batch else ''}\n".encode()
