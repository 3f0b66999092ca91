"""The cleaning jobs: their changes of a root, their output and their exit status."""

from __future__ import annotations

import json
import struct
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from jobs.compaction import compaction
from jobs.maintenance import add_maintenance_options, maintenance
from jobs.retention import retention
from pipeline.clean import runners
from pipeline.clean.cleaning_job import CleaningJob, add_cleaning_options
from pipeline.job import run_job
from storage_engine.clock import ManualClock, SystemClock
from storage_engine.config import BrokerConfig
from storage_engine.log.filenames import data_key, new_segment_name
from storage_engine.progress import Meter
from storage_engine.record.record_columns import TO_APPEND
from storage_engine.topic.append.appending import append_records
from storage_engine.topic.append.staged_run import staging_folder
from storage_engine.topic.broker_settings import put_broker_settings
from storage_engine.topic.chain.documents import encode_document
from storage_engine.topic.chain.history_reader import HistoryReader
from storage_engine.topic.chain.version_files import version_key
from storage_engine.topic.kafka.view import settle
from storage_engine.topic.readers.reader import PartitionReader
from storage_engine.topic.topics import Topics
from tests.stores import file_in, storage_at

DAY_MS = 24 * 3_600_000
JOBS = {
    "retention": (retention, add_cleaning_options),
    "compaction": (compaction, add_cleaning_options),
    "maintenance": (maintenance, add_maintenance_options),
}


@pytest.fixture
def topics(tmp_path: Path) -> Topics:
    return Topics(storage_at(tmp_path), BrokerConfig(), SystemClock())


def append(topics: Topics, topic: str, *values: str, partition: int = 0, age_ms: int = 0) -> None:
    """A value `a1` has the key `a`."""
    now_ms = topics.clock.now_ms() - age_ms
    records = pa.RecordBatch.from_pylist(
        [{"key": value[:1].encode(), "value": value.encode(), "headers": [], "timestamp": now_ms} for value in values],
        schema=TO_APPEND,
    )
    config = topics.config(topics.state(topic))
    append_records(topics.storage, topics.chain(topic), config, ManualClock(now_ms), records, partition)


def values(topics: Topics, topic: str, partition: int = 0) -> list[str]:
    reader = PartitionReader(topics.storage, topics.chain(topic), partition)
    return [
        value.decode()
        for records in reader.read(reader.partition.log_start_offset)
        for value in records["value"].to_pylist()
    ]


def shown_logs(topics: Topics, partition: str) -> list[str]:
    """The names of the .log files of a partition in the view; none if the storage has no view."""
    view = topics.storage.view
    names = [] if view is None else [entry.name for entry in view.entries(f"log/{partition}")]
    return sorted(name for name in names if name.endswith(".log"))


def damage(topics: Topics, topic: str, partition: int, segment: int) -> str:
    """Change the last byte of the .log of a segment. Returns the name of the file."""
    state = topics.state(topic)
    key = data_key(state.topic_id, partition, state.partitions[partition].segments[segment].name)
    file = file_in(topics.storage, key)
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    return key.rpartition("/")[2]


def run(topics: Topics, job: str, *options: str) -> int:
    argv = ["--root", topics.storage.uri, *options]
    main, add_options = JOBS[job]
    return run_job(job, "", main, add_options, argv, environ={})


def test_retention_reports_what_went_by_which_rule(topics: Topics, capsys: pytest.CaptureFixture[str]) -> None:
    topics.create("old", 2, {"retention.ms": str(DAY_MS)})
    append(topics, "old", "a1", "b1", age_ms=2 * DAY_MS)
    append(topics, "old", "c1")
    topics.create("young", 1, {})
    append(topics, "young", "a1")

    assert run(topics, "retention", "--json") == 0

    report = json.loads(capsys.readouterr().out)
    assert (report["topics"], report["segments dropped"]) == (2, 1)
    (row,) = report["rows"]
    assert (row["topic"], row["partition"], row["done"]) == ("old", 0, "retention by time (1)")
    assert values(topics, "old") == ["c1"]
    assert values(topics, "young") == ["a1"]
    assert topics.storage.view is None or shown_logs(topics, "old-0") == ["00000000000000000002.log"]


