"""Root.describe, plan and verify: they return the facts that the commands print, as values."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import lakelog
from lakelog import cli, errors
from tests.in_process import run_in_process

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def log(tmp_path: Path) -> lakelog.Root:
    """A topic of two partitions with three segments each, and an empty topic."""
    log = lakelog.open(tmp_path / "root", create=True)
    topic = log.create_topic("orders", 2, {"segment.bytes": 20_000, "retention.ms": 3_600_000})
    for _ in range(3):
        for partition in (0, 1):
            topic.append([{"value": b"x" * 15_000, "timestamp": NOON}], partition=partition)
    log.create_topic("empty")
    return log


def told(log: lakelog.Root, *words: str) -> str:
    """What a command prints about the root."""
    ended = run_in_process(cli.main, ["lakelog", *words, "--root", log.uri.removeprefix("file://")])
    return ended.out


def test_a_description_has_what_the_command_prints(log: lakelog.Root, tmp_path: Path) -> None:
    stray = tmp_path / "root/data" / log.topic("orders").id / "0/00000000000000000099.1.abcdef01.log"
    stray.write_bytes(b"12345")
    empty, orders = log.describe()
    assert (empty.topic, orders.topic) == ("empty", "orders")
    assert log.describe("orders") == [log.topic("orders").describe()] == [orders]
    printed = json.loads(told(log, "topics", "describe", "orders", "--format", "json"))
    assert printed == json.loads(json.dumps(orders.as_json()))
    assert {(each.key, each.value, each.source) for each in orders.settings} == {
        ("segment.bytes", "20000", "topic"),
        ("retention.ms", "3600000", "topic"),
    }
    assert [[segment.base_offset for segment in part.segments] for part in orders.partitions] == [[0, 1, 2]] * 2
    assert [part.high_watermark for part in orders.partitions] == [3, 3]
    assert (orders.unswept_files, orders.unswept_bytes, orders.versions_kept) == (1, 5, orders.version + 1)


def test_a_plan_is_the_one_that_the_command_prints(log: lakelog.Root) -> None:
    later = NOON.replace(hour=15)
    planned = log.plan(at=later)
    at = ["--now", str(int(later.timestamp() * 1000)), "--format", "json"]
    assert json.loads(told(log, "plan", *at)) == json.loads(planned.model_dump_json())
    steps = {topic.topic: [part.steps for part in topic.partitions] for topic in planned.topics}
    assert steps["empty"] == [()]
    assert [[(step.action, step.rule, step.base_offset) for step in part] for part in steps["orders"]] == [
        [("delete", "time", offset) for offset in range(3)]
    ] * 2
    assert [topic.topic for topic in log.plan("empty", at=later).topics] == ["empty"]
    assert all(not part.steps for part in log.plan("orders", at=NOON).topics[0].partitions)
    assert len(log.topic("orders").read().to_arrow()) == 6, "a plan changes nothing"


def test_verification_finds_what_the_command_prints_and_repairs_what_can_be_proven(
    log: lakelog.Root, tmp_path: Path
) -> None:
    verified = log.verify(deep=True)
    assert (verified.problems, verified.segments, verified.batches) == ([], 6, 6)
    assert verified.bytes == sum(part.size for topic in log.describe() for part in topic.partitions)
    damaged = sorted((tmp_path / "root/data").rglob("0/*.log"))[1]
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\1")
    (tmp_path / "root/log/orders-1/00000000000000000000.log").unlink()
    verified = log.verify("orders")
    printed = [json.loads(line) for line in told(log, "verify", "--topic", "orders", "--format", "jsonl").splitlines()]
    assert [each.as_json() | {"repaired": False} for each in verified.left] == printed
    assert Counter(each.kind for each in verified.problems) == {"corrupt": 1, "view": 1}
    assert [each.kind for each in log.verify("orders", 0).problems] == ["corrupt"]
    repaired = log.verify(repair=True)
    assert [each.kind for each in repaired.problems] == ["corrupt"]
    assert {each.kind for each in repaired.found} == {"corrupt", "view"}


def test_a_topic_with_a_damaged_state_is_an_error_or_a_finding(log: lakelog.Root, tmp_path: Path) -> None:
    newest = max((tmp_path / "root/meta/orders").glob("*.json"))
    newest.write_bytes(newest.read_bytes().replace(b"retention.ms", b"retention.xx"))
    for call in (log.describe, log.plan):
        with pytest.raises(errors.CorruptionError, match="meta/orders"):
            call()
    assert [topic.topic for topic in log.describe("empty")] == ["empty"]
    assert [topic.topic for topic in log.plan("empty").topics] == ["empty"]
    verified = log.verify()
    assert verified.unreadable == ("orders",)
    assert {each.kind for each in verified.problems} == {"state"}


@pytest.mark.parametrize(
    ("method", "names", "options", "error"),
    [
        ("describe", ["unknown"], {}, errors.UnknownTopicError),
        ("plan", ["unknown"], {}, errors.UnknownTopicError),
        ("plan", [], {"at": datetime(2026, 1, 1)}, errors.ConfigError),  # noqa: DTZ001
        ("verify", ["unknown"], {}, errors.UnknownTopicError),
        ("verify", ["orders", 2], {}, errors.UnknownTopicError),
        ("verify", [], {"threads": 0}, errors.ConfigError),
    ],
)
def test_what_is_not_there_is_refused(
    log: lakelog.Root, method: str, names: list[Any], options: dict[str, Any], error: type[errors.LogError]
) -> None:
    with pytest.raises(error):
        getattr(log, method)(*names, **options)
