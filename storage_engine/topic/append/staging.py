"""Writes and reads staged runs: encoded batches that are not committed yet.

    staging/<topic id>/<version>/<attempt>.batches    record batches of several partitions, runs behind one another

A task writes one file, named after its attempt, closes it permanently, and reports the position of each run. Nothing
lists this folder to find work: a file that no report names does not count, so a failed, retried or speculative task
leaves only unused bytes. Offsets in a run count from 0. The version is the newest of the topic's state when staging
began. It determines when the sweep may delete the file, if the file still exists then (topic.clean.sweeping).

The staged runs of an append are of no use after a power cut, which ends the append, too. So staged files are not
synced, and the publisher checks each batch. A replay uses staged files only if a list names them
(topic.append.staged_list).
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np

from storage_engine.errors import NotFoundError
from storage_engine.phases import FSYNC, Phases
from storage_engine.record.batch import Int64Array
from storage_engine.record.encoding import BatchProducer, EncodedRun
from storage_engine.storage import NewFile, Storage

STAGE = "stage"
"""The phase of writing staged bytes."""

_STAGED = re.compile(r"staging/[^/]+/([0-9]+)/")


@dataclass(frozen=True)
class StagedRun:
    """Whole batches of one partition in one staged file.

    position: of the first batch in the file. sizes, records, max_timestamps: int64, shape (batches,). producer: None
    outside of transactions.
    """

    partition: int
    key: str
    position: int
    sizes: Int64Array
    records: Int64Array
    max_timestamps: Int64Array
    producer: BatchProducer | None = None

    @property
    def size(self) -> int:
        return int(self.sizes.sum())

    @property
    def record_count(self) -> int:
        return int(self.records.sum())

    def to_json(self) -> str:
        """As it travels from a task to the driver."""
        assert self.producer is None, "tasks stage no transactions"
        arrays = [array.tolist() for array in (self.sizes, self.records, self.max_timestamps)]
        return json.dumps([self.partition, self.key, self.position, *arrays], separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> StagedRun:
        partition, key, position, *arrays = json.loads(text)
        sizes, records, max_timestamps = (np.array(array, np.int64) for array in arrays)
        return cls(partition, key, position, sizes, records, max_timestamps)


def staging_folder(topic_id: str, version: int) -> str:
    """Where the runs of a micro-batch or append are staged that begins at this version of the topic's state."""
    return f"staging/{topic_id}/{version}/"


def staged_version(key: str) -> int | None:
    """The version at which a file under staging/ was staged; None where it is not one of ours."""
    found = _STAGED.match(key)
    return int(found[1]) if found else None


class StagingWriter:
    """Writes one attempt's runs. As a context it leaves a complete file, or none where the block raised."""

    def __init__(self, storage: Storage, folder: str, phases: Phases | None = None, *, durable: bool = False) -> None:
        """
        Args:
            phases: is told how long writing and syncing take.
            durable: the file survives a power cut.
        """
        self._storage = storage
        self._durable = durable
        self._phases = phases or Phases()
        self._key = f"{folder}{secrets.token_hex(8)}.batches"
        self._file: NewFile | None = None
        self._position = 0
        self.runs: list[StagedRun] = []

    def stage(self, partition: int, run: EncodedRun) -> None:
        """Write one run behind the others."""
        if not len(run.sizes):
            return
        with self._phases.phase(STAGE):
            if self._file is None:
                self._file = self._storage.new_file(self._key, durable=self._durable)
            self._file.write(run.data.data)
        columns = run.sizes, run.records, run.max_timestamps
        self.runs.append(StagedRun(partition, self._key, self._position, *columns, run.producer))
        self._position += len(run.data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()
        else:
            self.abort()

    def close(self) -> None:
        """Make the file complete, and durable if it is to be. Nothing can be staged behind it."""
        if self._file is not None:
            with self._phases.phase(FSYNC):
                self._file.close()
            self._file = None

    def abort(self) -> None:
        """Give up a file that is not closed yet; a closed one stays."""
        if self._file is not None:
            self._file.abort()
            self._file = None


def check_not_swept(storage: Storage, runs: Iterable[StagedRun], sweep_floor: int) -> None:
    """Check that runs which a sweep may delete are still there. Others cost nothing.

    Raises:
        NotFoundError: says how old it was.
    """
    for key in sorted({run.key for run in runs}):
        version = staged_version(key)
        if version is None or version >= sweep_floor:
            continue
        try:
            storage.read(key, 0, 1)
        except NotFoundError as error:
            raise NotFoundError(
                key, f"was staged at version {version}, and what is older than version {sweep_floor} has been swept",
                "Nothing was committed, do it again. lakelog.sweep.delay.ms says how long it may take.",
            ) from error  # fmt: skip


def by_partition(runs: Iterable[StagedRun]) -> Mapping[int, list[StagedRun]]:
    """Runs of each partition, in the order given."""
    grouped: dict[int, list[StagedRun]] = {}
    for run in runs:
        grouped.setdefault(run.partition, []).append(run)
    return grouped


def delete_staged(storage: Storage, runs: Iterable[StagedRun]) -> None:
    """Remove the files of runs that are committed, or that their maker has given up."""
    for key in {run.key for run in runs}:
        storage.delete(key)