@pytest.mark.parametrize("job", ["retention", "maintenance"])
def test_what_the_root_keeps_of_the_broker_holds_in_a_job_that_names_no_file(
    topics: Topics, job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    topics.create("old", 1, {})
    for value, age_ms in (("a1", 2 * DAY_MS), ("a2", 2 * DAY_MS), ("a3", 0)):
        append(topics, "old", value, age_ms=age_ms)
    put_broker_settings(topics.storage, {"log.roll.ms": "1", "log.retention.hours": "24"})
    assert run(topics, job, "--topic", "old", "--set", "broker.log.retention.hours=72") == 0
    assert values(topics, "old") == ["a1", "a2", "a3"]
    assert "The root has log.retention.hours=24" in capsys.readouterr().err
    assert run(topics, job, "--topic", "old") == 0
    assert values(topics, "old") == ["a3"]
    assert capsys.readouterr().err == ""


def test_a_future_timestamp_that_blocks_retention_is_a_warning(
    topics: Topics, capsys: pytest.CaptureFixture[str]
) -> None:
    topics.create("t", 1, {"retention.ms": str(DAY_MS)})
    append(topics, "t", "a1", age_ms=-DAY_MS)
    append(topics, "t", "b1", age_ms=2 * DAY_MS)
    assert run(topics, "retention") == 0
    printed = capsys.readouterr()
    assert "topic t, partition 0: segment 0 has a timestamp" in printed.err
    assert "segments dropped 0" in printed.out


def test_only_the_topics_asked_for_are_cleaned(topics: Topics) -> None:
    for name in ("one", "two", "three"):
        topics.create(name, 1, {"retention.ms": str(DAY_MS)})
        append(topics, name, "a1", age_ms=2 * DAY_MS)
    assert run(topics, "retention", "--topic", "one", "--set", "retention.topics=two") == 0
    assert run(topics, "retention", "--set", "retention.topics=two") == 0
    assert [values(topics, name) for name in ("one", "two", "three")] == [[], [], ["a1"]]


def test_an_unknown_topic_ends_a_job_before_it_does_anything(
    topics: Topics, capsys: pytest.CaptureFixture[str]
) -> None:
    topics.create("t", 1, {"retention.ms": str(DAY_MS)})
    append(topics, "t", "a1", age_ms=2 * DAY_MS)
    assert run(topics, "retention", "--topic", "t", "--topic", "u") == 1
    assert "topic u: not found" in capsys.readouterr().err
    assert values(topics, "t") == ["a1"]


def test_a_state_that_is_damaged_stops_no_other_topic(topics: Topics, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("broken", "whole"):
        topics.create(name, 1, {"retention.ms": str(DAY_MS)})
        append(topics, name, "a1", age_ms=2 * DAY_MS)
    newest = version_key("broken", topics.state("broken").version)
    file = file_in(topics.storage, newest)
    file.write_bytes(file.read_bytes().replace(b'"partitions"', b'"portions"'))
    assert run(topics, "maintenance") == 4
    assert newest in capsys.readouterr().err
    assert values(topics, "whole") == []


def test_nothing_to_compact_starts_no_spark(topics: Topics, capsys: pytest.CaptureFixture[str]) -> None:
    topics.create("t", 1, {"cleanup.policy": "compact"})
    append(topics, "t", "a1", "a2")
    assert run(topics, "compaction", "--set", "broker.num.partitions=1") == 0
    assert capsys.readouterr().out.startswith("compaction: topics 1, partitions compacted 0,")


def test_files_of_deleted_topics_go_with_maintenance(topics: Topics) -> None:
    topics.create("t", 1, {"file.delete.delay.ms": "0"})
    append(topics, "t", "a1")
    topics.delete("t")
    assert run(topics, "maintenance") == 0
    assert [file.key for file in topics.storage.list("data/")] == []


def test_little_is_merged_without_spark(topics: Topics) -> None:
    topics.create("t", 1, {})
    for value in ("a1", "b1", "c1"):
        append(topics, "t", value)

    merging = CleaningJob(topics, ["t"], no_spark)
    merging.compact_and_merge()
    assert (merging.report.summary["segments merged"], merging.report.changed_topics) == (2, ["t"])
    assert values(topics, "t") == ["a1", "b1", "c1"]
    assert len(topics.state("t").partitions[0].segments) == 2


def no_spark() -> SparkSession:
    raise AssertionError("Spark was started")


def with_two_dirty_topics(topics: Topics) -> None:
    """`dirty` has two compactable segments, `cleaner` one that was compacted and one that is dirty."""
    for name in ("cleaner", "dirty"):
        topics.create(name, 1, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"})
        append(topics, name, "a1", "b1", "c1")
        append(topics, name, "d1")
    CleaningJob(topics, ["cleaner"], no_spark).compact()
    for name in ("cleaner", "dirty"):
        append(topics, name, "a2")


def test_the_budget_goes_to_the_dirtiest_partition_and_the_report_names_what_is_left(
    topics: Topics, capsys: pytest.CaptureFixture[str]
) -> None:
    with_two_dirty_topics(topics)
    dirty = CleaningJob(topics, ["dirty"], no_spark)
    enough = sum(each.size for each in topics.state("dirty").partitions[0].segments[:-1]) * 2

    assert run(topics, "maintenance", "--json", "--max-bytes", str(enough)) == 0

    report = json.loads(capsys.readouterr().out)
    assert (report["partitions compacted"], report["left"]) == (1, 1)
    assert report["bytes left"] > 0
    assert [(row["topic"], row["done"].split(",")[0]) for row in report["rows"]] == [
        ("dirty", "compaction up to offset 4"),
        ("cleaner", "not begun because of --max-bytes: compaction by dirty ratio"),
    ]
    dirty.compact()
    assert dirty.report.rows == []

    assert run(topics, "maintenance", "--json", "--max-bytes", "1") == 0
    report = json.loads(capsys.readouterr().out)
    assert "topic cleaner, partition 0: compaction" in report["warnings"][0]
    assert "no run can begin this work" in report["warnings"][0]

    assert run(topics, "maintenance", "--json", "--max-minutes", "5") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["partitions compacted"], report["left"], report["warnings"]) == (1, 0, [])


class Interrupting(Meter):
    """Ends the run, as Ctrl-C would, when the first piece is done."""

    def note(self, text: str) -> None:
        if text.startswith("1 of"):
            raise KeyboardInterrupt(text)


def test_what_was_done_before_a_run_ended_counts_and_the_next_run_goes_on(topics: Topics) -> None:
    with_two_dirty_topics(topics)
    names = ["cleaner", "dirty"]
    interrupted = CleaningJob(topics, names, no_spark, Interrupting("compaction", topics.clock))
    with pytest.raises(KeyboardInterrupt, match="1 of 2"):
        interrupted.compact()
    assert [row["topic"] for row in interrupted.report.rows] == ["dirty"]
    after = CleaningJob(topics, names, no_spark)
    after.compact()
    assert [row["topic"] for row in after.report.rows] == ["cleaner"]


def test_runs_at_the_same_time_do_each_piece_once_and_break_nothing(topics: Topics) -> None:
    names = [f"t{number}" for number in range(8)]
    for name in names:
        topics.create(name, 1, {"cleanup.policy": "compact"} if name < "t4" else {})
        for value in ("a1", "b1", "a2", "c1"):
            append(topics, name, value)
    runs = [CleaningJob(topics, names, no_spark) for _ in range(3)]
    with ThreadPoolExecutor(4) as threads:
        working = [threads.submit(each.compact_and_merge) for each in runs]
        for name in names:
            append(topics, name, "d1")
        for each in working:
            each.result()
    reports = [each.report for each in runs]
    assert [report.failures for report in reports] == [[], [], []]
    done = Counter((row["topic"], row["segments before"]) for report in reports for row in report.rows)
    assert {topic for topic, _ in done} == set(names)
    assert max(done[name, 3] for name in names) == 1
    for name in names:
        expected = ["b1", "a2", "c1", "d1"] if name < "t4" else ["a1", "b1", "a2", "c1", "d1"]
        assert [value for value in values(topics, name) if value != "a1" or name >= "t4"] == expected


def versions(topics: Topics, *names: str) -> list[int]:
    return [topics.state(name).version for name in names]


def with_work_of_each_kind(topics: Topics) -> None:
    topics.create("old", 1, {"retention.ms": str(DAY_MS)})
    append(topics, "old", "a1", age_ms=2 * DAY_MS)
    append(topics, "old", "b1")
    topics.create("compacted", 1, {"cleanup.policy": "compact"})
    append(topics, "compacted", "a1", "a2")
    append(topics, "compacted", "b1")
    topics.create("small", 1, {})
    for value in ("a1", "b1", "c1"):
        append(topics, "small", value)


def test_a_dry_run_tells_what_would_be_done_and_changes_nothing(
    topics: Topics, capsys: pytest.CaptureFixture[str]
) -> None:
    with_work_of_each_kind(topics)
    before = versions(topics, "old", "compacted", "small")
    kinds = {
        "retention": {("old", "delete")},
        "compaction": {("compacted", "clean")},
        "maintenance": {("old", "delete"), ("compacted", "clean"), ("small", "merge")},
    }
    for job, expected in kinds.items():
        assert run(topics, job, "--dry-run", "--json") == 0
        plan = json.loads(capsys.readouterr().out)["plan"]
        found = {
            (topic["topic"], step["action"])
            for topic in plan["topics"]
            for each in topic["partitions"]
            for step in each["steps"]
        }
        assert found == expected
        assert run(topics, job, "--dry-run") == 0
        assert "Nothing was changed." in capsys.readouterr().out
    assert versions(topics, "old", "compacted", "small") == before


@pytest.mark.posix("the view proves that versions are lost")
def test_a_plan_leaves_out_a_topic_that_has_lost_versions(topics: Topics, capsys: pytest.CaptureFixture[str]) -> None:
    with_work_of_each_kind(topics)
    settle(topics)
    topics.storage.delete(version_key("old", topics.state("old").version))

    for named in ([], ["--topic", "old", "--topic", "small"]):
        assert run(topics, "maintenance", *named, "--dry-run", "--json") == 4
        report = json.loads(capsys.readouterr().out)
        assert [failure.partition(", because")[0] for failure in report["failures"]] == [
            "meta/old at position 0: expected a version in which partition 0 ends at offset 2 or later"
        ]
        assert [each["topic"] for each in report["plan"]["topics"]] == (["small"] if named else ["compacted", "small"])


def test_a_time_can_be_given_for_the_decisions(topics: Topics, capsys: pytest.CaptureFixture[str]) -> None:
    topics.create("t", 1, {"retention.ms": str(DAY_MS)})
    append(topics, "t", "a1")
    later = str(topics.clock.now_ms() + 2 * DAY_MS)
    assert run(topics, "retention") == 0
    assert values(topics, "t") == ["a1"]
    assert run(topics, "retention", "--now", later, "--dry-run", "--json") == 0
    (planned,) = json.loads(capsys.readouterr().out.splitlines()[-1])["plan"]["topics"]
    assert [step["rule"] for step in planned["partitions"][0]["steps"]] == ["time"]
    assert run(topics, "retention", "--now", later) == 0
    assert values(topics, "t") == []


def test_a_saved_plan_is_applied_as_it_is(topics: Topics, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_work_of_each_kind(topics)
    file = tmp_path / "plan.json"
    assert run(topics, "maintenance", "--save", str(file)) == 0
    assert values(topics, "old") == ["a1", "b1"]
    append(topics, "old", "c1", age_ms=2 * DAY_MS)
    topics.create("later", 1, {"retention.ms": "1"})
    append(topics, "later", "a1", age_ms=DAY_MS)

    assert run(topics, "compaction", "--apply", str(file)) == 2
    assert "maintenance" in capsys.readouterr().err
    assert run(topics, "maintenance", "--apply", str(file), "--json") == 0

    report = json.loads(capsys.readouterr().out)
    assert [report[key] for key in ("segments dropped", "partitions compacted", "segments merged")] == [1, 1, 2]
    assert [values(topics, name) for name in ("old", "compacted", "small", "later")] == [
        ["b1", "c1"], ["a2", "b1"], ["a1", "b1", "c1"], ["a1"],
    ]  # fmt: skip


def test_a_plan_is_refused_whole_where_the_log_has_moved_on(
    topics: Topics, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_work_of_each_kind(topics)
    file = tmp_path / "plan.json"
    assert run(topics, "maintenance", "--save", str(file)) == 0
    CleaningJob(topics, ["compacted"], no_spark).compact()
    before = versions(topics, "old", "compacted", "small")
    assert run(topics, "maintenance", "--apply", str(file)) == 1
    assert "topic compacted, partition 0" in capsys.readouterr().err
    assert versions(topics, "old", "compacted", "small") == before


def test_options_that_say_two_things_are_refused(topics: Topics, tmp_path: Path) -> None:
    for other in (["--topic", "t"], ["--dry-run"], ["--now", "1"], ["--save", "f"]):
        assert run(topics, "retention", "--apply", str(tmp_path / "plan"), *other) == 2
    assert run(topics, "retention", "--apply", str(tmp_path / "plan")) == 1
    assert run(topics, "retention", "--now", "yesterday") == 2


def test_thousands_of_small_segments_become_segments_of_segment_bytes(
    topics: Topics, capsys: pytest.CaptureFixture[str]
) -> None:
    count, segment_bytes = 3000, 1024**2
    topics.create("t", 1, {"segment.bytes": str(segment_bytes)})
    append(topics, "t", *[f"k{number:040}" for number in range(60)])
    state = topics.state("t")
    (first,) = state.partitions[0].segments
    batch = topics.storage.read(data_key(state.topic_id, 0, first.name))
    segments = [first]
    for number in range(1, count):
        base = 60 * number
        name = new_segment_name(base, state.version)
        # The base offset stands first in a batch, and its CRC does not cover it.
        file_in(topics.storage, data_key(state.topic_id, 0, name)).write_bytes(struct.pack(">q", base) + batch[8:])
        segments.append(
            first._replace(base_offset=base, name=name, end_offset=base + 60, largest_timestamp_offset=base + 59)
        )
    part = state.partitions[0].model_copy(update={"segments": tuple(segments), "high_watermark": 60 * count})
    topics.chain("t").commit(lambda state: state.with_partitions({0: part}), "many micro-batches")

    assert run(topics, "maintenance", "--json") == 0

    report = json.loads(capsys.readouterr().out)
    assert report["segments merged"] == count - 1
    after = topics.state("t")
    *sealed, last, active = after.partitions[0].segments
    assert active == segments[-1]
    assert len(sealed) > 5
    assert all(0.9 * segment_bytes < each.size <= segment_bytes for each in sealed)
    assert sum(each.size for each in (*sealed, last, active)) == count * len(batch)
    assert values(topics, "t") == [f"k{number:040}" for number in range(60)] * count
    *_, merged = HistoryReader(topics.storage, topics.chain("t")).changes(0, after.version)
    assert merged.change == f"merge of {count - 1} segments", "one version"


@pytest.mark.spark
def test_maintenance_merges_small_segments_and_names_what_it_could_not(
    spark: SparkSession, topics: Topics, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runners, "SMALL_BYTES", 0)
    topics.create("t", 3, {})
    for partition in (0, 1):
        for value in ("a1", "b1", "c1", "d1"):
            append(topics, "t", value, partition=partition)
    damaged = damage(topics, "t", 1, segment=2)

    assert run(topics, "maintenance", "--json") == 4

    report = json.loads(capsys.readouterr().out)
    assert report["segments merged"] == 3
    (row,) = report["rows"]
    assert (row["topic"], row["partition"], row["segments before"], row["segments after"]) == ("t", 0, 3, 1)
    (failure,) = report["failures"]
    assert damaged in failure
    assert values(topics, "t") == ["a1", "b1", "c1", "d1"]
    assert [len(part.segments) for part in topics.state("t").partitions] == [2, 4, 0]
    assert topics.storage.view is None or shown_logs(topics, "t-0") == [f"{0:020d}.log", f"{3:020d}.log"]


@pytest.mark.spark
def test_maintenance_drops_and_compacts_and_names_what_it_could_not(
    spark: SparkSession, topics: Topics, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runners, "SMALL_BYTES", 0)
    topics.create("compacted", 3, {"cleanup.policy": "compact"})
    for partition in range(3):
        append(topics, "compacted", "a1", "a2", "b1", partition=partition)
        append(topics, "compacted", "c1", partition=partition)
    topics.create("both", 1, {"cleanup.policy": "compact,delete", "retention.ms": str(DAY_MS)})
    append(topics, "both", "z1", age_ms=2 * DAY_MS)
    append(topics, "both", "a1", "a2")
    append(topics, "both", "b1")
    damaged = damage(topics, "compacted", 1, segment=0)

    assert run(topics, "maintenance", "--json") == 4

    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert report["exit_status"] == 4
    assert (report["segments dropped"], report["partitions compacted"], report["records removed"]) == (1, 3, 3)
    (failure,) = report["failures"]
    assert failure.startswith("topic compacted, partition 1: ")
    assert damaged in failure
    assert failure in printed.err
    assert [values(topics, "compacted", partition) for partition in (0, 2)] == [["a2", "b1", "c1"]] * 2
    assert values(topics, "both") == ["a2", "b1"]
    assert {(row["topic"], row["partition"], row["done"].split()[0]) for row in report["rows"]} == {
        ("both", 0, "retention"),
        ("both", 0, "compaction"),
        ("compacted", 0, "compaction"),
        ("compacted", 2, "compaction"),
    }


def test_maintenance_prunes_versions_and_sweeps_what_died(topics: Topics, capsys: pytest.CaptureFixture[str]) -> None:
    topics.create("t", 1, {})
    append(topics, "t", "a1")
    state = topics.state("t")
    document = json.loads(topics.storage.read(version_key("t", 1)))
    for version in range(2, 1_100):
        document |= {"id": f"{version:032x}", "parent": document["id"], "version": version}
        key = version_key("t", version)
        document.pop("digest", None)
        body = json.dumps(document, separators=(",", ":")).encode()
        file_in(topics.storage, key).write_bytes(encode_document(key, body))
    left_over = data_key(state.topic_id, 0, "00000000000000000001.1.0123abcd")
    topics.storage.put_new(left_over, b"12345")
    staged = f"{staging_folder(state.topic_id, 1)}0123.batches"
    topics.storage.put_new(staged, b"123")

    assert run(topics, "maintenance", "--json", "--set", "broker.lakelog.sweep.delay.ms=1") == 0

    report = json.loads(capsys.readouterr().out)
    assert [report[key] for key in ("versions pruned", "files swept", "bytes swept")] == [99, 2, 8]
    assert not {left_over, staged} & {
        file.key for folder in ("data/", "staging/") for file in topics.storage.list(folder)
    }
    assert values(topics, "t") == ["a1"]
    changes = HistoryReader(topics.storage, topics.chain("t")).changes(0, 1_100)
    assert [change.version for change in changes] == list(range(1_101))
