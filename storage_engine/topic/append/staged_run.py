"""Writes staged runs. A staged run is a sequence of encoded batches for one partition. The run is not committed yet.

    staging/<topic id>/<version>/<attempt>.batches    the runs of several partitions, one after another

Each attempt of a task writes one file, under a random name. The task closes the file permanently, and reports the
position of each run. Only files in the report of a task are used. No process searches the staging folder for work. So
the file of a failed, retried or speculative task is not used. Offsets in a run begin at 0. <version> is the newest
version of the topic's state when staging began. A sweep deletes the remaining files of old versions
(topic.clean.sweeping).

If a power cut interrupts an append, no process uses the staged runs of this append afterwards. So staged files are
not synced by default, and the publisher checks each batch. A replay uses staged files only if a list names them
(topic.append.staged_list); these files are synced.
"""

from __future__ import annotations

import base64
import json
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from typing_extensions import Buffer

from storage_engine.errors import NotFoundError
from storage_engine.phases import FSYNC, Phases
from storage_engine.record.batch import UNKNOWN_SMALLEST, Int64Array
from storage_engine.record.encoding import BatchProducer, EncodedRun
from storage_engine.storage import NewFile, Storage

STAGE = "stage"
"""The phase in which staged bytes are written."""

_MOST_INLINE = 1024**2
"""A staged file of at most this size, in bytes, can be kept in the runs instead."""
_STAGED = re.compile(r"staging/[^/]+/([0-9]+)/")


