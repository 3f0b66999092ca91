"""Settling updates the view log/. Tests that settling changes nothing in a folder log/ that is not the view of the
root. Examples: the log/ belongs to a Kafka broker, or the folder around the log/ is not a root.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from storage_engine.clock import ManualClock
from storage_engine.config import BrokerConfig
from storage_engine.errors import StateError
from storage_engine.storage.posix import PosixStorage
from storage_engine.topic.kafka.view import settle
from storage_engine.topic.kafka.view_folder import hold_lock
from storage_engine.topic.topics import Topics
from storage_engine.verify.findings import Kind, problems
from storage_engine.verify.root.root_check import check_root
from storage_engine.verify.root.root_repair import repair_root
from storage_engine.verify.segment_check import Options
from tests.storage_engine.verify.directories import GOLDEN, contents


@pytest.fixture
def topics(tmp_path) -> Topics:
    return Topics(PosixStorage(tmp_path / "root"), BrokerConfig(), ManualClock(1_700_000_000_000))


@pytest.fixture
def log(topics: Topics, tmp_path) -> Path:
    """A Kafka broker's log directory, where the root's view would be."""
    return Path(shutil.copytree(GOLDEN / "compact.before/data", tmp_path / "root/log"))


def test_a_log_that_is_not_ours_is_refused_and_left_alone(topics: Topics, log: Path) -> None:
    before = contents(log)
    topics.create("t", 1, {})
    for work in (lambda: settle(topics), lambda: hold_lock(topics.storage)):
        with pytest.raises(StateError, match="files or folders that Lakelog did not make") as refused:
            work()
        assert str(log) in str(refused.value)
    assert contents(log) == before


def test_beside_no_root_nothing_is_settled(topics: Topics, log: Path) -> None:
    before = contents(log)
    settle(topics)
    assert contents(log) == before
    assert [path.name for path in log.parent.iterdir()] == ["log"]


def test_verify_names_it_once_and_repair_leaves_it_alone(topics: Topics, log: Path) -> None:
    before = contents(log)
    topics.create("t", 1, {})
    checked = check_root(topics, None, None, Options(), threads=1)
    (found,) = problems(checked.findings)
    assert (found.kind, found.file, found.expected) == (Kind.VIEW, str(log), "the view of this root")
    with pytest.raises(StateError):
        repair_root(topics, checked)
    assert contents(log) == before


def test_it_is_settled_once_it_was_moved_away(topics: Topics, log: Path) -> None:
    topics.create("t", 1, {})
    log.rename(log.with_name("broker"))
    settle(topics)
    assert problems(check_root(topics, None, None, Options(), threads=1).findings) == []


def test_our_own_view_stays_ours_whatever_becomes_of_it(topics: Topics, tmp_path) -> None:
    log = tmp_path / "root/log"
    topics.create("t", 1, {})
    settle(topics)
    (log / "meta.properties").write_text("#\n#Sun Nov 22 12:00:00 UTC 2026\n")
    (log / "stray").write_text("")
    settle(topics)
    assert problems(check_root(topics, None, None, Options(), threads=1).findings) == []
    shutil.rmtree(log)
    settle(topics)
    assert (log / "t-0").is_dir()


def test_a_view_that_was_made_before_there_was_a_record_is_known(topics: Topics, tmp_path) -> None:
    topics.create("t", 1, {})
    settle(topics)
    shutil.rmtree(tmp_path / "root/meta/@view")
    topics.create("u", 1, {})
    settle(topics)
    assert (tmp_path / "root/log/u-0").is_dir()
    assert (tmp_path / "root/meta/@view/log.json").is_file()
