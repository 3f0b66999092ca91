"""The changes of the versions, how far back they can be read, and the message if older changes cannot be read."""

from __future__ import annotations

from lakelog.report.topic_changes import read_history
from storage_engine.topic.chain.version_files import version_key
from tests.lakelog.report.roots import NOW, Root, partition, segments
from tests.storage_engine.topic.chain.signed_documents import change_fields


def history(root: Root, limit: int = 1000):
    chain = root.topics.chain("t")
    return read_history(chain, chain.newest(), limit)


def test_each_change_tells_what_it_added_when_and_by_whom(root: Root) -> None:
    root.topics.create("t", 2, {})
    root.clock.advance(2000)
    root.commit("t", partition(*segments(30)), partition(*segments(12)), query="q", batch=0)
    root.clock.advance(500)
    root.commit("t", partition(*segments(30, 40)), partition(*segments(12)), query="q", batch=1)
    created, first, second = history(root).changes
    assert (created.version, created.what, created.records, created.elapsed_ms) == (
        0,
        "created with 2 partitions",
        0,
        None,
    )
    assert (first.written_ms, first.elapsed_ms, first.records, first.bytes, first.segments) == (
        NOW + 2000,
        2000,
        42,
        2000,
        2,
    )
    assert (second.elapsed_ms, second.records, second.bytes, second.segments) == (500, 10, 1000, 1)
    assert (first.batches, second.batches) == ({"q": 0}, {"q": 1})
    assert second.writer.query == "q"


def test_cleaning_adds_no_record_and_takes_bytes_away(root: Root) -> None:
    root.topic("t", partition(*segments(10, 20)))
    newest = segments(10, 20)[1]
    root.commit("t", partition(newest, log_start_offset=10))
    change = history(root).changes[-1]
    assert (change.records, change.bytes, change.segments, change.batches) == (0, -1000, -1, {})


def test_a_topic_that_was_created_again_begins_from_nothing(root: Root) -> None:
    root.topic("t", partition(*segments(100)))
    root.topics.delete("t")
    root.topic("t", partition(*segments(7)), partition(*segments(5)))
    changes = history(root).changes
    assert [change.records for change in changes] == [0, 100, 0, 0, 12]
    assert [change.bytes for change in changes] == [0, 1000, -1000, 0, 2000]


def test_partitions_that_were_added_count_from_nothing(root: Root) -> None:
    root.topic("t", partition(*segments(10)))
    root.topics.alter("t", 3)
    root.commit("t", partition(*segments(10)), partition(*segments(4)), partition(*segments(1)))
    assert [change.records for change in history(root).changes] == [0, 10, 0, 5]


def test_only_so_many_versions_are_read(root: Root) -> None:
    root.topics.create("t", 1, {})
    for number in range(5):
        root.topics.alter("t", configs={"retention.ms": str(number)})
    told = history(root, limit=3)
    assert [change.version for change in told.changes] == [3, 4, 5]
    assert (told.older, told.damaged) == ("Only the newest 3 versions were read.", False)
    whole = history(root, limit=6)
    assert ([change.version for change in whole.changes], whole.older) == ([0, 1, 2, 3, 4, 5], "")


def test_versions_that_were_pruned_end_it(root: Root) -> None:
    root.topics.create("t", 1, {})
    for number in range(4):
        root.topics.alter("t", configs={"retention.ms": str(number)})
    root.topics.storage.delete(version_key("t", 1))
    told = history(root)
    assert [change.version for change in told.changes] == [3, 4]
    assert (told.older, told.damaged) == (
        "Version 1 and earlier versions were pruned. `lakelog state history` shows the pruned versions.",
        False,
    )


def test_a_damaged_version_ends_it_and_is_named(root: Root) -> None:
    root.topics.create("t", 1, {})
    for number in range(3):
        root.topics.alter("t", configs={"retention.ms": str(number)})
    root.topics.storage.replace(version_key("t", 1), b"{}")
    told = history(root)
    assert [change.version for change in told.changes] == [3]
    assert told.damaged
    assert told.older.startswith("Version 1 could not be read. meta/t/00000000000000000001.json at position 2:")


def test_a_version_that_is_not_the_parent_does_not_count(root: Root) -> None:
    root.topics.create("t", 1, {})
    for number in range(2):
        root.topics.alter("t", configs={"retention.ms": str(number)})
    change_fields(root.topics.storage, version_key("t", 0), id="another")
    told = history(root)
    assert [change.version for change in told.changes] == [2]
    assert (told.older, told.damaged) == ("Version 0 is not the parent that version 1 names.", True)
