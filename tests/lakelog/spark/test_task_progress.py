"""The progress of Spark's work: the reports of jobs to a display, and the reports of a stream about its
backlog."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql.streaming.listener import SourceProgress

from jobs.export import export
from jobs.ingest import ingest
from jobs.maintenance import maintenance
from lakelog.spark.task_progress import records_behind
from pipeline.job import JobContext
from pipeline.settings import load_settings
from storage_engine.clock import SystemClock
from storage_engine.progress import Meter
from storage_engine.topic.readers.consumer_files import read_consumers
from tests.stores import root_at

SETTINGS = """
root: {root}
topics:
  t: {{partitions: 2, cleanup.policy: compact, segment.bytes: 20000}}
ingest:
  topic: t
  source: {{format: json, path: {folder}/source, schema: "k STRING, v STRING", options: {{maxFilesPerTrigger: 1}}}}
  key: k
  value: v
export: {{topic: t, spark.records: 0}}
"""


class KeptMeters:
    """A display that nobody looks at before the end."""

    def __init__(self) -> None:
        self.meters: dict[str, Meter] = {}

    @contextmanager
    def work(self, name: str, *, plain_lines: bool = True) -> Iterator[Meter]:
        self.meters[name] = Meter(name, SystemClock())
        yield self.meters[name]


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_jobs_tell_how_much_they_do_and_have_done(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for number in range(2):
        rows = [{"k": str(key), "v": "x" * 100} for key in range(500)] + [{"v": "no key"}]
        (source / f"{number}.json").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    conf = tmp_path / "settings.yaml"
    conf.write_text(SETTINGS.format(root=root_at(tmp_path / "root"), folder=tmp_path))
    display = KeptMeters()
    context = JobContext.of("test", load_settings(conf), display=display)
    context.arguments.take_over = context.arguments.accept_new_checkpoint = False

    ingest(context)
    read = display.meters["ingest t"]
    state = context.topics.state("t")
    assert (read.records, read.size) == (1000, sum(part.size for part in state.partitions))
    assert "1,000 records" in read.line
    assert read.line.endswith("batch 1, 2 dead letters")

    maintained = maintenance(context)
    compacted = display.meters["test"]
    assert compacted.records == sum(row["records before"] for row in maintained.rows)  # type: ignore[misc]
    assert compacted.size == compacted.expected_size
    assert compacted.share == 1.0

    exported = export(context)
    written = display.meters["export t"]
    assert written.records == exported.summary["records"]
    state = context.topics.state("t")
    assert written.size == written.expected_size == sum(part.size for part in state.partitions)
    (consumer,) = read_consumers(context.storage, state).known
    assert (consumer.name, consumer.kind) == ("export tables/t", "delta export")
    assert consumer.positions == {number: part.high_watermark for number, part in enumerate(state.partitions)}


def source(end: object, latest: object) -> SourceProgress:
    """What Spark reports of a source after a micro-batch."""
    report = {"description": "", "startOffset": None, "endOffset": end, "latestOffset": latest, "numInputRows": 1,
              "inputRowsPerSecond": 1.0, "processedRowsPerSecond": 1.0}  # fmt: skip
    return SourceProgress.fromJson(report)


KAFKA = source({"a": {"0": 10, "1": 20}, "b": {"0": 5}}, {"a": {"0": 15, "1": 20}, "b": {"0": 7}})
KAFKA_CAUGHT_UP = source({"a": {"0": 10}}, {"a": {"0": 10}})
LAKELOG = source(
    {"a": {"topic_id": "x", "offsets": {"0": 3}, "begun": {"0": 1}}},
    {"a": {"topic_id": "x", "offsets": {"0": 5}}, "b": {"topic_id": "y", "offsets": {"0": 6}}},
)
FILES = source({"logOffset": 3}, None)
RATE = source(12, None)
TEXT = source("as of yesterday", "as of today")
SHARDS = source({"shard": {"position": "495"}}, {"shard": {"position": "501"}})


@pytest.mark.parametrize(
    ("sources", "behind"),
    [([KAFKA], 7), ([KAFKA_CAUGHT_UP], 0), ([KAFKA, KAFKA], 14), ([LAKELOG], 8), ([FILES], None), ([RATE], None), ([TEXT], None),
     ([SHARDS], None), ([KAFKA, FILES], None), ([], None)],
)  # fmt: skip
def test_the_backlog_is_known_where_offsets_count_records(sources: list[SourceProgress], behind: int | None) -> None:
    assert records_behind(sources) == behind
