"""Decodes record batches to Arrow columns.

The CRC of each batch is checked before the batch is decoded. Two kinds of batches are recognised by their headers and
skipped: control batches, and batches that contain no requested offset. The other batches are decoded in groups that fit
into the processor's cache. For each group, the CRCs are checked, all records of the group are decompressed into one
buffer, and one kernel call decodes them. Compressed batches, uncompressed batches and entries of magic 0 and 1 can be
mixed; entries of magic 0 and 1 form their own groups. If no batch is compressed, one kernel call checks and decodes
each batch while the batch is in the cache.

Keys and values are not copied. The columns are views into the given bytes or into the decompressed bytes, and keep
these bytes in memory. So the caller must not change the given bytes after the call.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_engine.errors import BatchTooLargeError, CorruptionError
from storage_engine.record.batch import BatchTable, ByteArray, Int64Array
from storage_engine.record.batch_limit import most_batch_bytes
from storage_engine.record.compression import MOST_BYTES, Codec, decompress_bound
from storage_engine.record.crc import check_crcs
from storage_engine.record.header import HEADER_BYTES
from storage_engine.record.kernels.columns import Sections
from storage_engine.record.kernels.crc32c import IN_KERNELS
from storage_engine.record.kernels.decode_kernels import (
    BAD_CRC,
    DECODE_PROBLEMS,
    INTACT,
    SMALLEST_RECORD,
    HeaderColumns,
    decode_headers,
    decode_records,
    survey_batches,
)
from storage_engine.record.kernels.legacy_kernels import Messages, decode_messages
from storage_engine.record.kernels.varint import SLACK
from storage_engine.record.legacy_records import read_messages
from storage_engine.record.record_columns import (
    RECORDS,
    RowMemory,
    binary_array,
    header_array,
    header_names,
    new_array,
    no_headers,
)
from storage_engine.record.sections import GROUP_BYTES, ROW_BYTES, Room, too_large, uncompressed

NO_END = np.iinfo(np.int64).max
ANY_OFFSET = np.iinfo(np.int64).min
"""A first offset that includes every record, even one with a negative offset, which a damaged header can have."""
_EXPANSION = 2
"""The assumed ratio of decompressed to compressed size when batches are grouped."""
_CHECKED = np.empty(0, np.int64)
"""This array takes the place of the CRCs if no CRC is to be checked."""
_HEADER_BYTES = 9
"""Bytes of columns that a header takes in addition to its name and value."""


def decode_batches(
    data: ByteArray,
    table: BatchTable,
    file: str,
    file_position: int = 0,
    first_offset: int = 0,
    end_offset: int = NO_END,
    *,
    control: bool = False,
) -> pa.RecordBatch:
    """Decode the records with first_offset <= offset < end_offset. All of them must fit into an Arrow column of 2 GiB.

    Args, Raises: as in decode_parts.

    Returns:
        Columns as in columns.RECORDS, in the order of the log.
    """
    parts = list(
        decode_parts(data, table, file, file_position, first_offset, end_offset, control=control, part_bytes=MOST_BYTES)
    )
    assert len(parts) <= 1, "batches that do not fit into one Arrow column are decoded with decode_parts"
    return parts[0] if parts else pa.RecordBatch.from_pylist([], RECORDS)


def decode_parts(
    data: ByteArray,
    table: BatchTable,
    file: str,
    file_position: int = 0,
    first_offset: int = 0,
    end_offset: int = NO_END,
    *,
    control: bool = False,
    part_bytes: int,
) -> Iterator[pa.RecordBatch]:
    """Decode the records with first_offset <= offset < end_offset, part by part.

    Args:
        data: uint8, the bytes from which the table was scanned.
        file, file_position: the file to name in an error, and the position of `data` in it.
        control: whether control records are decoded, too. Readers never get them.
        part_bytes: a part with more bytes than this gets no further group of batches. Each part has at least one group.

    Yields:
        Columns as in columns.RECORDS, in the order of the log.

    Raises:
        CorruptionError: a CRC, codec, length or count is wrong. The error names the batch.
    """
    wanted, size, records, compressed, legacy, impossible = survey_batches(
        table.base_offsets, table.last_offsets, table.attributes, table.records_counts, table.sizes, table.magics,
        first_offset, end_offset, control,
    )  # fmt: skip
    if wanted < len(table):
        table = _with_records(table, first_offset, end_offset, control=control)
    in_one = IN_KERNELS and not compressed and not legacy
    if not wanted:
        return
    if in_one and size <= part_bytes and not impossible:
        part = _DecodedPart(records)
        part.decode(_stored(data, table), table, first_offset, end_offset, file, file_position, check=True)
        yield part.records()
        return
    yield from _decode_groups(data, table, first_offset, end_offset, file, file_position, part_bytes, in_one=in_one)


def _decode_groups(
    data: ByteArray,
    table: BatchTable,
    first_offset: int,
    end_offset: int,
    file: str,
    file_position: int,
    part_bytes: int,
    *,
    in_one: bool,
) -> Iterator[pa.RecordBatch]:
    """Decode the batches of a table in groups.

    in_one: whether the kernel that decodes the records also checks the CRCs.
    """
    groups = _Groups(table, part_bytes if in_one else GROUP_BYTES)
    room = Room()
    part: _DecodedPart | None = None
    first = 0
    while first < len(table):
        group = groups.beginning_with(first)
        if not in_one:
            check_crcs(data, group, file, file_position)
        records = (
            read_messages(data, group, file, file_position, room, part_bytes)
            if group.is_legacy[0]
            else _uncompressed(data, group, file, file_position, room, part_bytes)
        )
        sections = records.sections if isinstance(records, Messages) else records
        if len(sections.starts) < len(group):
            group = group.select(slice(0, len(sections.starts)))
        if part is not None and part.size + sections.size > part_bytes:
            yield part.records()
            part = None
        if part is None:
            share = len(group) / (len(table) - first)
            counts = np.maximum(table.records_counts[first:], 1)
            most = min(int(sections.size / share), part_bytes) // SMALLEST_RECORD
            part = _DecodedPart(min(int(counts.sum()), most))
        if isinstance(records, Messages):
            part.add_messages(records, first_offset, end_offset)
        else:
            part.make_room_for(records, group, file, file_position)
            part.decode(records, group, first_offset, end_offset, file, file_position, check=in_one)
        first += len(group)
    if part is not None:
        yield part.records()


def _with_records(table: BatchTable, first_offset: int, end_offset: int, *, control: bool) -> BatchTable:
    """Select the batches that may have a wanted record."""
    wanted = (
        (control | ~table.is_control)
        & (table.records_counts != 0)
        & (table.last_offsets >= first_offset)
        & (table.base_offsets < end_offset)
    )
    return table if wanted.all() else table.select(wanted)


def decode_until_damage(
    data: ByteArray, table: BatchTable, file: str, file_position: int = 0
) -> tuple[pa.RecordBatch, CorruptionError | None]:
    """Decode the records of one batch up to the first damaged record, so that users can inspect the damage.

    The CRC is not checked, and a control batch is decoded like any other batch.

    Args:
        data, file, file_position: as in decode_parts.
        table: has only this batch, which has magic 2.

    Returns:
        Columns as in columns.RECORDS, and the error after these records, if there is one.
    """
    assert len(table) == 1, "nothing after damage can be trusted, so only one batch is decoded"
    part = _DecodedPart(0)
    error = None
    try:
        sections = _uncompressed(data, table, file, file_position, Room())
        lengths = sections.ends - sections.starts
        try:
            _check_counts(table, lengths, file, file_position)
        except CorruptionError as miscounted:
            error = miscounted
            if isinstance(miscounted, BatchTooLargeError):
                return part.records(), miscounted
            most = np.maximum(lengths // SMALLEST_RECORD, 0)
            table = replace(table, records_counts=np.minimum(table.records_counts, most))
            _check_rows(table, lengths, file, file_position)
        part.make_room_for(sections, table, file, file_position)
        part.decode(sections, table, ANY_OFFSET, NO_END, file, file_position, check=False)
    except CorruptionError as damage:
        error = error or damage
    return part.records(), error


class _Groups:
    """Groups of consecutive batches of about group_bytes in memory; entries of magic 0 and 1 have their own groups."""

    def __init__(self, table: BatchTable, group_bytes: int) -> None:
        self._table = table
        self._bytes = group_bytes
        self._changes = np.flatnonzero(np.diff(table.is_legacy)) + 1
        self._reach = np.cumsum(np.where(table.codecs == Codec.NONE, table.sizes, _EXPANSION * table.sizes))

    def beginning_with(self, first: int) -> BatchTable:
        """Return the group that begins with this batch."""
        change = np.searchsorted(self._changes, first, side="right")
        end = int(self._changes[change]) if change < len(self._changes) else len(self._table)
        before = int(self._reach[first - 1]) if first else 0
        end = min(end, max(first + 1, int(np.searchsorted(self._reach, before + self._bytes, side="right"))))
        return self._table.select(slice(first, end))


class _DecodedPart:
    """Collects decoded columns, one group of batches after another.

    size: bytes of the sections that were added.
    """

    def __init__(self, rows: int) -> None:
        """Allocate memory for about this number of rows."""
        self.size = 0
        self._used = 0
        self._memory = RowMemory(rows)
        self._buffers: list[ByteArray] = []
        self._headers: list[tuple[pa.Array, pa.Array]] = []

    def make_room_for(self, sections: Sections, table: BatchTable, file: str, file_position: int) -> None:
        """Allocate space for all records of the batches, whose decompressed records are `sections`.

        Raises:
            CorruptionError, BatchTooLargeError: the records count of a batch is impossible.
        """
        _check_counts(table, sections.ends - sections.starts, file, file_position)
        self._make_room(sections.size, int(table.records_counts.sum()))

    def decode(
        self,
        sections: Sections,
        table: BatchTable,
        first_offset: int,
        end_offset: int,
        file: str,
        file_position: int,
        *,
        check: bool,
    ) -> None:
        """Decode the batches of the table. There must be space for all their records. If a batch is damaged, the records
        before the damage are added first.

        Args:
            sections: the decompressed records of each batch.
            check: whether the kernel checks the CRCs, too. Then the sections must be in the bytes of the file.
        """
        before = self._used
        fields = HeaderColumns(
            table.crcs if check else _CHECKED, table.records_counts, table.base_offsets, table.base_timestamps,
            table.attributes, table.max_timestamps, table.leader_epochs,
        )  # fmt: skip
        problem, batch, position, self._used, headers = decode_records(
            tuple(sections),
            tuple(fields),
            first_offset,
            end_offset,
            self._number_of(sections.data),
            before,
            tuple(self._memory.columns),
        )
        if headers:
            if table.codecs.any() and headers * _HEADER_BYTES + sections.size > most_batch_bytes():
                raise too_large(file, file_position + int(table.positions[0]))
            rows = self._memory.columns
            counts, positions = rows.header_counts[before : self._used], rows.header_positions[before : self._used]
            self._headers.append(_headers(sections.data, counts, positions, headers, sections.size))
        if problem == BAD_CRC:
            check_crcs(sections.data, table.select(slice(batch, batch + 1)), file, file_position)
        if problem != INTACT:
            in_batch = position - int(sections.starts[batch])
            raise damaged_batch(problem, in_batch, file, file_position + int(table.positions[batch]))

    def add_messages(self, messages: Messages, first_offset: int, end_offset: int) -> None:
        """Decode messages of magic 0 and 1."""
        self._make_room(messages.sections.size, int(messages.counts.sum()))
        number = self._number_of(messages.sections.data)
        self._used = decode_messages(messages, first_offset, end_offset, number, self._used, self._memory.columns)

    def _make_room(self, size: int, rows: int) -> None:
        """Allocate space for more sections with this size in bytes and this number of rows."""
        self.size += size
        self._memory = self._memory.with_room(self._used, rows)

    def _number_of(self, buffer: ByteArray) -> int:
        """Return the number by which views refer to this buffer."""
        for number, known in enumerate(self._buffers):
            if known is buffer:
                return number
        self._buffers.append(buffer)
        return len(self._buffers) - 1

    def records(self) -> pa.RecordBatch:
        """Return the columns. The caller must not add rows afterwards."""
        return self._memory.records(self._used, self._buffers, self._header_lists())

    def _header_lists(self) -> pa.Array:
        if not self._headers:
            return no_headers(self._used)
        offsets = np.zeros(self._used + 1, np.int32)
        np.cumsum(self._memory.columns.header_counts[: self._used], out=offsets[1:])
        keys, values = zip(*self._headers, strict=True)
        return header_array(offsets, pa.concat_arrays(keys), pa.concat_arrays(values))


def _headers(
    sections: ByteArray, counts: npt.NDArray[np.int32], positions: Int64Array, headers: int, size: int
) -> tuple[pa.Array, pa.Array]:
    """Decode the headers of some rows to a flat array of names and a flat array of values."""
    key_offsets, value_offsets = np.empty(headers + 1, np.int32), np.empty(headers + 1, np.int32)
    keys, values = new_array(size + SLACK, np.uint8), new_array(size + SLACK, np.uint8)
    valid = np.empty(headers, np.uint8)
    key_bytes, value_bytes = decode_headers(
        sections, counts, positions, key_offsets, keys, value_offsets, values, valid
    )
    names = header_names(binary_array(key_offsets, keys[:key_bytes], None, pa.string()))
    return names, binary_array(value_offsets, values[:value_bytes], valid)


def damaged_batch(problem: int, byte: int, file: str, position: int) -> CorruptionError:
    """Return the error for a kernel's problem at byte `byte` of the records, in the batch at `position`."""
    expected, found = DECODE_PROBLEMS[problem]
    return CorruptionError(file, position, expected, f"{found} at byte {byte} of its records")


