"""Lets promtool check the files of docs/monitoring. Then Prometheus scrapes roots with prepared problems until every
alert fires.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from deltalake import write_deltalake

from scripts import go_programs
from storage_engine.log.partition_state import PartitionState
from storage_engine.topic.chain.topic_state import DroppedFile, TopicState
from storage_engine.topic.chain.version_files import encode_state, version_key
from storage_engine.topic.kafka.view import settle
from storage_engine.topic.readers.consumer_files import group_folder
from tests.docs.pages import blocks
from tests.lakelog.metrics.monitoring_files import ALERTS, alerts, dashboard_expressions
from tests.lakelog.metrics.prometheus_server import free_port, promtool, running_prometheus
from tests.lakelog.metrics.roots import DAY, HOUR, MINUTE, WatchedRoot
from tests.lakelog.report.roots import partition, segments

CASES = Path(__file__).with_name("alert_tests.yaml")
ONLY_WITH_PROMTOOL = {
    "LakelogDiskLow", "LakelogDiskFull", "LakelogDeadLetters", "LakelogJobFailed", "LakelogJobKilled",
    "LakelogIngestBehind",
}  # fmt: skip
"""These tests make no full disk and no metrics of jobs, tables are counted only every five minutes, and the lag of an ingest
is compared over half an hour. promtool tests these alerts."""


@pytest.fixture(scope="module")
def prometheus() -> Path:
    """The folder of the programs."""
    return go_programs.prometheus()


def test_promtool_accepts_the_alerts_and_each_of_them_fires_above_its_limit(prometheus: Path, tmp_path: Path) -> None:
    promtool(prometheus, "check", "rules", ALERTS)
    cases = yaml.safe_load(CASES.read_text())
    cases["rule_files"] = [str(ALERTS)]
    expected = cases["tests"][1]["promql_expr_test"][0]
    assert expected["exp_samples"][0]["value"] == len(alerts())
    file = tmp_path / "cases.yaml"
    file.write_text(yaml.safe_dump(cases))
    promtool(prometheus, "test", "rules", file)


def test_promtool_accepts_what_the_dashboard_asks_for(prometheus: Path, tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{number}", "expr": expression.replace("$__rate_interval", "1m")}
        for number, expression in enumerate(dashboard_expressions())
    ]
    file = tmp_path / "panels.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    promtool(prometheus, "check", "rules", "--lint=none", file)


def test_promtool_accepts_the_settings_that_the_page_shows(prometheus: Path, tmp_path: Path) -> None:
    (block,) = [block for block in blocks("docs/MONITORING.md", "yaml") if "scrape_configs" in block.text]
    file = tmp_path / "prometheus.yml"
    file.write_text(re.sub(r"/\S*alerts\.yaml", str(ALERTS), block.text))
    assert f"{len(alerts())} rules found" in promtool(prometheus, "check", "config", file)


@contextmanager
def endpoint(root: WatchedRoot) -> Iterator[str]:
    """`lakelog metrics` on a root; yields HOST:PORT."""
    arguments = ["metrics", "--listen", "127.0.0.1:0", "--tables", "--root", str(root.folder)]
    process = subprocess.Popen([sys.executable, "-m", "lakelog.cli", *arguments], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        (url,) = next(found for text in lines if (found := re.findall(r"http://([\d.:]+)/metrics", text)))
        yield str(url)
    finally:
        process.kill()
        process.wait()


def stage(folder: Path) -> WatchedRoot:
    """A root with a topic for each situation. The present is the time of the system's clock."""
    root = WatchedRoot(folder, time.time_ns() // 1_000_000 - 2 * DAY)
    root.topic("silent")
    root.take_over("silent")
    root.append("silent", 0)
    root.topic("overdue", retention_ms=str(HOUR))
    root.append("overdue", DAY)
    root.clock.advance(10 * HOUR)
    root.topic("read")
    root.append("read", 0, 0, 0)
    root.export("read", {0: 1})
    root.clock.advance(2 * DAY - 10 * HOUR)
    root.group_with("read", "stopped", {0: 1}, (3 * HOUR, 0, 3), (2 * HOUR, 1, 3))
    root.group_with("read", "slow", {0: 2}, (3 * MINUTE, 0, 1), (2 * MINUTE, 1, 3), (MINUTE, 2, 5))
    root.group("read", "damaged", {0: 1})
    (damaged,) = [file.key for file in root.storage.list(group_folder("read")) if "damaged" in file.key]
    root.storage.replace(damaged, b"{}")
    root.topic("many_segments")
    stage_state(root, "many_segments", partition(*segments(*range(1, 1003))))
    root.topic("many_files")
    stage_state(root, "many_files", dropped=10_001)
    stage_versions(root, "many_versions")
    settle(root.topics, ["read"])
    for name in ("killed", "torn"):
        root.topic(name)
        root.take_over(name, f"query-of-{name}")
        root.report_ingest(name, 5, age_ms=2 * HOUR)
    root.tear_report("torn")
    root.topic("fought_over")
    root.append("fought_over", 0)
    root.set_time(root.folder / "log/replication-offset-checkpoint", root.clock.now_ms() - 4 * HOUR)
    root.set_time(root.state_file("silent"), root.clock.now_ms())
    root.topic("damaged")
    root.damage("damaged")
    rows = pa.table({"_key": ["a"], "_stale_since": pa.array([3], pa.int64())})
    write_deltalake(str(folder / "tables/orders"), rows)
    return root


def stage_state(root: WatchedRoot, name: str, part: PartitionState | None = None, dropped: int = 0) -> None:
    """Commit a state whose files do not exist: metrics do not read them."""

    def change(state: TopicState) -> TopicState:
        now_ms = root.clock.now_ms()
        files = tuple(DroppedFile(state.topic_id, 0, f"{number:020d}.0.deadbeef", now_ms) for number in range(dropped))
        parts = state.partitions if part is None else (part,)
        return state.model_copy(update={"partitions": parts, "dropped": files})

    root.topics.chain(name).commit(change, "append of 0 records")


def stage_versions(root: WatchedRoot, name: str) -> None:
    """A chain whose newest version is 3,001. Of the earlier versions, only the one before has content."""
    first = root.topic(name)
    for number in (3000, 3001):
        made = first.model_copy(update={"version": number, "id": f"{number:032d}", "parent": f"{number - 1:032d}"})
        root.storage.put_new(version_key(name, number), encode_state(made))
    for number in range(1, 3000):
        (root.folder / version_key(name, number)).touch()


def test_every_alert_fires_in_its_situation(prometheus: Path, tmp_path: Path) -> None:
    """The alerts wait for no time here, because the situations are staged already."""
    rules = tmp_path / "alerts.yaml"
    rules.write_text(re.sub(r"\n *for: .*", "", ALERTS.read_text()))
    root = stage(tmp_path / "staged")
    lost = WatchedRoot(tmp_path / "lost")
    lost.topic("t")
    with ExitStack() as stack:
        targets = [stack.enter_context(endpoint(each)) for each in (root, lost)]
        (lost.folder / "meta").rename(lost.folder / "aside")
        (lost.folder / "meta").touch()
        targets.append(f"127.0.0.1:{free_port()}")
        server = stack.enter_context(running_prometheus(prometheus, tmp_path, targets, rules))
        for epoch in range(1, 8):
            root.take_over("fought_over")
            server.wait_until('lakelog_topic_writer_epoch{topic="fought_over"}', epoch)
        server.wait_for_alerts(alerts().keys() - ONLY_WITH_PROMTOOL)
        assert server.value('lakelog_topic_readable{topic="damaged"}') == 0
        assert server.value('lakelog_topic_readable{topic="silent"}') == 1
