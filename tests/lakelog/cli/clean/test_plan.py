"""`lakelog plan` and the output of --dry-run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from storage_engine.clock import ManualClock
from storage_engine.config import BrokerConfig
from storage_engine.topic.topics import Topics
from tests.lakelog.cli.conftest import line
from tests.storage_engine.topic.clean.test_cleaning_plan import START, with_segments
from tests.stores import storage_at

NOW = 1_700_000_100_000


@pytest.fixture
def filled(lakelog):
    """t: retention takes the segments at 0 and 1 of three at NOW. u: two segments of one key to clean, and an active
    one.
    """
    lakelog("topics", "create", "t", "--partitions", "1", "--config", "retention.ms=50000")
    for age in (82_000, 80_000, 0):
        lakelog("append", "--topic", "t", stdin=[line(b"k", b"v", timestamp=NOW - age)])
    lakelog("topics", "create", "u", "--partitions", "2", "--config", "cleanup.policy=compact")
    for _ in range(3):
        lakelog("append", "--topic", "u", "--partition", "0", stdin=[line(b"k", b"v", timestamp=NOW)])
    return lakelog


def segments(lakelog, topic: str) -> list[int]:
    described = json.loads(lakelog("topics", "describe", topic, "--format", "json").out)
    return [each["base_offset"] for each in described["partitions"][0]["segments"]]


def test_the_table_names_each_segment_its_rule_and_the_numbers(filled) -> None:
    ended = filled("plan", "--topic", "t", "--now", str(NOW))
    assert (ended.status, ended.err) == (0, "")
    rows = [each.split() for each in ended.out.splitlines()]
    assert ["0", "0", "70", "B", "delete", "time", "1", "min", "22", "s", "old", "retention.ms", "50", "s"] in rows
    assert ["0", "1", "70", "B", "delete", "time", "1", "min", "20", "s", "old", "retention.ms", "50", "s"] in rows
    summary = next(each for each in ended.out.splitlines() if "0 -> 2" in each)
    assert "3 -> 1" in summary
    assert "210 B -> 70 B" in summary
    assert "delete 2 segments, 140 B" in summary
    assert ended.out.endswith("in all: delete 2 segments, 140 B. Nothing was changed.\n")
    assert segments(filled, "t") == [0, 1, 2]


def test_all_topics_and_what_waits(filled) -> None:
    ended = filled("plan", "--now", str(NOW))
    assert "t: cleanup.policy delete" in ended.out
    assert "u: cleanup.policy compact" in ended.out
    assert "in all: delete 2 segments, 140 B; clean 2 segments, 140 B. Nothing was changed." in ended.out
    filled("topics", "alter", "u", "--config", "min.compaction.lag.ms=60000")
    ended = filled("plan", "--topic", "u", "--now", str(NOW + 1000))
    assert (
        "partition 0: not cleaned yet: 2 segments, 140 B, from offset 0, 1.0 s old, min.compaction.lag.ms is 1 min,"
        " until 2023-11-14 22:16:00.000Z" in ended.out
    )


def test_json_is_the_document_that_is_saved(filled, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    printed = filled("plan", "--now", str(NOW), "--format", "json", "--save", str(file)).out
    assert file.read_text() == printed
    document = json.loads(printed)
    assert [each["topic"] for each in document["topics"]] == ["t", "u"]
    part = document["topics"][0]["partitions"][0]
    assert (part["bytes_before"], part["bytes_after"]) == (210, 70)
    assert [
        (each["base_offset"], each["action"], each["rule"], each["found"], each["limit"]) for each in part["steps"]
    ] == [
        (0, "delete", "time", 82_000, 50_000),
        (1, "delete", "time", 80_000, 50_000),
    ]


@pytest.mark.posix("looks at the view")
def test_a_saved_plan_is_applied_as_it_is_and_only_once(filled, tmp_path: Path) -> None:
    file = str(tmp_path / "plan.json")
    filled("plan", "--now", str(NOW), "--save", file)
    filled("append", "--topic", "t", stdin=[line(b"k", b"v", timestamp=NOW)])
    applied = filled("plan", "--apply", file)
    assert (applied.status, applied.err) == (0, "")
    told = applied.out.splitlines()
    assert told[0] == "topic t, partition 0: 2 segments deleted, 140 B; the partition now begins at offset 2"
    assert told[1].startswith("topic u, partition 0: compacted up to offset 2, 2 records to 1, ")
    assert len(told) == 2
    assert segments(filled, "t") == [2, 3]
    assert len(list((tmp_path / "root/log/t-0").glob("*.log"))) == 2
    again = filled("plan", "--apply", file)
    assert again.status == 1
    assert "topic t, partition 0: planned: delete the segments at 0, 1; now decided: nothing." in again.err
    assert filled("verify").status == 0


def test_a_plan_is_refused_whole(filled, tmp_path: Path) -> None:
    file = str(tmp_path / "plan.json")
    filled("plan", "--now", str(NOW), "--save", file)
    filled("compact", "--topic", "u", "--now", str(NOW))
    refused = filled("plan", "--apply", file)
    assert (refused.status, refused.out) == (1, "")
    assert refused.err.startswith("lakelog: topic u, partition 0: planned: clean the segments at 0, 1; now decided: ")
    assert segments(filled, "t") == [0, 1, 2]


def test_what_cannot_be_is_said(filled, tmp_path: Path) -> None:
    assert filled("plan", "--topic", "nothing").status == 1
    assert filled("plan", "--apply", str(tmp_path / "none.json")).status == 1
    assert filled("plan", "--apply", "x", "--topic", "t").status == 2
    assert filled("plan", "--save", str(tmp_path / "none" / "plan.json")).status == 1
    for place in (tmp_path / ("x" * 300), tmp_path / ("x" * 300) / "plan.json"):
        too_long = filled("plan", "--save", str(place))
        assert too_long.status == 1
        assert too_long.err.startswith(f"lakelog: --save {place}: ")
    (tmp_path / "other.json").write_text('{"kind": "shopping list"}')
    other = filled("plan", "--apply", str(tmp_path / "other.json"))
    assert (other.status, "expected a plan" in other.err) == (1, True)


def test_dry_runs_show_their_part_and_change_nothing(filled) -> None:
    ended = filled("compact", "--dry-run", "--now", str(NOW))
    assert ended.out.endswith("in all: clean 2 segments, 140 B. Nothing was changed.\n")
    ended = filled("merge", "--dry-run", "--topic", "t")
    assert ended.out.endswith("in all: merge 2 segments into 1, 140 B. Nothing was changed.\n")
    assert segments(filled, "u") == [0, 1, 2]
    assert segments(filled, "t") == [0, 1, 2]
    assert filled("compact", "--dry-run", "--kafka-dir", "x").status == 2


def test_a_topic_that_cannot_be_read_is_named_and_stops_no_other(filled, tmp_path: Path) -> None:
    storage = storage_at(tmp_path / "root")
    newest = max(file.key for file in storage.list("meta/t/") if file.key.endswith(".json"))
    storage.replace(newest, b"{}")
    for command in (("plan",), ("compact", "--dry-run"), ("merge", "--dry-run"), ("merge",), ("compact",)):
        ended = filled(*command, "--now", str(NOW)) if "merge" not in command else filled(*command)
        assert (ended.status, newest in ended.err) == (4, True), command
    assert segments(filled, "u") == [0, 2], "the other one is compacted"
    assert filled("plan", "--topic", "nowhere").status == 1


def test_of_many_neighbours_the_first_and_the_last_are_shown(lakelog, tmp_path: Path) -> None:
    topics = Topics(storage_at(tmp_path / "root"), BrokerConfig(), ManualClock(START))
    state = with_segments(topics, 20, retention_ms="1")
    out = lakelog("plan", "--topic", state.topic, "--now", str(START + 10**8)).out
    rows = [each.split() for each in out.splitlines() if " delete  " in each]
    assert [each[1] for each in rows if each[0] == "0"] == [f"{n * 1000:,}" for n in (*range(6), *range(14, 20))]
    assert ["+", "8", "more", "8.0", "MB", "delete", "time"] in rows


def test_a_topic_to_which_nothing_is_done_takes_a_line(filled) -> None:
    out = filled("compact", "--dry-run", "--topic", "t", "--now", str(NOW)).out
    assert out.splitlines() == [
        "t: cleanup.policy delete, as of 2023-11-14 22:15:00.000Z, version 3: nothing to do, 210 B in 3 segments",
        "in all: nothing. Nothing was changed.",
    ]
