"""Formats the lines of entries of magic 0 and 1, and of the messages in them.

    offset: 2 position: 0 CreateTime: 1700000000000 size: 310 magic: 1 compresscodec: gzip crc: 1931249918 isvalid: true
    | offset: 1 CreateTime: 1699999998500 keySize: 2 valueSize: 145 isValid: true crc: 715982846 key: k1 payload: ...

An entry of magic 0 or 1 has no producer, epoch or count. The offset of an entry is the offset of the last message in
it. Each message has its own CRC.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from lakelog.dump.fields import codec_name
from lakelog.dump.group_lines import group_json, group_texts
from lakelog.dump.java_text import java_bool, java_text
from lakelog.dump.lines import DumpOptions, ShownEntries, json_content, json_line, text_content
from lakelog.dump.reading.dumped_file import DumpedFile
from lakelog.dump.reading.entries import LogEntries
from lakelog.dump.reading.messages import LegacyMessage, messages_in
from storage_engine.errors import CorruptionError
from storage_engine.record.record_columns import LOG_APPEND_TIME_TYPE, TIMESTAMP_TYPE_NAMES

_ENTRY_LINE = "offset: %d position: %d %s: %d size: %d magic: %d compresscodec: %s crc: %d isvalid: %s\n"
_ENTRY_FIELDS = (
    "offset", "position", "timestamp_type", "max_timestamp", "size", "magic", "compresscodec", "crc", "isvalid",
)  # fmt: skip
_MESSAGE_LINE = "| offset: %d %s: %d keySize: %d valueSize: %d isValid: %s crc: %d"
_CHARACTERS_AT_ONCE = 1024**2
"""Lines are returned as soon as they have about this many characters, because a wrapper can have millions of
messages."""
_MESSAGE_FIELDS = ("offset", "timestamp_type", "timestamp", "key_size", "value_size", "is_valid", "crc")


def show_messages(entries: LogEntries, file: DumpedFile, wanted: DumpOptions) -> Iterator[ShownEntries]:
    """The lines of each entry, up to the first entry whose messages cannot be read. If an entry has many messages, its
    lines are returned a part at a time.
    """
    for row in range(len(entries.table)):
        entry, position = LegacyMessage.of(entries, row), entries.position + int(entries.table.positions[row])
        lines: list[str] = []
        offsets: list[int] = []
        characters, error = 0, None
        if not (wanted.jsonl and wanted.records):
            lines.append(_entry_line(entry, position, int(entries.table.sizes[row]), file, wanted))
        try:
            for message in messages_in(entry, entries.log_name, position) if wanted.records else ():
                pair = message.key_and_value(entries.log_name, position)
                lines.append(_message_line(message, entry, pair, file, wanted))
                offsets.append(message.offset)
                characters += len(lines[-1])
                if characters >= _CHARACTERS_AT_ONCE:
                    yield ShownEntries(lines, np.array(offsets, np.int64))
                    lines, offsets, characters = [], [], 0
        except CorruptionError as damage:
            error = damage
        yield ShownEntries(lines, np.array(offsets, np.int64), error)
        if error is not None:
            return


def _entry_line(entry: LegacyMessage, position: int, size: int, file: DumpedFile, wanted: DumpOptions) -> str:
    kind = TIMESTAMP_TYPE_NAMES[entry.timestamp_type]
    fixed = (entry.offset, position, kind, entry.timestamp, size, entry.magic, codec_name(entry.codec), entry.crc)
    if wanted.jsonl:
        return json_line(file, dict(zip(_ENTRY_FIELDS, (*fixed, entry.valid), strict=True)))
    return _ENTRY_LINE % (*fixed, java_bool(entry.valid))


def _message_line(
    message: LegacyMessage,
    entry: LegacyMessage,
    pair: tuple[bytes | None, bytes | None],
    file: DumpedFile,
    wanted: DumpOptions,
) -> str:
    """The line of a message. The type of the timestamp is that of the entry. A timestamp that a broker set is also
    taken from the entry."""
    by_broker = message.magic > 0 and entry.timestamp_type == LOG_APPEND_TIME_TYPE
    timestamp = entry.timestamp if by_broker else message.timestamp
    sizes = [-1 if each is None else len(each) for each in pair]
    fixed = (message.offset, TIMESTAMP_TYPE_NAMES[entry.timestamp_type], timestamp, *sizes)
    if wanted.jsonl:
        contents: dict[str, Any] = json_content(*pair, []) if wanted.contents else {}
        contents |= group_json(*pair) if wanted.groups else {}
        return json_line(
            file, dict(zip(_MESSAGE_FIELDS, (*fixed, message.valid, message.crc), strict=True)) | contents
        )  # fmt: skip
    key, value = map(java_text, pair) if wanted.contents else (None, None)
    if wanted.groups:
        key, value = group_texts(message.offset, *pair)
    return f"{_MESSAGE_LINE % (*fixed, java_bool(message.valid), message.crc)}{text_content(key, value)}\n"
