"""Shows the page with records of a partition: the records from an offset or from a time, or the records that have a
given key or header.

Without --show-values, a page hides keys, values and headers. It shows only the size of each key and value, whether a
key or value is null, and the number and the size of the headers. Without --show-values, records cannot be searched
either, because a search shows whether a key or a header exists.

A search reads forward from the start. A search ends after MOST_SEARCHED_BYTES, or after SEARCH_SECONDS. At the end of
the search, the page shows up to which offset it has searched, and has a link to continue.
"""

from __future__ import annotations

import time
from codecs import getincrementaldecoder
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakelog.optional import optional
from lakelog.report.layout import data_table
from lakelog.report.markup import Child, element, escaped, joined
from lakelog.ui.parameters import BadParameterError, Parameters
from lakelog.ui.rendering import Look, address, link_head, show
from lakelog.ui.site import Site
from storage_engine.config import LONG_MAX
from storage_engine.errors import LogError, NotFoundError, UnknownTopicError
from storage_engine.log.isolation import Isolation
from storage_engine.log.segment_reader import positions_of, read_chunks
from storage_engine.quantities import counted, shown_moment, shown_number, shown_size
from storage_engine.record.record_columns import TIMESTAMP_TYPE_NAMES, with_binary
from storage_engine.storage import Storage
from storage_engine.topic.chain.topic_state import TopicState
from storage_engine.topic.chain.transaction_files import newest_decided
from storage_engine.topic.readers.reader import PartitionReader, segments_in_range

with optional("starlette", "lakelog[ui]", "The command `lakelog ui`"):
    from starlette.requests import Request
    from starlette.responses import Response

RECORDS_OF_A_PAGE = 50
MOST_RECORDS = 200
MOST_SEARCHED_BYTES = 64_000_000
SEARCH_SECONDS = 5.0
SHOWN_CHARACTERS = 200
SHOWN_CHARACTERS_OF_ONE = 20_000
"""If the page has one record, so many characters of its value are shown."""
_HEADER_BYTES = 1024 * 1024
"""The headers of batches are read in pieces of this size, to find the producers of the records of a page."""


@dataclass(frozen=True)
class Wanted:
    """What a page must show.

    first: the first offset to read.
    count: the largest number of records.
    key, header, header_value: only records with this key, with a header of this name, and with this value of that header;
        None: all records.
    """

    first: int
    count: int
    key: bytes | None = None
    header: str | None = None
    header_value: bytes | None = None

    @property
    def is_search(self) -> bool:
        """Whether records without a match are passed over."""
        return self.key is not None or self.header is not None


@dataclass
class Found:
    """The records of a page.

    next_offset: where to continue.
    error: why reading ended early; None if it did not.
    """

    next_offset: int
    batches: list[pa.RecordBatch] = field(default_factory=list)
    error: LogError | None = None

    @property
    def count(self) -> int:
        """The number of records."""
        return sum(batch.num_rows for batch in self.batches)


def records(site: Site, request: Request, name: str) -> Response:
    """The page `/topics/TOPIC/records`.

    Raises:
        ConfigError: a parameter is wrong, or a search is not allowed.
        OffsetOutOfRangeError: the offset is outside the partition.
        UnknownTopicError: there is no such topic or partition.
        CorruptionError: the state of the topic is damaged, or the start of the log cannot be read.
    """
    given = Parameters(request.query_params.multi_items())
    topics = site.topics()
    partitions = len(topics.state(name).partitions)
    number = given.whole("partition", 0, 0, LONG_MAX)
    if number >= partitions:
        problem = f"has partitions 0 to {partitions - 1}, but no partition {number}"
        raise UnknownTopicError(f"topic {name}", problem, "Choose one of these partitions.")
    isolation = Isolation.READ_UNCOMMITTED if given.text("uncommitted") == "1" else Isolation.READ_COMMITTED
    chain = topics.chain(name)
    state = newest_decided(topics.storage, chain)
    reader = PartitionReader(topics.storage, chain, number, state)
    end = reader.end_offset(isolation)
    wanted = _wanted(site, given, reader, end, isolation)
    stream = reader.read(wanted.first, end, isolation)
    found = search(stream, wanted, end)
    offsets = [offset for batch in found.batches for offset in batch["offset"].to_pylist()]
    producers = producers_of(topics.storage, state, number, offsets)
    part = state.partitions[number]
    start = part.log_start_offset
    kept = {"partition": number, "count": wanted.count, "uncommitted": given.text("uncommitted"),
            "key": given.text("key"), "header": given.text("header"), "value": given.text("value")}  # fmt: skip
    here = ("topics", name, "records")
    values = {
        "name": name, "number": number, "partitions": partitions, "found": found, "wanted": wanted, "given": given,
        "start": start, "end": end, "high_watermark": part.high_watermark, "count": wanted.count,
        "table": data_table(
            f"Records of partition {number}",
            ("offset", "timestamp", "key", "value", "headers", "producer", "type", "leader epoch"),
            _rows(site, name, number, found, producers), words=("timestamp", "type", "producer"),
            prose=("key", "value", "headers"),
        ) if found.count else None,
        "first_link": address(*here, **kept | {"offset": start}),
        "newer_link": address(*here, **kept | {"offset": found.next_offset}) if found.next_offset < end else None,
        "older_link": address(*here, **kept | {"offset": max(start, wanted.first - wanted.count)})
        if wanted.first > start and not wanted.is_search else None,
        "newest_link": address(*here, **kept | {"key": None, "header": None, "value": None}),
    }  # fmt: skip
    return show(site, request, "records", Look(f"Records of {name}", name, "records"), values)


