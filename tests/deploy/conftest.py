"""A host on which the files of deploy/ can run: a root with a topic, the settings of README.md, and the checkout."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import lakelog
from tests.docs.commands import Machine
from tests.docs.pages import PROJECT, blocks
from tests.sample_orders import as_json, orders

ORDERS = 100


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path)
    monkeypatch.chdir(tmp_path)
    for folder in ("etc/lakelog", "etc/kafka", "etc/systemd/system", "etc/cron.d", "opt", "var/lib/node_exporter"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    (tmp_path / "opt/lakelog").symlink_to(PROJECT)
    (settings,) = blocks("README.md", "yaml")
    (tmp_path / "etc/lakelog/orders.yaml").write_text(made.local(settings.text))
    root = lakelog.open(tmp_path / "mnt/shared/lakelog", create=True)
    root.create_topic("orders", partitions=8, config={"cleanup.policy": "compact"})
    root.topic("orders").append(
        [{"key": json.loads(line)["id"].encode(), "value": line.encode()} for line in as_json(orders(0, ORDERS))]
    )
    return made
