"""Collects the files to be mutated: small valid files of every kind that the engine reads, from brokers (tests/golden)
and from Lakelog.

The logs have only a few batches, so that most mutations have an effect and a million mutations take only minutes. The
logs contain every codec, transactions with both kinds of markers, headers and nulls, both timestamp types, batches that
the cleaner rebuilt or emptied, idempotent producers, and all formats of the logs in tests/golden.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from storage_engine.clock import ManualClock
from storage_engine.config import BrokerConfig
from storage_engine.log.producers.producer_snapshot import ProducerEntry, encode_snapshot
from storage_engine.record.compression import Codec
from storage_engine.record.encoding import encode_records
from storage_engine.storage.posix import PosixStorage
from storage_engine.topic.append.appending import Append
from storage_engine.topic.topics import Topics
from tests.storage_engine.record_tables import Row, to_table

GOLDEN = Path(__file__).parents[2] / "golden"
NOW_MS = 1_700_000_000_000
_MOST_BYTES = 6000
_MOST_ALIKE = 3
_ROWS = [
    Row(b"key", b"value", (("name", b"x"), ("other", None))),
    Row(None, b"", timestamp=NOW_MS + 5),
    Row(b"", None, (("", b""), ("größe", b"\xff")), timestamp=NOW_MS - 1000),
    Row(b"long", b"ab" * 400),
]
_KINDS_BY_NAME = {
    ".index": "index",
    ".timeindex": "timeindex",
    ".txnindex": "txnindex",
    ".snapshot": "snapshot",
    "leader-epoch-checkpoint": "epochs",
    "partition.metadata": "partition.metadata",
    "meta.properties": "meta.properties",
    "-offset-checkpoint": "checkpoint",
}


class Sample(NamedTuple):
    """kind: which reader it is for. name: where it came from."""

    kind: str
    name: str
    data: bytes


def corpus() -> list[Sample]:
    """Every sample, in the same order each time."""
    samples = [*_of_brokers(), *_of_our_own()]
    return [*samples, *(sample._replace(kind="folder log") for sample in samples if sample.kind == "log")]


def batches_of(log: bytes) -> list[tuple[int, int]]:
    """Where the batches of a log, of whatever format, begin and end; the last may be cut off."""
    found = []
    start = 0
    while start + 17 <= len(log):
        length = int.from_bytes(log[start + 8 : start + 12], "big", signed=True)
        end = min(start + 12 + length, len(log)) if length > 0 else len(log)
        found.append((start, end))
        start = end
    return found


def _of_brokers() -> Iterator[Sample]:
    seen: Counter[tuple[object, ...]] = Counter()
    for path in sorted(GOLDEN.glob("*/data/**/*")):
        if not path.is_file():
            continue
        name, data = str(path.relative_to(GOLDEN)), path.read_bytes()
        if path.suffix == ".log":
            for start, end in batches_of(data):
                batch = data[start:end]
                magic, codec = batch[16], batch[22] & 7
                like = path.parts[len(GOLDEN.parts)], magic, *(batch[21:23] if magic == 2 else batch[17:18]), codec
                seen[like] += 1
                if seen[like] <= _MOST_ALIKE and len(batch) <= _MOST_BYTES:
                    yield Sample("log", f"{name} at {start}", batch)
            if len(data) <= _MOST_BYTES:
                seen["whole", path.parent.name] += 1
                if data and seen["whole", path.parent.name] <= _MOST_ALIKE:
                    yield Sample("log", name, data)
        for ending, kind in _KINDS_BY_NAME.items():
            if path.name.endswith(ending):
                seen[kind, path.parts[len(GOLDEN.parts)]] += 1
                if seen[kind, path.parts[len(GOLDEN.parts)]] <= _MOST_ALIKE:
                    yield Sample(kind, name, data)


def _of_our_own() -> Iterator[Sample]:
    for codec in Codec:
        plain = encode_records(to_table(_ROWS), 2**20, codec).data.tobytes()
        yield Sample("log", f"ours, {codec.name}", plain)
        stamped = encode_records(to_table(_ROWS), 60, codec, append_time=NOW_MS).data.tobytes()
        yield Sample("log", f"ours, one by one, {codec.name}", stamped)
    entries = [ProducerEntry(number << 30, 3, number, 7, 0, NOW_MS, -1, -1 - number % 2) for number in range(20)]
    yield Sample("snapshot", "ours", encode_snapshot(entries))
    with tempfile.TemporaryDirectory() as folder:
        storage = PosixStorage(folder)
        topics = Topics(storage, BrokerConfig(), ManualClock(NOW_MS))
        topics.create("t", 2, {"segment.bytes": "1048576"})
        with Append(storage, topics.chain("t"), topics.config(topics.state("t")), topics.clock) as append:
            append.stage(to_table(_ROWS))
            append.commit()
        newest = max(Path(folder, "meta", "t").glob("*.json"))
        yield Sample("state", "ours", newest.read_bytes())
