"""Topics that do not exist, and names that no topic can have. Every command and job reports a wrong topic name, and
changes nothing.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bad_input.conftest import Lakelog, RunJob, contents, said
from tests.lakelog.cli.conftest import line
from tests.stores import root_at

COMMANDS = [
    ("topics", "describe", "{}"),
    ("topics", "alter", "{}", "--partitions", "3"),
    ("topics", "delete", "{}"),
    ("topics", "settle", "{}"),
    ("append", "--topic", "{}"),
    ("read", "--topic", "{}"),
    ("offsets", "--topic", "{}"),
]
INGEST = ("ingest.source.format=rate", "ingest.value=string(value)")
JOBS = {
    "ingest": ("ingest.topic={}", *INGEST),
    "export": ("export.topic={}",),
    "retention": ("retention.topics={}",),
    "compaction": ("compaction.topics={}",),
    "maintenance": ("maintenance.topics={}",),
}


@pytest.fixture
def orders(lakelog: Lakelog, root: Path) -> Lakelog:
    """A root in which the topic `orders` has a record."""
    lakelog("topics", "create", "orders")
    lakelog("append", "--topic", "orders", stdin=[line(b"k", b"v")])
    return lakelog


def settings(name: str, topic: str) -> list[str]:
    return [word for setting in JOBS[name] for word in ("--set", setting.format(topic))]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_command_names_the_topic_that_is_not_there(orders: Lakelog, root: Path, command: tuple[str, ...]) -> None:
    before = contents(root)
    ended = orders(*(word.format("order") for word in command), stdin=[line(b"k", b"v")])
    assert f"topic order: not found under {root_at(root)}. `lakelog topics list` shows" in said(ended)
    assert contents(root) == before


@pytest.mark.parametrize("name", sorted(JOBS))
def test_a_job_names_the_topic_that_is_not_there(
    orders: Lakelog, root: Path, job: RunJob, name: str, request: pytest.FixtureRequest
) -> None:
    if name == "ingest":
        request.getfixturevalue("spark")
    before = contents(root)
    message = said(job(name, *settings(name, "order")))
    expected = "do not describe the topic order" if name == "ingest" else f"topic order: not found under {root}."
    assert expected in message
    assert contents(root) == before


def test_an_ingest_suggests_the_topic_that_may_be_meant(
    orders: Lakelog, job: RunJob, tmp_path: Path, spark: object
) -> None:
    conf = tmp_path / "conf.yaml"
    conf.write_text("topics: {orders: {}, payments: {}}\n")
    message = said(job("ingest", "--conf", str(conf), *settings("ingest", "order")))
    assert "the settings do not describe the topic order. Did you mean orders?" in message


def test_a_deleted_topic_is_not_there(orders: Lakelog, root: Path, job: RunJob) -> None:
    orders("topics", "delete", "orders")
    for command in COMMANDS:
        said(orders(*(word.format("orders") for word in command), stdin=[line(b"k", b"v")]), "topic orders: ")
    said(job("export", *settings("export", "orders")), "topic orders: not found")


REFUSED = {
    "": "may not be empty",
    ".": "may not be called '.'",
    "..": "may not be called '..'",
    "../x": "'/' at position 2",
    "a/b": "'/' at position 1",
    "a b": "' ' at position 1",
    "x\ny": r"'\n' at position 1",
    "é": "'é' at position 0",
    "\udcff": r"'\udcff' at position 0",
    "x" * 250: "at most 249 characters, found 250",
}


@pytest.mark.parametrize("name", REFUSED, ids=ascii)
def test_a_name_that_kafka_refuses_is_refused_everywhere(
    orders: Lakelog, root: Path, job: RunJob, tmp_path: Path, name: str
) -> None:
    everything = sorted(tmp_path.rglob("*"))
    for command in [("topics", "create", "{}"), *COMMANDS]:
        assert REFUSED[name] in said(orders(*(word.format(name) for word in command)))
    for each in ("retention", "compaction", "maintenance"):
        assert REFUSED[name] in said(job(each, "--topic", name))
    for each in JOBS:
        ended = job(each, *settings(each, name))
        assert (ended.status, ended.out) == (2, "")
        assert ended.err.startswith(f"{each}: --set {settings(each, name)[1].split('=')[0]}: ")
        assert (
            "found U+DCFF at position 0; settings may not contain this character" if name == "\udcff" else REFUSED[name]
        ) in ended.err
    assert sorted(tmp_path.rglob("*")) == everything


def test_names_that_collide_in_kafkas_metrics_alone_are_two_topics(orders: Lakelog) -> None:
    for name in ("a.b", "a_b"):
        assert orders("topics", "create", name).status == 0
    orders("append", "--topic", "a.b", stdin=[line(b"k", b"v")])
    assert orders("offsets", "--topic", "a.b").out == "a.b:0:1\n"
    assert orders("offsets", "--topic", "a_b").out == "a_b:0:0\n"


@pytest.mark.posix("makes a file in a folder of the root")
@pytest.mark.parametrize("stray", ["lost+found", "a b", ".DS_Store", "²", "~", "\U0010ffff"])
def test_what_is_no_topic_in_meta_is_passed_over(orders: Lakelog, root: Path, stray: str) -> None:
    for folder in (root / "meta" / stray, root / "meta/orders" / stray):
        folder.mkdir()
        (folder / f"{stray}.json").write_bytes(b"")
    (root / "meta/orders" / f"{stray}.json").write_bytes(b"")
    assert orders("topics", "list").out == "orders\n"
    assert orders("topics", "settle").status == 0
    assert orders("read", "--topic", "orders").status == 0
