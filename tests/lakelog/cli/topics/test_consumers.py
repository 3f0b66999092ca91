"""`lakelog consumers`, and what other commands print about consumers."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage_engine.clock import SystemClock
from storage_engine.config import BrokerConfig
from storage_engine.topic.readers.consumer_files import group_folder, put_positions
from storage_engine.topic.topics import Topics
from tests.lakelog.cli.conftest import Lakelog, line
from tests.stores import storage_at

NAME = "export tables/orders"


@pytest.fixture
def read_by(lakelog: Lakelog, tmp_path: Path) -> Lakelog:
    """Topic t of two partitions with three old records in partition 0, of which a consumer has read one."""
    configs = ("retention.ms=1000", "retention.respect.consumers=true")
    lakelog("topics", "create", "t", "--partitions", "2", *(part for each in configs for part in ("--config", each)))
    stdin = [line(b"k", b"v", timestamp=1000) for _ in range(3)]
    lakelog("append", "--topic", "t", "--partition", "0", stdin=stdin)
    storage = storage_at(tmp_path / "root")
    state = Topics(storage, BrokerConfig(), SystemClock()).state("t")
    put_positions(storage, state, NAME, "delta export", {0: 1}, 1_700_000_000_000, holds_back=True)
    return lakelog


def test_list_tells_people_and_programs_how_far_each_has_read(read_by: Lakelog) -> None:
    first, second = read_by("consumers", "list", "--format", "jsonl").records
    assert {key: first[key] for key in ("topic", "partition", "consumer", "kind", "offset", "lag", "held_segments")} == {
        "topic": "t", "partition": 0, "consumer": NAME, "kind": "delta export", "offset": 1, "lag": 2,
        "held_segments": 1,
    }  # fmt: skip
    assert first["held_bytes"] > 0
    assert first["held_until_ms"] > 0
    assert (second["partition"], second["lag"], second["held_until_ms"]) == (1, 0, None)
    told = read_by("consumers", "list", "--topic", "t").out
    assert all(word in told for word in (NAME, "2023-11-14 22:13:20.000Z", "1 segment"))


def test_a_topic_without_consumers_tells_nothing(lakelog: Lakelog) -> None:
    lakelog("topics", "create", "t")
    ended = lakelog("consumers", "list")
    assert (ended.status, ended.out, ended.err) == (0, "", "")


def test_a_forgotten_consumer_holds_nothing_back(read_by: Lakelog) -> None:
    assert read_by("consumers", "forget", NAME, "--topic", "t").out == f"topic t: removed consumer {NAME}\n"
    assert read_by("consumers", "list").out == ""
    again = read_by("consumers", "forget", NAME, "--topic", "t")
    assert again.status == 1
    assert f"topic t: has no consumer '{NAME}'" in again.err


def test_a_damaged_file_is_named_by_list_and_verify(read_by: Lakelog, tmp_path: Path) -> None:
    (file,) = storage_at(tmp_path / "root").list(group_folder("t"))
    storage_at(tmp_path / "root").replace(file.key, b"{}")
    listed = read_by("consumers", "list")
    assert listed.status == 4
    assert f"{file.key} at position 2: expected a registered consumer that ends with its digest" in listed.err
    verified = read_by("verify")
    assert verified.status != 0
    assert file.key in verified.out
    assert read_by("consumers", "forget", file.key, "--topic", "t").status == 0
    assert read_by("verify").status == 0


def test_delete_records_names_who_had_not_read_what_went(read_by: Lakelog) -> None:
    ended = read_by("delete-records", "--topic", "t", "--partition", "0", "--offset", "2")
    assert (ended.status, ended.err) == (
        0,
        f"lakelog: topic t, partition 0: {NAME} had not read all of the deleted records\n",
    )
    told = read_by("state", "history", "--topic", "t").out
    assert "partition 0, delete-records, offsets 0 to 1" in told
    assert f"not read by {NAME}" in " ".join(told.split())