def _wanted(site: Site, given: Parameters, reader: PartitionReader, end: int, isolation: Isolation) -> Wanted:
    """What the parameters ask for. Without an offset and a time, the page begins with the newest records; a search begins
    at the log start offset."""
    key, header, value = (given.text(each) for each in ("key", "header", "value"))
    searched = next((each for each in ("key", "header", "value") if given.text(each) is not None), None)
    if searched is not None and not site.options.show_values:
        raise BadParameterError(
            f"parameter {searched}", "this server hides keys, values and headers, so it does not search them",
            "Start the server with --show-values, or use `lakelog read`.",
        )  # fmt: skip
    if value is not None and header is None:
        raise BadParameterError("parameter value", "no header is given", "Give the name of the header, too.")
    count = given.whole("count", RECORDS_OF_A_PAGE, 1, MOST_RECORDS)
    start = reader.partition.log_start_offset
    first = start if searched is not None else max(start, end - count)
    time_ms = given.moment_ms("time")
    if given.text("offset") is not None:
        if time_ms is not None:
            raise BadParameterError("parameter time", "an offset is given, too", "Give either an offset or a time.")
        first = given.whole("offset", 0, 0, LONG_MAX)
    elif time_ms is not None:
        at = reader.offset_at(time_ms, isolation)
        first = end if at is None else at[0]
    return Wanted(first, count, key.encode() if key else None, header, value.encode() if value else None)


def search(stream: Iterator[pa.RecordBatch], wanted: Wanted, end: int) -> Found:
    """The first records of a stream that are wanted.

    Args:
        stream: records with the columns storage_engine.record.record_columns.RECORDS.
        end: the offset after the last record of the stream.

    Returns:
        The records. If reading fails, the records before the failure, with the error.
    """
    found = Found(wanted.first)
    deadline, left = time.monotonic() + SEARCH_SECONDS, MOST_SEARCHED_BYTES
    try:
        for records_ in stream:
            batch = with_binary(records_)
            left -= batch.nbytes
            rows = _matching(batch, wanted) if wanted.is_search else batch
            rows = rows.slice(0, wanted.count - found.count)
            found.batches += [rows] if rows.num_rows else []
            is_full = found.count >= wanted.count
            last = rows if is_full else batch
            found.next_offset = last["offset"][-1].as_py() + 1
            if is_full or left < 0 or time.monotonic() > deadline:
                return found
        found.next_offset = max(end, found.next_offset)
    except LogError as error:
        found.error = error
    return found


def _matching(batch: pa.RecordBatch, wanted: Wanted) -> pa.RecordBatch:
    if wanted.key is not None:
        batch = batch.filter(pc.fill_null(pc.equal(batch["key"], pa.scalar(wanted.key, pa.binary())), fill_value=False))
    if wanted.header is not None and batch.num_rows:
        rows = pc.list_parent_indices(batch["headers"])
        headers = pc.list_flatten(batch["headers"])
        matches = pc.equal(headers.field("key"), wanted.header)
        if wanted.header_value is not None:
            same = pc.equal(headers.field("value"), pa.scalar(wanted.header_value, pa.binary()))
            matches = pc.and_(matches, pc.fill_null(same, fill_value=False))
        batch = batch.take(pc.unique(rows.filter(matches)).cast(pa.int64()))
    return batch


