"""Runs every command of lakelog once on a root in a store, and compares what it prints or what it did."""

from __future__ import annotations

import base64
import json
import re
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer

import lakelog
from lakelog import cli
from lakelog.cli.app import app
from storage_engine.clock import SystemClock
from storage_engine.config import BrokerConfig
from storage_engine.storage.storage_opening import open_storage
from storage_engine.topic.append.transaction_writer import TransactionWriter
from storage_engine.topic.chain import transaction_files
from storage_engine.topic.readers.consumer_files import put_positions
from storage_engine.topic.topics import Topics
from tests.in_process import Ended, run_in_process
from tests.lakelog.cli.conftest import line
from tests.lakelog.ui.processes import serving
from tests.roots.stored_roots import stored_root
from tests.storage_engine.record_tables import Row, to_table

__all__ = ["stored_root"]

LOCAL = {
    "dump": "reads local files",
    "log-manager": "manages local directories of Kafka",
    "recover": "repairs local directories of Kafka",
}
"""The commands that have no option --root."""
KEYS = ["a", "b", "a", "c", "a", "b"]


def commands_of(command: object, words: str = "") -> Iterator[str]:
    """The names of a command's commands; its own name if it has none."""
    inner: dict[str, object] = getattr(command, "commands", {})
    if not inner:
        yield words.strip()
    for name, each in inner.items():
        yield from commands_of(each, f"{words} {name}")


class Commands:
    """Runs commands on a root, and notes their names."""

    def __init__(self, known: set[str]) -> None:
        self._known = known
        self.run: set[str] = set()

    def __call__(self, text: str, *, stdin: bytes = b"") -> str:
        """What a command prints. `text`: the command and its arguments that contain no space."""
        ended = self._ended(text.split(), stdin)
        assert ended.status == 0, (text, ended)
        return ended.out

    def refused(self, text: str) -> str:
        """The error of a command that is not possible on a store."""
        ended = self._ended(text.split())
        assert (ended.status, ended.out) == (1, "")
        return ended.err

    def _ended(self, words: Sequence[str], stdin: bytes = b"") -> Ended:
        self.run |= {" ".join(words[:length]) for length in (1, 2)} & self._known
        return run_in_process(cli.main, ["lakelog", *words], stdin)


@pytest.fixture
def run(stored_root: str, monkeypatch: pytest.MonkeyPatch) -> Commands:
    monkeypatch.setenv("LAKELOG_ROOT", stored_root)
    return Commands(set(commands_of(typer.main.get_command(app))))


def read(run: Commands, topic: str, arguments: str = "") -> list[tuple[int, int]]:
    """The partition and offset of each record that `lakelog read` prints."""
    records: list[dict[str, Any]] = [json.loads(each) for each in run(f"read --topic {topic} {arguments}").splitlines()]
    return [(each["partition"], each["offset"]) for each in records]


def test_every_command_works_on_a_root_in_a_store(run: Commands, stored_root: str, tmp_path: Path) -> None:
    topics = Topics(open_storage(stored_root), BrokerConfig(), SystemClock())
    make_topics(run)
    read_and_follow(run, topics)
    clean(run)
    copy(run, tmp_path)
    transact(run, topics)
    look(run, stored_root, tmp_path)
    run("topics delete copied")
    assert run("topics list").split() == ["orders", "perf"]
    assert lakelog.open(stored_root).verify(deep=True).problems == []
    assert run.run == set(commands_of(typer.main.get_command(app))) - set(LOCAL)


def make_topics(run: Commands) -> None:
    """The topic orders has a segment for each record."""
    run("topics create orders --partitions 2 --config cleanup.policy=compact --config segment.ms=1")
    for number, key in enumerate(KEYS):
        run("append --topic orders --partition 0", stdin=line(key.encode(), b"v", timestamp=5 + 10 * number).encode())
    assert run("offsets --topic orders") == "orders:0:6\norders:1:0\n"
    run("topics alter orders --partitions 3")
    assert json.loads(run("topics describe orders --format json"))["partitions"][2]["partition"] == 2
    assert run("topics list") == "orders\n"
    run("broker alter --config log.retention.hours=24")
    assert "log.retention.hours" in run("broker describe")
    run("configs --alter --topic orders --add-config max.message.bytes=3000000")
    assert "max.message.bytes=3000000" in run("configs --describe --topic orders")
    assigned = json.loads(run("topics reassign --topic orders --brokers 1"))
    assert [each["partition"] for each in assigned["partitions"]] == [0, 1, 2]


