"""A root in HDFS: a topic goes through its whole life, and has the same records as a topic in a local root."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import lakelog
from storage_engine.clock import ManualClock
from storage_engine.config import BrokerConfig
from storage_engine.errors import NoRootError
from storage_engine.log.filenames import data_folder
from storage_engine.storage.storage_opening import open_storage
from storage_engine.topic.clean.sweeping import sweep_topic
from storage_engine.topic.clean.topic_compaction import compact_topic
from storage_engine.topic.clean.topic_merging import merge_topic
from storage_engine.topic.clean.topic_retention import retain_topic
from storage_engine.topic.kafka.view import settle
from storage_engine.topic.topics import Topics

if TYPE_CHECKING:
    from tests.servers.minicluster import HdfsCluster

pytestmark = pytest.mark.stores

HOME = Path(__file__).parents[2]
DAY_MS = 24 * 3_600_000
BROKER = BrokerConfig()
COMPACTED = {"cleanup.policy": "compact", "segment.bytes": "2048", "compression.type": "uncompressed"}
RETAINED = {"retention.ms": str(DAY_MS), "segment.bytes": "2048", "compression.type": "uncompressed"}


def records(first: int, time: datetime) -> Sequence[Mapping[str, object]]:
    """Ten records that fill more than half a segment, so each append begins a new segment."""
    return [
        {"key": b"k%d" % (number % 4), "value": b"%0120d" % number, "timestamp": time + timedelta(milliseconds=number)}
        for number in range(first, first + 10)
    ]


def rows(topic: lakelog.Topic) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = topic.read().to_arrow().to_pylist()
    return found


def life(uri: str, now: datetime) -> Mapping[str, object]:
    """Everything that readers of a root see during the life of its topics."""
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    root = lakelog.open(uri, create=True)
    compacted = root.create_topic("compacted", 1, COMPACTED)
    retained = root.create_topic("retained", 1, RETAINED)
    seen: dict[str, Any] = {"uri": root.uri == uri, "topics": root.topics()}
    seen["offsets"] = [compacted.append(records(10 * number, begin)) for number in range(4)]
    with root.transaction() as transaction:
        transaction.append("compacted", records(40, begin))
        transaction.append("retained", records(0, begin))
    retained.append(records(10, now))
    seen["appended"] = rows(compacted), rows(retained)
    seen["followed"] = [record.offset for record in compacted.follow("readers", stop_at_end=True)]

    clock = ManualClock(int(now.timestamp() * 1000))
    storage = open_storage(uri)
    topics = Topics(storage, BROKER, clock)
    config = topics.config(topics.chain("compacted").newest())
    compact_topic(storage, topics.chain("compacted"), config, BROKER, clock, force=True)
    seen["compacted"] = rows(lakelog.open(uri).topic("compacted"))
    merge_topic(storage, topics.chain("compacted"), config)
    retain_topic(topics.chain("retained"), BROKER, now_ms=clock.now_ms())
    seen["cleaned"] = rows(lakelog.open(uri).topic("compacted")), rows(lakelog.open(uri).topic("retained"))

    abandoned = f"{data_folder(topics.chain('compacted').newest().topic_id, 0)}{0:020d}.1.0000000a.log"
    storage.put_new(abandoned, b"of a publish that died")
    clock.advance(30 * DAY_MS)
    seen["swept files"] = []
    for name in ("compacted", "retained"):
        topics.alter(name, configs={"segment.ms": str(DAY_MS)})
        swept = sweep_topic(storage, topics.chain(name), BROKER)
        seen["swept files"].append((swept.files, swept.bytes))
    settle(topics)
    root = lakelog.open(uri)
    seen["swept"] = rows(root.topic("compacted")), rows(root.topic("retained"))
    seen["groups"] = [(group.group, group.topic) for group in root.groups()]
    verification = root.verify(deep=True)
    seen["problems"] = verification.problems, verification.unreadable
    root.topic("retained").append(records(20, now), partition=0)
    root.delete_topic("compacted")
    seen["at the end"] = root.topics(), [row["offset"] for row in rows(root.topic("retained"))]
    return seen


def test_topics_in_hdfs_have_the_records_of_topics_in_a_directory(hdfs_cluster: HdfsCluster, tmp_path: Path) -> None:
    now = datetime.now(UTC)
    in_hdfs = life(f"{hdfs_cluster.uri}life", now)
    assert in_hdfs == life(str(tmp_path), now)
    assert [in_hdfs[name] for name in ("uri", "swept files", "problems")] == [True, [(1, 22), (0, 0)], ([], ())]


def test_missing_root_is_an_error(hdfs_cluster: HdfsCluster) -> None:
    with pytest.raises(NoRootError):
        lakelog.open(f"{hdfs_cluster.uri}no-root")


_APPENDER = """
import sys
import lakelog

topic = lakelog.open(sys.argv[1]).topic("orders")
for number in range(5):
    topic.append([{"value": f"{sys.argv[2]} {number}".encode()}])
"""


def test_appends_of_several_processes_are_all_kept_in_order(hdfs_cluster: HdfsCluster) -> None:
    uri = f"{hdfs_cluster.uri}appends"
    topic = lakelog.open(uri, create=True).create_topic("orders")
    environment = os.environ | {"LAKELOG_ROOT": uri}
    appenders = [
        subprocess.Popen([sys.executable, "-c", _APPENDER, uri, str(writer)], cwd=HOME, env=environment)
        for writer in range(3)
    ]
    assert [each.wait() for each in appenders] == [0, 0, 0]
    found = [row["value"].decode().split() for row in rows(topic)]
    assert [[number for writer, number in found if writer == str(each)] for each in range(3)] == [
        [str(number) for number in range(5)]
    ] * 3
    assert lakelog.open(uri).verify(deep=True).problems == []