def producers_of(
    storage: Storage, state: TopicState, partition: int, offsets: Sequence[int]
) -> dict[int, tuple[int, int]]:
    """The producer id and the producer epoch of records, by offset. Records that no idempotent producer wrote are missing,
    and so are records whose segment was deleted meanwhile.

    Args:
        offsets: in ascending order. The headers of all batches between the first and the last offset are read.
    """
    found: dict[int, tuple[int, int]] = {}
    if not offsets:
        return found
    wanted = np.array(offsets, np.int64)
    first, end = offsets[0], offsets[-1] + 1
    try:
        for segment in segments_in_range(state, partition, first, end):
            position, stop = positions_of(storage, segment, first, end)
            for chunk in read_chunks(storage, segment, position, _HEADER_BYTES, stop):
                table = chunk.table
                rows = np.searchsorted(table.last_offsets, wanted)
                for offset, row in zip(offsets, rows.tolist(), strict=True):
                    if row < len(table) and table.base_offsets[row] <= offset and table.producer_ids[row] >= 0:
                        found[offset] = int(table.producer_ids[row]), int(table.producer_epochs[row])
                if int(table.last_offsets[-1]) + 1 >= end:
                    break
    except (LogError, NotFoundError):
        return found  # reading the records has reported damage
    return found


def _rows(
    site: Site, name: str, number: int, found: Found, producers: dict[int, tuple[int, int]]
) -> Iterator[Sequence[Child]]:
    most = SHOWN_CHARACTERS_OF_ONE if found.count == 1 else SHOWN_CHARACTERS
    is_shown = site.options.show_values
    for batch in found.batches:
        columns = [
            batch[each].to_pylist()
            for each in ("offset", "timestamp", "timestamp_type", "leader_epoch", "key", "value")
        ]
        headers = batch["headers"].to_pylist()
        for offset, timestamp, kind, epoch, key, value, pairs in zip(*columns, headers, strict=True):
            producer = producers.get(offset)
            yield (
                link_head(shown_number(offset), "topics", name, "records", partition=number, offset=offset, count=1),
                element("time", shown_moment(timestamp)),
                content(key, most) if is_shown else size_of(key),
                content(value, most) if is_shown else size_of(value),
                _header_text(pairs, most) if is_shown else _headers_size(pairs),
                None if producer is None else f"{producer[0]} (epoch {producer[1]})",
                TIMESTAMP_TYPE_NAMES.get(kind, str(kind)), shown_number(epoch),
            )  # fmt: skip


def size_of(data: bytes | None) -> str:
    """What a page says about hidden bytes: their number, or that there are none."""
    return "null" if data is None else shown_size(len(data))


def content(data: bytes | None, most: int) -> Child:
    """Bytes for people: text, or hexadecimal digits if the bytes are not UTF-8 text.

    Args:
        most: at most this many characters are shown.
    """
    if data is None:
        return element("em", "null")
    if not data:
        return element("em", "empty")
    start = data[: 4 * most]
    try:
        text = getincrementaldecoder("utf-8")().decode(start, final=len(start) == len(data))
        note = "" if len(start) == len(data) and len(text) <= most else f" … ({shown_size(len(data))})"
        shown: Child = text[:most]
    except UnicodeDecodeError:
        shown = f"0x{data[: most // 2].hex()}"
        note = f"{' …' if len(data) > most // 2 else ''} ({shown_size(len(data))}, not text)"
    return joined([element("code", shown, class_="content"), note])


def _header_text(pairs: Sequence[dict[str, bytes | str | None]], most: int) -> Child:
    lines: list[Child] = []
    for pair in pairs:
        value = pair["value"]
        lines += [element("br")] if lines else []
        lines += [element("code", str(pair["key"])), " = ", content(value if isinstance(value, bytes) else None, most)]
    return joined(lines) if lines else escaped("none")


def _headers_size(pairs: Sequence[dict[str, bytes | str | None]]) -> str:
    if not pairs:
        return "none"
    size = sum(len(part.encode() if isinstance(part, str) else part or b"") for pair in pairs for part in pair.values())
    return f"{counted(len(pairs), 'header')}, {shown_size(size)}"
