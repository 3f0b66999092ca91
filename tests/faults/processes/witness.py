"""Reads a topic again and again while the topic's writers are killed, and ends at the first violation.

The witness reads every version of the state that it sees. In each version, the witness reads each partition from its
last position up to the high watermark. It checks that

- the offsets are consecutive: no record is repeated or missing, and no record is at or above the high watermark;
- the records of all partitions together are exactly the records of the micro-batches that this version has committed,
  so no partition has only a part of a micro-batch;
- the records of one source file are in the order of the file;
- a high watermark never decreases, and every record is still the same when it is read again at the end.

    python -m tests.faults.processes.witness ROOT TOPIC ROWS FILES PAUSE

ROWS is the number of rows in a file, FILES the number of files in a step, and PAUSE the time between two looks in
seconds.

After SIGTERM, the witness reads once more. Then the witness prints one JSON line with the number of versions and the
number of records that it has read.
"""

from __future__ import annotations

import json
import signal
import sys
import threading

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_engine.clock import SystemClock
from storage_engine.config import BrokerConfig
from storage_engine.storage.storage_opening import open_storage
from storage_engine.topic.chain.topic_state import TopicState
from storage_engine.topic.readers.reader import PartitionReader
from storage_engine.topic.topics import Topics
from tests.faults.processes.source import ROWS_BETWEEN, files_up_to, ids_of_files

Ids = npt.NDArray[np.int64]


class Witness:
    """Checks each version, and stores what it has seen: for each partition, the ids of all records in the order of
    their offsets."""

    def __init__(self, root: str, topic: str, rows: int, files: int) -> None:
        self._topics = Topics(open_storage(root), BrokerConfig(), SystemClock())
        self._topic = topic
        self._rows = rows
        self._files = files
        self._chain = self._topics.chain(topic)
        self._version = -1
        self._ids: dict[int, Ids] = {}
        self.versions = 0

    @property
    def records(self) -> int:
        return sum(map(len, self._ids.values()))

    def look(self) -> bool:
        """Check the newest version. False if it is the version that was checked last."""
        state = self._chain.newest_or_none()
        if state is None or state.version == self._version:
            return False
        self._version = state.version
        self.versions += 1
        for number in range(len(state.partitions)):
            seen = self._ids.get(number, np.empty(0, np.int64))
            self._ids[number] = np.concatenate([seen, self._read(state, number, len(seen))])
        self._check_batches(state)
        return True

    def look_again(self) -> None:
        """Everything from the beginning, by a fresh reader."""
        state = self._topics.state(self._topic)
        for number, seen in self._ids.items():
            assert np.array_equal(self._read(state, number, 0), seen), f"partition {number} has changed"

    def _read(self, state: TopicState, number: int, first_offset: int) -> Ids:
        """The ids of a partition's records from an offset on."""
        end = state.partitions[number].high_watermark
        assert first_offset <= end, f"version {state.version}: the high watermark of partition {number} went back"
        reader = PartitionReader(self._topics.storage, self._chain, number, state)
        found = [np.empty(0, np.int64)]
        following = first_offset
        for batch in reader.read(first_offset):
            offsets = batch["offset"].to_numpy()
            expected = np.arange(following, following + len(offsets))
            assert np.array_equal(offsets, expected), (
                f"version {state.version}, partition {number}: {offsets} at {following}"
            )
            found.append(ids_of(batch))
            following += len(offsets)
        assert following == end, f"version {state.version}, partition {number}: {following} of {end} records"
        return np.concatenate(found)

    def _check_batches(self, state: TopicState) -> None:
        """Whether just the committed micro-batches are there, and their files in order."""
        committed = [batch.batch_id for batch in state.queries.values()]
        assert len(committed) <= 1, "one query feeds the topic"
        files = files_up_to(self._topics.storage, committed[0], self._files) if committed else 0
        every = np.concatenate([*self._ids.values(), np.empty(0, np.int64)])
        wanted = ids_of_files(files, self._rows)
        assert np.array_equal(np.sort(every), wanted), (
            f"version {state.version} commits {files} files: {len(wanted)} records, and has {len(every)}"
        )
        for number, ids in self._ids.items():
            by_file = ids[np.argsort(ids // ROWS_BETWEEN, kind="stable")]
            assert (np.diff(by_file) > 0).all(), (
                f"version {state.version}, partition {number}: a file's rows out of order"
            )


def ids_of(batch: pa.RecordBatch) -> Ids:
    """The ids of records: the digits that their values begin with."""
    digits = pc.binary_slice(batch["value"].cast(pa.binary()), 0, 12).cast(pa.string())
    ids: Ids = digits.cast(pa.int64()).to_numpy()
    return ids


def main(root: str, topic: str, rows: str, files: str, pause: str) -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    witness = Witness(root, topic, int(rows), int(files))
    while not stop.is_set():
        if not witness.look():
            stop.wait(float(pause))
    witness.look()
    witness.look_again()
    print(json.dumps({"versions": witness.versions, "records": witness.records}))


if __name__ == "__main__":
    main(*sys.argv[1:])
