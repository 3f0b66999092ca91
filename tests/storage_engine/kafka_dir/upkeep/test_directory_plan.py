"""Plans of plain Kafka log directories, compared with the logs that a LogManager opens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from storage_engine.cleaner.selection import CompactionBound, CompactionPlan
from storage_engine.clock import ManualClock
from storage_engine.kafka_dir.log_directory import TopicPartition
from storage_engine.kafka_dir.upkeep.directory_plan import plan_directory
from storage_engine.kafka_dir.upkeep.due_compaction import select_in_place
from storage_engine.kafka_dir.upkeep.task_opening import COMPACTION, LogsOfTask
from tests.storage_engine.kafka_dir.upkeep.brokers_directory import NOW_MS
from tests.storage_engine.verify.directories import copied

SETTINGS = {"cleanup.policy": "compact"}


def comparable(plan: CompactionPlan) -> tuple[CompactionPlan, list[tuple[int, int, int]]]:
    """A plan, with those parts of its segments that both ways to read a log find."""
    return replace(plan, segments=()), [(each.base_offset, each.end_offset, each.size) for each in plan.segments]


def test_a_transaction_whose_marker_is_above_the_high_watermark_is_open(tmp_path: Path) -> None:
    data = copied("txn", tmp_path)
    (data / ".kafka_cleanshutdown").touch()
    partition = TopicPartition("txn", 0)
    bounds = set()
    for watermark in range(0, 320, 8):
        (data / "replication-offset-checkpoint").write_text(f"0\n1\ntxn 0 {watermark}\n")
        planned = plan_directory(data, ["txn"], SETTINGS, NOW_MS).compaction[partition]
        with LogsOfTask(COMPACTION, data, ["txn"], SETTINGS, ManualClock(NOW_MS)) as opened:
            log = opened.logs.log(*partition)
            storage = opened.logs.open_directories[0].storage
            expected = select_in_place(storage, log.state(), log.config, log.folder, NOW_MS)
        assert comparable(planned) == comparable(expected), watermark
        bounds.add(planned.bound)
    assert CompactionBound.OPEN_TRANSACTION in bounds