@dataclass(frozen=True)
class StagedRun:
    """Complete batches of one partition in one staged file.

    partition: the partition of the topic.
    key: the staged file.
    position: the position of the first batch in the file.
    sizes, records, max_timestamps, min_timestamps: one number for each batch; int64, shape (batches,).
    producer: the producer of the transaction; None outside of transactions.
    data: the bytes of the batches, if the file was not written. Such a run cannot leave its process, and reading it
        needs no request to the storage.
    """

    partition: int
    key: str
    position: int
    sizes: Int64Array
    records: Int64Array
    max_timestamps: Int64Array
    min_timestamps: Int64Array
    producer: BatchProducer | None = None
    data: bytes | None = None

    @property
    def size(self) -> int:
        return int(self.sizes.sum())

    @property
    def record_count(self) -> int:
        return int(self.records.sum())

    def to_json(self) -> str:
        """The text that a task sends to the driver."""
        assert self.producer is None, "tasks stage no transactions"
        columns = self.sizes, self.records, self.max_timestamps, self.min_timestamps
        arrays = [array.tolist() for array in columns]
        data = [] if self.data is None else [base64.b64encode(self.data).decode()]
        return json.dumps([self.partition, self.key, self.position, *arrays, *data], separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> StagedRun:
        """The run in a text that to_json returned. Texts of earlier versions, in staged lists, have no smallest
        timestamps.
        """
        partition, key, position, *arrays = json.loads(text)
        data = base64.b64decode(arrays.pop()) if isinstance(arrays[-1], str) else None
        sizes, records, max_timestamps, *others = (np.array(array, np.int64) for array in arrays)
        min_timestamps = others[0] if others else np.full_like(max_timestamps, UNKNOWN_SMALLEST)
        return cls(partition, key, position, sizes, records, max_timestamps, min_timestamps, data=data)


def staging_folder(topic_id: str, version: int) -> str:
    """The folder for staged runs. `version` is the newest version of the topic's state when staging begins."""
    return f"staging/{topic_id}/{version}/"


def staged_version(key: str) -> int | None:
    """The version in the key of a staged file; None if the key is not that of a staged file."""
    found = _STAGED.match(key)
    return int(found[1]) if found else None


class StagingWriter:
    """Writes the runs of one attempt. Its `with` block leaves a complete file, or no file if the block raised an
    error."""

    def __init__(
        self,
        storage: Storage,
        folder: str,
        phases: Phases | None = None,
        *,
        durable: bool = False,
        inline: bool = False,
    ) -> None:
        """
        Args:
            phases: receives the time of writing and syncing.
            durable: sync the file, so that it survives a power cut.
            inline: keep the bytes in the runs, and write no file, if the file would be small.
        """
        self._storage = storage
        self._durable = durable
        self._phases = phases or Phases()
        self._key = f"{folder}{secrets.token_hex(8)}.batches"
        self._file: NewFile | None = None
        self._position = 0
        self._inline: list[bytes] | None = [] if inline else None
        self.runs: list[StagedRun] = []

    def stage(self, partition: int, run: EncodedRun) -> None:
        """Write one run after the earlier runs."""
        if not len(run.sizes):
            return
        with self._phases.phase(STAGE):
            if self._inline is not None:
                self._inline.append(run.data.tobytes())
                if self._position + len(run.data) > _MOST_INLINE:
                    self._write_inline(self._inline)
            else:
                self._write(run.data.data)
        columns = run.sizes, run.records, run.max_timestamps, run.min_timestamps
        self.runs.append(StagedRun(partition, self._key, self._position, *columns, run.producer))
        self._position += len(run.data)

    def _write(self, data: Buffer) -> None:
        if self._file is None:
            self._file = self._storage.new_file(self._key, durable=self._durable)
        self._file.write(data)

    def _write_inline(self, kept: list[bytes]) -> None:
        """Begin the file with the runs that were kept."""
        self._inline = None
        for data in kept:
            self._write(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()
        else:
            self.abort()

    def close(self) -> None:
        """Complete the file, and sync it if `durable` is set. No run can be added afterwards."""
        if self._inline is not None:
            self.runs = [replace(run, data=data) for run, data in zip(self.runs, self._inline, strict=True)]
            self._inline = []
        if self._file is not None:
            with self._phases.phase(FSYNC):
                self._file.close()
            self._file = None

    def abort(self) -> None:
        """Discard a file that is not closed yet. A closed file is not deleted."""
        if self._file is not None:
            self._file.abort()
            self._file = None


def check_not_swept(storage: Storage, runs: Iterable[StagedRun], sweep_floor: int) -> None:
    """Check that the staged files that a sweep may delete still exist. Newer files are not checked and cost no read.

    Raises:
        NotFoundError: a file is missing. The error names the version at which it was staged.
    """
    for key in sorted({run.key for run in runs if run.data is None}):
        version = staged_version(key)
        if version is None or version >= sweep_floor:
            continue
        try:
            storage.read(key, 0, 1)
        except NotFoundError as error:
            raise NotFoundError(
                key, f"was staged at version {version}, and a sweep has deleted all files before version {sweep_floor}",
                "Nothing was committed. Run the job again. The job must finish within lakelog.sweep.delay.ms.",
            ) from error  # fmt: skip


def by_partition(runs: Iterable[StagedRun]) -> Mapping[int, list[StagedRun]]:
    """The runs of each partition, in the given order."""
    grouped: dict[int, list[StagedRun]] = {}
    for run in runs:
        grouped.setdefault(run.partition, []).append(run)
    return grouped


def delete_staged(storage: Storage, runs: Iterable[StagedRun]) -> None:
    """Delete the staged files of runs that are committed, or that will not be committed."""
    for key in {run.key for run in runs if run.data is None}:
        storage.delete(key)


def stored(storage: Storage, runs: Iterable[StagedRun]) -> list[StagedRun]:
    """The runs; runs that are kept in memory are written to their files, durably."""
    files: dict[str, list[bytes]] = {}
    written = []
    for run in runs:
        if run.data is not None:
            files.setdefault(run.key, []).append(run.data)
        written.append(replace(run, data=None))
    for key, parts in files.items():
        with storage.new_file(key) as file:
            for part in parts:
                file.write(part)
    return written
