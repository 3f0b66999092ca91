"""Counts the fields that an ingest drops because the source's schema does not name them.

Spark silently ignores these fields. A check of every row would cost more than reading the row. So the driver reads a
sample of each micro-batch. The sample has at most SAMPLED_BYTES in all, and comes from at most SAMPLED_FILES of the
micro-batch's files. Each of these files contributes an equal number of bytes to the sample. These bytes are spread over
the whole length of the file. A smaller micro-batch is read whole. As in Spark, names that differ only in upper and
lower case are different names.

Only names of the first level are checked, not names in nested objects. An ingest of CSV drops no field: a line with
more columns than the schema is a dead letter.

If an expression names `_line`, no field is dropped, and no sample is read.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pipeline.ingest.checkpoint_check import source_files
from pipeline.ingest.rows.source_options import source_option
from pipeline.ingest.rows.source_rows import LINE, SourceRows, names_line
from pipeline.settings import Settings
from storage_engine.storage import Storage

SAMPLED_BYTES = 512 * 1024
SAMPLED_FILES = 16
_CHUNK = 64 * 1024
"""The size of a piece. A large file is read in pieces that are spread over its length."""
_PLAIN = {"", ".json", ".jsonl", ".ndjson", ".log", ".txt"}
"""The endings of files that are not compressed."""
_LONGEST = 100
"""The largest number of characters that are shown of a name. Names come from the data, so they may be long."""
MOST_FIELDS = 20
"""The largest number of fields that are named. If field names are data, such as ids, there is no limit to their
number."""


@dataclass
class DroppedFields:
    """The dropped fields in all samples so far.

    known: the source's columns.
    rows: by field, the number of sampled rows with this field. Only the first MOST_FIELDS dropped fields are here.
    further: the number of sampled rows with any other dropped field.
    looked_at: the number of sampled rows.
    """

    known: frozenset[str]
    rows: Counter[str] = field(default_factory=Counter)
    further: int = 0
    looked_at: int = 0

    @classmethod
    def of(cls, settings: Settings, source: SourceRows) -> DroppedFields | None:
        """The counter for this source; None if the source drops no fields, or if dropped fields cannot be detected."""
        is_json = settings.required_ingest().source.format.lower() == "json"
        is_multi_line = (source_option(settings, "multiLine") or "").strip().lower() == "true"
        if not is_json or is_multi_line or names_line(settings):
            return None
        return cls(frozenset(source.visible.columns))

    def look(self, spark: SparkSession, storage: Storage, checkpoint: str, batch_id: int) -> list[str]:
        """Read a sample of a micro-batch; returns a line for each new field, up to the limit of named fields.

        A file that cannot be read is skipped: the tasks that read it report the error. A call that fails changes no
        count, so the call can be repeated.
        """
        files = source_files(storage, checkpoint, batch_id)
        chosen = [files[number * len(files) // SAMPLED_FILES] for number in range(SAMPLED_FILES)]
        chosen = list(dict.fromkeys(chosen)) if len(files) > SAMPLED_FILES else list(files)
        rows, further, looked_at = self.rows.copy(), self.further, self.looked_at
        for path in chosen:
            with suppress(Py4JError, PySparkException, OSError):
                lines = _sampled_lines(spark, path, SAMPLED_BYTES // len(chosen))
                for names in map(_names, lines):
                    looked_at += 1
                    dropped = [name for name in names if name not in self.known]
                    rows.update(name for name in dropped if name in rows or len(rows) < MOST_FIELDS)
                    further += any(name not in rows for name in dropped)
        said = [_line(name) for name in rows if name not in self.rows]
        if further and not self.further:
            said.append("warning: the ingest drops further fields, too")
        self.rows, self.further, self.looked_at = rows, further, looked_at
        return said

    @property
    def summary(self) -> str:
        """The fields with their numbers of rows, as text for the operator."""
        counts = [(_shown(name), count) for name, count in self.rows.items()]
        if self.further:
            counts.append(("further fields", self.further))
        return ", ".join(f"{name} in {count:,} of {self.looked_at:,} examined rows" for name, count in counts) or "none"


def _line(name: str) -> str:
    return (
        f"warning: the source has the field {_shown(name)}, which is not in the source's schema: the field is dropped."
        f" `value: {LINE}` stores each line unchanged"
    )


def _names(line: bytes) -> list[str]:
    """The distinct names of the first level, in their order; empty for a malformed line."""
    try:
        value: Any = json.loads(line)
    except (ValueError, RecursionError):
        return []
    objects = value if isinstance(value, list) else [value]
    return list(dict.fromkeys(name for each in objects if isinstance(each, dict) for name in each))


def _shown(name: str) -> str:
    return json.dumps(name if len(name) <= _LONGEST else name[:_LONGEST] + "...")


def _sampled_lines(spark: SparkSession, uri: str, most: int) -> Iterator[bytes]:
    """Whole lines of a file that Spark can read. The lines have at most `most` bytes in all, and are spread over the
    length of the file."""
    with closing(_opened(spark, uri)) as file:
        size = file.size
        pieces = max(most // _CHUNK, 1) if size is not None and size > most else 1
        length = min(most, _CHUNK) if pieces > 1 else most
        for start in _starts(size or 0, length, pieces):
            if start:
                file.seek(start)
            data = file.read(length)
            lines = data.splitlines()
            is_cut = len(data) == length and not data.endswith(b"\n")
            yield from (line for line in lines[1 if start else 0 : len(lines) - is_cut] if line.strip())


def _opened(spark: SparkSession, uri: str) -> _LocalFile | _HadoopFile:
    parts = urlsplit(uri)
    if parts.scheme == "file" and PurePosixPath(parts.path).suffix.lower() in _PLAIN:
        return _LocalFile(unquote(parts.path))
    return _HadoopFile(spark, uri)


class _LocalFile:
    """An uncompressed file that this process can read directly. size: in bytes."""

    def __init__(self, path: str) -> None:
        self._file = Path(path).open("rb")  # noqa: SIM115 - closed by close
        self.size: int | None = os.fstat(self._file.fileno()).st_size

    def seek(self, position: int) -> None:
        self._file.seek(position)

    def read(self, length: int) -> bytes:
        return self._file.read(length)

    def close(self) -> None:
        self._file.close()


class _HadoopFile:
    """Any file that Spark can read. size: in bytes; None if the file is compressed; a compressed file cannot seek."""

    def __init__(self, spark: SparkSession, uri: str) -> None:
        jvm, conf = spark._jvm, spark._jsc.hadoopConfiguration()  # noqa: SLF001 - Hadoop's files have no Python side
        assert jvm is not None, "a session has a JVM"
        hadoop = jvm.org.apache.hadoop
        file = hadoop.fs.Path(jvm.java.net.URI.create(uri))
        system = file.getFileSystem(conf)
        codec = hadoop.io.compress.CompressionCodecFactory(conf).getCodec(file)
        self.size: int | None = None if codec else int(system.getFileStatus(file).getLen())
        opened = system.open(file)
        try:
            self._stream = codec.createInputStream(opened) if codec else opened
        except Py4JError:
            opened.close()
            raise

    def seek(self, position: int) -> None:
        self._stream.seek(position)

    def read(self, length: int) -> bytes:
        return bytes(self._stream.readNBytes(length))

    def close(self) -> None:
        self._stream.close()  # the stream of a codec also closes the file, and releases its decompressor


def _starts(size: int, length: int, pieces: int) -> Sequence[int]:
    """The positions of the pieces of a file: the first piece is at the beginning, the last at the end."""
    if pieces == 1:
        return [0]
    return [number * (size - length) // (pieces - 1) for number in range(pieces)]