def intact_sections(data: ByteArray, table: BatchTable, file: str, file_position: int, room: Room) -> Sections:
    """Check batches of magic 2 and decompress their records into `room`; if no batch is compressed, the records stay in
    `data`.

    The earlier contents of `room` are overwritten.

    Raises:
        CorruptionError: a CRC, codec or count is wrong. The error names the batch.
    """
    check_crcs(data, table, file, file_position)
    room.begin_again()
    sections = _uncompressed(data, table, file, file_position, room)
    _check_counts(table, sections.ends - sections.starts, file, file_position)
    return sections


def _stored(data: ByteArray, table: BatchTable) -> Sections:
    return Sections(data, table.positions + HEADER_BYTES, table.positions + table.sizes)


def _uncompressed(
    data: ByteArray, table: BatchTable, file: str, file_position: int, room: Room, most_bytes: int | None = None
) -> Sections:
    return uncompressed(_stored(data, table), table.codecs, file_position + table.positions, file, room, most_bytes)


def _check_counts(table: BatchTable, lengths: Int64Array, file: str, file_position: int) -> None:
    """Refuse a records count that is impossible for the number of bytes, before a record is decoded."""
    impossible = table.records_counts * SMALLEST_RECORD > lengths
    if impossible.any():
        batch = int(impossible.argmax())
        raise CorruptionError(
            file,
            file_position + int(table.positions[batch]),
            f"at most {int(lengths[batch]) // SMALLEST_RECORD} records in {int(lengths[batch])} bytes",
            f"a count of {int(table.records_counts[batch])}",
        )
    _check_rows(table, lengths, file, file_position)


