"""Counts the requests of a single append, and of a micro-batch of the sink, on an S3 server.

An append by a new process reads the small active segments of its partitions, and deletes old files. Both happen while
the append makes other requests, so the append does not take longer.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator, Sequence

import pytest

import lakelog
from lakelog.spark.sink.committing import CheckpointFolder, commit_batch
from lakelog.spark.sink.sink_staging import StagedRows
from storage_engine.clock import SystemClock
from storage_engine.config import BrokerConfig
from storage_engine.record.partitioner import partition_keys
from storage_engine.storage.storage_opening import open_storage
from storage_engine.topic.append import new_files_publisher
from storage_engine.topic.append.appending import Encoding, stage_records
from storage_engine.topic.append.staged_run import StagingWriter, staging_folder
from storage_engine.topic.topics import Topics
from tests.servers.faulty_proxy import Exchange, FaultyProxy, longest_chain
from tests.servers.object_server import ObjectServer
from tests.storage_engine.record_tables import Row, to_table
from tests.stores import environment, new_bucket

PARTITIONS, RECORDS = 4, 200
LATENCY_SECONDS = 0.03
QUERY = str(uuid.uuid4())


class Appends:
    """Appends to a topic on an S3 server, through a proxy that counts requests. Each append is that of a new process."""

    def __init__(self, root: str, proxy: FaultyProxy) -> None:
        self.root = root
        self.proxy = proxy
        self.number = 0
        topics = Topics(open_storage(root), BrokerConfig(), SystemClock())
        topics.create("t", PARTITIONS, {"file.delete.delay.ms": "0"})

    def by_api(self) -> Callable[[], object]:
        topic = lakelog.open(self.root).topic("t")
        return lambda: topic.append([{"key": b"k%d" % key, "value": b"v"} for key in range(RECORDS)])

    def by_sink(self) -> Callable[[], object]:
        topics = Topics(open_storage(self.root), BrokerConfig(), SystemClock())
        state = topics.state("t")
        table = to_table([Row(b"k%d" % key, b"v") for key in range(RECORDS)])
        with StagingWriter(topics.storage, staging_folder(state.topic_id, state.version)) as staging:
            chosen = partition_keys(table["key"], PARTITIONS, 0)
            stage_records(staging, table, chosen, Encoding.of(topics.config(state), topics.clock.now_ms()))
        checkpoint = CheckpointFolder(topics.storage, "checkpoints/query")
        topics.storage.replace("checkpoints/query/metadata", json.dumps({"id": QUERY}).encode())
        offsets = f"v1\n{json.dumps({'batchTimestampMs': topics.clock.now_ms()})}\n{self.number}".encode()
        topics.storage.put_new(f"checkpoints/query/offsets/{self.number}", offsets)
        rows = [StagedRows(QUERY, {("t", state.topic_id): tuple(staging.runs)})]
        number = self.number
        return lambda: commit_batch(topics, checkpoint, rows, number, "t")

    def requests(self, way: Callable[[Appends], Callable[[], object]]) -> Sequence[Exchange]:
        """Append once. Returns the requests up to the commit."""
        append = way(self)
        self.number += 1
        self.proxy.forget()
        append()
        exchanges = sorted(self.proxy.forget(), key=lambda each: each.start)
        put = next(n for n, each in enumerate(exchanges) if re.search(r"PUT .*/meta/t/\d{20}\.json", _shown(each)))
        return exchanges[: put + 3]


def _shown(exchange: Exchange) -> str:
    return f"{exchange.method} {exchange.path}"


@pytest.fixture
def appends(s3: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Appends]:
    with FaultyProxy(s3, latency_seconds=LATENCY_SECONDS) as proxy:
        bucket = new_bucket(s3)
        for name, value in environment(proxy.server, bucket).items():
            monkeypatch.setenv(name, value)
        yield Appends(f"s3://{bucket}/root", proxy)


@pytest.mark.parametrize("way", [Appends.by_api, Appends.by_sink], ids=["api", "sink"])
def test_reading_small_segments_makes_no_append_longer(
    appends: Appends, way: Callable[[Appends], Callable[[], object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(new_files_publisher, "_MOST_READ", 0)
    _, alone = appends.requests(way), appends.requests(way)
    monkeypatch.setattr(new_files_publisher, "_MOST_READ", new_files_publisher._MOST_CONTINUED)
    later = [appends.requests(way) for _ in range(3)]
    for requests in later:
        read = [_shown(each) for each in requests if re.search(r"GET .*/data/.*\.log", _shown(each))]
        assert len(read) == PARTITIONS, "the segments of the append before are read"
    # On a busy machine, requests that need not wait for each other may come one after another.
    assert min(map(longest_chain, later)) <= longest_chain(alone), [_shown(each) for each in later[-1]]
    deletions = [_shown(each) for each in later[-1] if re.search(r"POST .*\?delete", _shown(each))]
    assert len(deletions) == 3 * PARTITIONS, "the files that the append before has replaced are deleted"
    state = Topics(open_storage(appends.root), BrokerConfig(), SystemClock()).state("t")
    assert [len(part.segments) for part in state.partitions] == [2] * PARTITIONS
    assert len(state.dropped) == PARTITIONS, "those of the last append"
