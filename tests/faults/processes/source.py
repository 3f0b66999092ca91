"""The input of the ingests in these tests: files of JSON lines. Each row has the number of its file, and its own number
in the file.

A record's id is the number of its file times ROWS_BETWEEN, plus the number of its row. The record's value begins with
the id, in twelve digits. In each step, Spark takes a fixed number of files, in the order of their modification times,
with a task for each file. A micro-batch usually has the files of one step. A driver may die after Spark has recorded
the files of a step, but before the batch exists. Then the next batch has these files and also the files of its own
step. The checkpoint records the number of steps up to each batch. So the last committed batch determines the records
that must exist.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from storage_engine.storage import Storage

TOPIC = "events"
PARTITIONS = 3
ROWS_BETWEEN = 10**6
_BEGAN_S = 1_700_000_000

_CONF = """
root: unused
topics:
  {topic}: {{partitions: {partitions}, segment.bytes: {segment_bytes}, retention.ms: -1, file.delete.delay.ms: 0}}
ingest:
  topic: {topic}
  source:
    format: json
    path: {path}
    schema: file INT, row INT
    options: {{maxFilesPerTrigger: {files}}}
  key: string(row % 17)
  value: concat(format_string('%06d%06d', file, row), repeat('x', {padding}))
"""


class Source:
    """A folder of files, written ahead of the ingests.

    rows: in each file. files: taken at a time. written: how many files there are.
    padding: bytes by which a value is longer than its id.
    """

    def __init__(self, folder: Path, rows: int, files: int = 2, padding: int = 0, segment_bytes: int = 100_000) -> None:
        self.rows = rows
        self.files = files
        self.padding = padding
        self._folder = folder / "source"
        self._folder.mkdir()
        self.written = 0
        self.conf = folder / "ingest.yaml"
        self.conf.write_text(
            _CONF.format(
                topic=TOPIC, partitions=PARTITIONS, path=self._folder, files=files, padding=padding,
                segment_bytes=segment_bytes,
            )
        )  # fmt: skip

    def reach(self, batches: int) -> None:
        """Write files until there are enough for so many micro-batches."""
        while self.written < batches * self.files:
            number = self.written
            file = self._folder / f"{number:06d}.json"
            written = file.with_suffix(".part")
            written.write_text("".join(f'{{"file": {number}, "row": {row}}}\n' for row in range(self.rows)))
            os.utime(written, (_BEGAN_S + number, _BEGAN_S + number))
            written.rename(file)
            self.written += 1


def files_up_to(storage: Storage, batch_id: int, files: int) -> int:
    """How many files a micro-batch and those before it hold; `files` are taken at a time."""
    offsets = storage.read(f"checkpoints/ingest/{TOPIC}/offsets/{batch_id}")
    return files * (int(json.loads(offsets.splitlines()[-1])["logOffset"]) + 1)


def ids_of_files(files: int, rows: int) -> npt.NDArray[np.int64]:
    """The ids in the first files, in order."""
    return (np.arange(files, dtype=np.int64)[:, None] * ROWS_BETWEEN + np.arange(rows)).ravel()