def _check_rows(table: BatchTable, lengths: Int64Array, file: str, file_position: int) -> None:
    """Refuse a compressed batch whose columns would exceed the memory limit."""
    large = (table.codecs != Codec.NONE) & (lengths + ROW_BYTES * table.records_counts > most_batch_bytes())
    if large.any():
        raise too_large(file, file_position + int(table.positions[large.argmax()]))


def unfolding_bounds(data: ByteArray, table: BatchTable) -> Int64Array:
    """Return an upper bound of each batch's decompressed size in bytes; 0 if the batch is not compressed.

    For gzip, the bound is the size in gzip's tail, which is right only if the data is a single gzip member.
    """
    bounds = np.zeros(len(table), np.int64)
    most = most_batch_bytes()
    for row in np.flatnonzero((table.codecs != Codec.NONE) & (table.codecs <= Codec.ZSTD)).tolist():
        start, size, codec = int(table.positions[row]), int(table.sizes[row]), int(table.codecs[row])
        head = 0 if table.is_legacy[row] else HEADER_BYTES
        stored = data[start + head : start + size]
        try:
            bound = decompress_bound(codec, stored.data)
        except ValueError:
            bound = most
        if codec == Codec.GZIP:
            bound = min(bound, int.from_bytes(stored[-4:].tobytes(), "little"))
        bounds[row] = min(bound, most)
    return bounds
