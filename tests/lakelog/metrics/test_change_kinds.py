"""Tests that every kind of commit is recognised by its line in the history. Also tests that the newest change of each
kind is kept.
"""

from __future__ import annotations

import pytest

from lakelog.metrics.change_kinds import ChangeKind, RecentChanges, kind_of, recent_changes
from storage_engine.topic.chain.version_notes import VersionNote
from storage_engine.topic.clean.sweeping import sweep_topic
from storage_engine.topic.clean.topic_compaction import compact_topic
from storage_engine.topic.clean.topic_merging import merge_topic
from storage_engine.topic.clean.topic_retention import delete_records, retain_topic
from storage_engine.topic.dropped_files import delete_dropped
from tests.lakelog.metrics.roots import DAY, MINUTE, NOW, WatchedRoot


def test_the_real_commits_of_a_topic_are_recognised(root: WatchedRoot) -> None:
    """Every operation that commits is run: a changed line of an operation makes this test fail."""
    changed = {"cleanup.policy": "compact,delete", "retention.ms": str(DAY), "min.cleanable.dirty.ratio": "0"}
    root.topic("t", segment_ms="1")
    chain = root.topics.chain("t")
    root.take_over("t")
    for _ in range(3):
        root.append("t", 0)
        root.clock.advance(MINUTE)
    root.topics.alter("t", configs={"segment.ms": None})
    config = root.topics.config(chain.newest())
    merge_topic(root.storage, chain, config)
    root.topics.alter("t", configs={"segment.ms": "1", **changed})
    root.append("t", 0)
    compact_topic(root.storage, chain, root.topics.config(chain.newest()), root.topics.broker, root.clock)
    delete_records(chain, 0, 1)
    root.clock.advance(3 * DAY)
    retain_topic(chain, root.topics.broker)
    root.clock.advance(DAY)
    delete_dropped(root.storage, chain, config, root.clock.now_ms())
    root.storage.put_new(f"data/{chain.newest().topic_id}/0/00000000000000000009.1.deadbeef.log", b"left by a crash")
    root.clock.advance(3 * DAY)
    root.topics.alter("t", 2)
    sweep_topic(root.storage, chain, root.topics.broker)
    root.topics.delete("t")
    root.topic("t")
    changes = [state.change for version in range(chain.newest().version + 1) if (state := chain.at(version))]
    assert [str(kind_of(each)) for each in changes] == [
        "create", "take-over", "append", "append", "append", "alter", "merge", "alter", "append", "compaction",
        "delete-records", "retention", "delete-files", "alter", "sweep", "other", "create",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("batch 41 of query 6f2c: append of 26849 records", ChangeKind.APPEND),
        ("batch -1 of query 6f2c: append of 0 records", ChangeKind.APPEND),
        ("query retention took over, with a new checkpoint", ChangeKind.TAKE_OVER),
        ("swept 2 deleted topics of this name", ChangeKind.SWEEP),
        ("imported from /data/kafka", ChangeKind.IMPORT),
        ("imported later batches from /data/kafka", ChangeKind.IMPORT),
        ("recorded the fields of model Order", ChangeKind.ALTER),
        ("restored from version 41, and 7 records that the view proves", ChangeKind.REPAIR),
        ("deleted", ChangeKind.OTHER),
        ("", ChangeKind.OTHER),
    ],
)
def test_other_lines_are_recognised(line: str, kind: ChangeKind) -> None:
    assert kind_of(line) is kind


def note(version: int, change: str) -> VersionNote:
    return VersionNote(version, "", NOW + version, change, "id")


FIRST = [note(4, "retention"), note(3, "query q took over"), note(2, "append of 1 records"), note(1, "retention")]


def test_the_newest_change_of_each_kind_is_kept() -> None:
    assert recent_changes(FIRST) == RecentChanges(
        last_ms={ChangeKind.RETENTION: NOW + 4, ChangeKind.TAKE_OVER: NOW + 3, ChangeKind.APPEND: NOW + 2},
        take_overs_ms=(NOW + 3,), since_ms=NOW + 1, is_whole=False,
    )  # fmt: skip


def test_newer_changes_are_added() -> None:
    newer = recent_changes([note(6, "query p took over"), note(5, "append of 1 records")], recent_changes(FIRST))
    assert newer == RecentChanges(
        last_ms={ChangeKind.RETENTION: NOW + 4, ChangeKind.TAKE_OVER: NOW + 6, ChangeKind.APPEND: NOW + 5},
        take_overs_ms=(NOW + 6, NOW + 3), since_ms=NOW + 1, is_whole=False,
    )  # fmt: skip
    assert (newer.last_cleaned_ms(), newer.take_overs_since(NOW + 4)) == (NOW + 4, 1)


def test_a_history_that_reaches_the_first_version_is_whole() -> None:
    assert recent_changes([note(0, "created with 1 partitions")]).is_whole
    assert recent_changes([note(0, "created with 1 partitions")]).last_cleaned_ms() is None
