"""The parts of `lakelog groups` that tests/kafka/test_groups.py cannot compare with Kafka: members, unread
records, refusals.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from lakelog.opening import open_topics
from storage_engine.storage.posix import PosixStorage
from storage_engine.topic.clean.topic_compaction import compact_topic
from storage_engine.topic.readers.consumer_files import STREAM_KIND, put_positions
from storage_engine.topic.readers.membership import Membership, join
from storage_engine.topic.topics import Topics
from tests.lakelog.cli.conftest import Lakelog, line
from tests.stores import root_at

KEYS = [b"a", b"b", b"a", b"b", b"c"]


@pytest.fixture
def topics(lakelog: Lakelog, tmp_path: Path) -> Topics:
    """Topic t: offsets 0 to 4 in segments of one record each, timestamps 1,000 s apart until now."""
    lakelog(
        "topics", "create", "t", "--partitions", "2", "--config", "cleanup.policy=compact", "--config", "segment.ms=1"
    )
    topics = open_topics(root_at(tmp_path / "root"), None, print)
    now_ms = topics.clock.now_ms()
    for step, key in enumerate(KEYS):
        record = line(key, b"v", timestamp=now_ms - (5 - step) * 1_000_000)
        lakelog("append", "--topic", "t", "--partition", "0", stdin=[record])
    return topics


def member_of(topics: Topics, positions: dict[int, int], group: str = "g") -> Membership:
    state, now_ms = topics.state("t"), topics.clock.now_ms()
    member = join(topics.storage, state, group, "reader-1", "etl-3", now_ms)
    member.commit(state, positions, now_ms)
    return member


def test_a_member_is_shown_with_all_partitions(lakelog: Lakelog, topics: Topics) -> None:
    member_of(topics, {0: 3})
    ended = lakelog("groups", "describe", "--group", "g")
    assert ended.err == ""
    assert [row.split() for row in ended.out.splitlines()] == [
        [],
        ["GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CONSUMER-ID", "HOST", "CLIENT-ID"],
        ["g", "t", "0", "3", "5", "2", "reader-1", "/etl-3", "lakelog"],
        ["g", "t", "1", "-", "0", "-", "reader-1", "/etl-3", "lakelog"],
    ]
    assert lakelog("groups", "describe", "--group", "g", "--members").out.splitlines()[2].split() == [
        "g", "reader-1", "/etl-3", "lakelog", "2",
    ]  # fmt: skip
    assert lakelog("groups", "describe", "--group", "g", "--state").out.splitlines()[2].split() == [
        "g", "-", "-", "Stable", "1",
    ]  # fmt: skip
    assert lakelog("groups", "list", "--state").out.splitlines()[1].split() == ["g", "Stable"]


def test_what_is_unread_is_counted_without_the_gaps_of_compaction(lakelog: Lakelog, topics: Topics) -> None:
    member_of(topics, {0: 0}).leave()
    (before, *_) = lakelog("groups", "describe", "--group", "g", "--json").records
    assert (before["lag"], before["records"]) == (5, 5)
    assert 5_000 <= before["seconds"] < 5_100
    state = topics.state("t")
    compact_topic(topics.storage, topics.chain("t"), topics.config(state), topics.broker, topics.clock, force=True)
    (after, *_) = lakelog("groups", "describe", "--group", "g", "--json").records
    assert (after["lag"], after["records"], after["member"]) == (5, 3, "")
    assert after["bytes"] == topics.state("t").partitions[0].size
    assert 3_000 <= after["seconds"] < 3_100
    told = lakelog("groups", "describe", "--group", "g", "--lag").out.splitlines()
    assert told[1].split()[5:9] == ["LAG", "RECORDS", "BYTES", "SECONDS"]
    assert told[2].split()[:7] == ["g", "t", "0", "0", "5", "5", "3"]


def test_a_group_at_the_end_lags_by_nothing(lakelog: Lakelog, topics: Topics) -> None:
    member_of(topics, {0: 5}).leave()
    (found,) = lakelog("groups", "describe", "--group", "g", "--json").records
    assert (found["lag"], found["records"], found["bytes"], found["seconds"]) == (0, 0, 0, 0.0)


def test_a_group_with_a_member_is_neither_reset_nor_deleted(lakelog: Lakelog, topics: Topics) -> None:
    member = member_of(topics, {0: 3})
    reset = lakelog("groups", "reset-offsets", "--group", "g", "--topic", "t", "--to-earliest", "--execute")
    assert (reset.status, reset.out) == (1, "")
    assert "group g, topic t: has an active member, reader-1 on etl-3. Stop this reader." in reset.err
    deleted = lakelog("groups", "delete", "--group", "g")
    assert (deleted.status, deleted.err) == (1, "lakelog: group g: has an active member. Stop this member first.\n")
    member.leave()
    assert lakelog("groups", "delete", "--group", "g").status == 0
    assert lakelog("groups", "list").out == ""


@pytest.mark.posix("changes a method of the local storage")
def test_the_files_of_groups_are_not_read_again_for_each_group(
    lakelog: Lakelog, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    lakelog("topics", "create", "u")
    now_ms = topics.clock.now_ms()
    for topic in ("t", "u"):
        for group in ("g", "h", "i"):
            state = topics.state(topic)
            join(topics.storage, state, group, "m", "h", now_ms).commit(state, {0: 0}, now_ms)
    read = PosixStorage.read
    keys: list[str] = []

    def counted(storage: PosixStorage, key: str, start: int = 0, length: int | None = None) -> bytes:
        keys.append(key)
        return read(storage, key, start, length)

    monkeypatch.setattr(PosixStorage, "read", counted)
    described = lakelog("groups", "describe", "--all-groups", "--json").records
    assert [(each["group"], each["topic"], each["partition"], each["lag"]) for each in described] == [
        row for group in ("g", "h", "i") for row in ((group, "t", 0, 5), (group, "t", 1, None), (group, "u", 0, 0))
    ]
    times = Counter(key for key in keys if "/groups/" in key)
    assert list(times.values()) == [2] * 6, "once for the topic's newest state, once for the positions"


def test_a_stream_is_not_reset(lakelog: Lakelog, topics: Topics) -> None:
    put_positions(topics.storage, topics.state("t"), "s", STREAM_KIND, {0: 1}, 1)
    ended = lakelog("groups", "reset-offsets", "--group", "s", "--all-topics", "--to-earliest", "--execute")
    assert ended.status == 1
    assert "the checkpoint of a Spark query decides where this stream continues" in ended.err
    assert lakelog("groups", "describe", "--group", "s", "--json").records[0]["current_offset"] == 1


def test_a_reset_is_repeated_from_the_file_that_it_exported(lakelog: Lakelog, topics: Topics, tmp_path: Path) -> None:
    member_of(topics, {0: 3, 1: 0}).leave()
    member_of(topics, {0: 1}, "h").leave()
    exported = lakelog("groups", "reset-offsets", "--all-groups", "--all-topics", "--to-current", "--export").out
    assert exported == "g,t,0,3\ng,t,1,0\nh,t,0,1\n\n"
    (tmp_path / "plan.csv").write_text(exported)
    reset = ("groups", "reset-offsets", "--group", "g")
    assert lakelog(*reset, "--topic", "t:0", "--to-offset", "1", "--execute").status == 0
    assert lakelog(*reset, "--from-file", str(tmp_path / "plan.csv"), "--execute").status == 0
    found = lakelog("groups", "describe", "--group", "g", "--json").records
    assert [(each["partition"], each["current_offset"]) for each in found] == [(0, 3), (1, 0)]
    (tmp_path / "plan.csv").write_text("t,0,2\n")
    assert lakelog(*reset, "--from-file", str(tmp_path / "plan.csv")).out.splitlines()[-1].split() == [
        "g",
        "t",
        "0",
        "2",
    ]


def test_names_with_line_ends_are_read_from_the_file_that_was_exported(
    lakelog: Lakelog, topics: Topics, tmp_path: Path
) -> None:
    names = ('a"b\\c\nd', "a,b\r", "\r\n", "x\ry", "é\x85\u2028")
    for offset, name in enumerate(names):
        member_of(topics, {0: offset % 3}, name).leave()

    def current() -> dict[str, int]:
        return {
            each["group"]: each["current_offset"]
            for each in lakelog("groups", "describe", "--all-groups", "--json").records
        }

    before = current()
    assert before == {name: offset % 3 for offset, name in enumerate(names)}
    exported = lakelog("groups", "reset-offsets", "--all-groups", "--all-topics", "--to-current", "--export").out
    (tmp_path / "plan.csv").write_bytes(exported.encode())
    assert (
        lakelog("groups", "reset-offsets", "--all-groups", "--topic", "t:0", "--to-offset", "3", "--execute").status
        == 0
    )
    assert set(current().values()) == {3}
    from_file = ("--from-file", str(tmp_path / "plan.csv"), "--execute")
    for name in names:
        assert lakelog("groups", "reset-offsets", "--group", name, *from_file).status == 0
    assert current() == before


def test_a_file_without_a_line_for_a_group_is_an_error(lakelog: Lakelog, topics: Topics, tmp_path: Path) -> None:
    for name in ("g", "h", "i"):
        member_of(topics, {0: 1}, name).leave()
    plan = tmp_path / "plan.csv"

    def reset(content: str, *groups: str) -> tuple[int, str, str]:
        plan.write_text(content)
        ended = lakelog("groups", "reset-offsets", *groups, "--from-file", str(plan), "--execute")
        return ended.status, ended.out, ended.err

    told = (
        f"lakelog: --from-file: found no line for %s in {plan}. Give the file that --export printed for this group."
        " `lakelog groups list` shows the groups.\n"
    )
    for content in ("", "\n", "g,t,0,3\nh,t,0,3\n"):
        assert reset(content, "--group", "i") == (2, "", told % "group i")
    assert reset("g,t,0,3\n", "--group", "g", "--group", "h") == (2, "", told % "group h")
    assert reset("other,t,0,3\n", "--all-groups") == (2, "", told % "one of the groups")
    assert {each["current_offset"] for each in lakelog("groups", "describe", "--all-groups", "--json").records} == {1}
    assert reset("h,t,0,3\n", "--all-groups")[0] == 0
    found = lakelog("groups", "describe", "--all-groups", "--json").records
    assert {(each["group"], each["current_offset"]) for each in found} == {("g", 1), ("h", 3), ("i", 1)}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--topic", "t"), "expected one rule, found none"),
        (("--topic", "t", "--to-latest", "--to-earliest"), "found --to-earliest and --to-latest"),
        (("--to-latest",), "--topic: found none"),
        (("--topic", "t", "--all-topics", "--to-latest"), "--topic: found both"),
        (("--topic", "t:x", "--to-latest"), "found 't:x'"),
        (("--topic", "t:7", "--to-latest"), "has partitions 0 to 1, but no partition 7"),
        (("--topic", "u", "--to-latest"), "topic u: not found"),
        (("--topic", "t", "--shift-by", "1"), "Cannot shift offset for partition t-0 since there is no current"),
        (("--topic", "t", "--by-duration", "P"), "found 'P'"),
        (("--topic", "t", "--to-datetime", "noon"), "found 'noon'"),
        (("--from-file", "missing.csv"), "missing.csv cannot be read"),
        (("--topic", "t", "--to-latest", "--execute", "--dry-run"), "--dry-run is given, too"),
    ],
)
def test_a_wrong_reset_says_what_is_wrong(
    lakelog: Lakelog, topics: Topics, arguments: tuple[str, ...], told: str
) -> None:
    ended = lakelog("groups", "reset-offsets", "--group", "new", *arguments)
    assert ended.status in (1, 2)
    assert told in ended.err
    assert lakelog("groups", "list").out == ""


def test_a_group_that_is_not_there_is_an_error(lakelog: Lakelog, topics: Topics) -> None:
    for command in ("describe", "delete"):
        ended = lakelog("groups", command, "--group", "nobody")
        assert (ended.status, ended.out) == (1, "")
        assert "group nobody: not found. `lakelog groups list` shows the groups." in ended.err
    assert lakelog("groups", "describe").status == 2


def test_a_damaged_file_is_named_and_the_others_are_served(lakelog: Lakelog, topics: Topics) -> None:
    member_of(topics, {0: 1}).leave()
    topics.storage.replace("meta/t/groups/h-00000000.json", json.dumps({}).encode())

    ended = lakelog("groups", "list")

    assert (ended.status, ended.out) == (4, "g\n")
    assert "meta/t/groups/h-00000000.json" in ended.err
    assert lakelog("groups", "list", "--state").status == 4
    for command in ("describe", "reset-offsets --to-earliest --execute --all-topics", "delete"):
        ended = lakelog("groups", *command.split(), "--group", "g")
        assert ended.status == 4
        assert "g" in ended.out
        assert "meta/t/groups/h-00000000.json" in ended.err
    assert lakelog("groups", "list").out == ""


def test_a_topic_that_cannot_be_read_is_named_and_the_groups_of_the_others_are_listed(
    lakelog: Lakelog, topics: Topics
) -> None:
    member_of(topics, {0: 1}).leave()
    topics.create("u", 1, {})
    topics.storage.replace("meta/u/00000000000000000000.json", b"{}")

    ended = lakelog("groups", "list")

    assert (ended.status, ended.out) == (4, "g\n")
    assert "meta/u/00000000000000000000.json" in ended.err


@pytest.mark.posix("makes a folder")
def test_a_folder_in_the_place_of_a_groups_file_is_an_error(lakelog: Lakelog, topics: Topics) -> None:
    member_of(topics, {0: 1}).leave()
    (file,) = topics.storage.list("meta/t/groups/")
    topics.storage.delete(file.key)
    PosixStorage(topics.storage.uri).make_folder(file.key)

    for command in (["read"], ["read", "--commit"]):
        ended = lakelog(*command, "--topic", "t", "--group", "g")
        assert (ended.status, ended.out) == (1, "")
        assert f"{file.key} at position 0: expected a registered consumer, found a folder" in ended.err