def read_and_follow(run: Commands, topics: Topics) -> None:
    assert read(run, "orders") == [(0, offset) for offset in range(6)]
    assert read(run, "orders", "--group g --commit --max 2") == [(0, 0), (0, 1)]
    assert run("groups list").split() == ["g"]
    assert re.search(r"^g +orders +0 +2 +6 +4 ", run("groups describe --group g"), re.MULTILINE)
    run("groups reset-offsets --group g --topic orders --to-offset 5 --execute")
    assert read(run, "orders", "--group g") == [(0, 5)]
    run("groups delete --group g")
    put_positions(topics.storage, topics.state("orders"), "etl", "delta export", {0: 1}, 1_700_000_000_000)
    assert "etl" in run("consumers list")
    assert run("consumers forget etl --topic orders") == "topic orders: removed consumer etl\n"


def clean(run: Commands) -> None:
    assert "orders" in run("plan")
    run("compact --topic orders --force")
    assert read(run, "orders") == [(0, 1), (0, 3), (0, 4), (0, 5)]
    assert "merge:" in run("merge --topic orders")
    assert run("retain --topic orders") == "retain: there is nothing to delete in 1 topic\n"
    run("delete-records --topic orders --partition 0 --offset 4")
    assert read(run, "orders") == [(0, 4), (0, 5)]
    assert "created with 2 partitions" in run("state history --topic orders")
    assert "deleted 0 versions" in run("state prune --topic orders")
    assert "swept 0 files" in run("state sweep --topic orders")
    assert read(run, "orders") == [(0, 4), (0, 5)]


def copy(run: Commands, tmp_path: Path) -> None:
    run(f"topics export {tmp_path}/kafka --topic orders")
    (tmp_path / "kafka/orders-0").rename(tmp_path / "kafka/copied-0")
    starts = tmp_path / "kafka/log-start-offset-checkpoint"
    starts.write_text(starts.read_text().replace("orders 0 ", "copied 0 "))
    run(f"topics import {tmp_path}/kafka --topic copied")
    assert read(run, "copied") == [(0, 4), (0, 5)]


def transact(run: Commands, topics: Topics) -> None:
    def begin() -> int:
        transaction = TransactionWriter(topics)
        transaction.append("copied", to_table([Row(b"k", b"within", timestamp=2)]))
        assert transaction.producer_id is not None
        return transaction.producer_id

    first, second = begin(), begin()
    assert str(first) in run("transactions list")
    run(f"transactions abort {first}")
    transaction_files.decide(topics.storage, topics.clock, second, committed=True)
    topics.storage.replace(f"meta/@transactions/{second:020d}.ended.json", b"{}")
    run(f"transactions decide {second} commit")
    run("transactions finish")
    run("append --transactional", stdin=line(b"k", b"at the end", topic="copied").encode())
    values = [base64.b64decode(json.loads(each)["value"]) for each in run("read --topic copied").splitlines()]
    assert values == [b"v", b"v", b"within", b"at the end"]


def look(run: Commands, root: str, tmp_path: Path) -> None:
    run("topics create perf")
    run("perf produce --topic perf --num-records 20 --record-size 10 --throughput -1")
    assert " 20, " in run("perf consume --topic perf --num-records 20 --hide-header")
    (broker,) = json.loads(run("log-dirs --describe").splitlines()[-1])["brokers"]
    assert [each["partition"] for each in broker["logDirs"][0]["partitions"]] == [
        "copied-0", "orders-0", "orders-1", "orders-2", "perf-0",
    ]  # fmt: skip
    assert "orders" in run("metrics")
    (tmp_path / "rules.yaml").write_text("disk.free.percent:\n")
    assert run(f"check --rules {tmp_path}/rules.yaml").startswith("LAKELOG OK")
    assert "is new" not in run("schema check orders --schema order")
    assert "recorded model Order" in run("schema accept orders --schema order")
    assert "amount" in run("schema show orders")
    assert "there is no table" in run.refused("prove --topic orders --schema order")
    assert "put-if-absent" in run("doctor")
    run(f"report --out {tmp_path}/report.html")
    assert "orders" in (tmp_path / "report.html").read_text()
    assert "is not possible on this kind of storage" in run.refused("topics settle orders")
    assert "nothing is wrong" in run("verify --deep")
    run.run.add("ui")
    with serving(root) as (_, address), urllib.request.urlopen(address, timeout=30) as page:
        assert b"orders" in page.read()
