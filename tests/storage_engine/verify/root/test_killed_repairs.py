"""Kills `verify --repair` of damaged versions at each call to the storage, and then runs it again."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest

from storage_engine.config import BrokerConfig
from storage_engine.storage.posix import PosixStorage
from storage_engine.topic.chain.state_chain import version_key
from storage_engine.topic.kafka.view import settle
from storage_engine.topic.topics import Topics
from storage_engine.verify.findings import problems
from storage_engine.verify.root.root_check import check_root
from storage_engine.verify.root.root_repair import repair_root
from storage_engine.verify.root.state_repair import repair_documents
from storage_engine.verify.segment_check import Options
from tests.storage_engine.topic.append.test_appending import CLOCK, append, contents, new_topic, rows


class Killed(BaseException):
    """The process ends here."""


class KilledAt(PosixStorage):
    """Dies right before one of its writing calls. calls: how many there were."""

    def __init__(self, root: Path, number: int) -> None:
        super().__init__(root)
        self.calls = 0
        self._number = number

    def _call(self) -> None:
        self.calls += 1
        if self.calls > self._number:
            raise Killed

    def put_new(self, key: str, data) -> None:
        self._call()
        super().put_new(key, data)

    def replace(self, key: str, data) -> None:
        self._call()
        super().replace(key, data)

    def delete(self, key: str) -> None:
        self._call()
        super().delete(key)

    def sync_names(self, folder: str) -> None:
        self._call()
        super().sync_names(folder)


def repair(storage: PosixStorage) -> None:
    topics = Topics(storage, BrokerConfig(), CLOCK)
    repair_documents(topics)
    repair_root(topics, check_root(topics, None, None, Options(), threads=1))


@pytest.mark.parametrize("damaged", [(2, 3), (0, 1)])
def test_a_repair_that_was_killed_goes_on(tmp_path: Path, damaged: Iterable[int]) -> None:
    whole = PosixStorage(tmp_path / "root")
    topics = new_topic(whole)
    for values in (range(8), range(8, 10), range(10, 12)):
        append(topics, rows(*values))
    settle(topics)
    expected = contents(topics)
    for version in damaged:
        path = whole.path(version_key("t", version))
        path.write_bytes(path.read_bytes()[:90])
    number = 0
    while True:
        copy = Path(shutil.copytree(whole.root, tmp_path / f"copy{number}", copy_function=os.link))
        storage = KilledAt(copy, number)
        try:
            repair(storage)
        except Killed:
            again = PosixStorage(copy)
            repair(again)
        after = Topics(PosixStorage(copy), BrokerConfig(), CLOCK)
        assert contents(after) == expected, f"killed before call {number}"
        settle(after)
        assert problems(check_root(after, None, None, Options(), threads=1).findings) == []
        shutil.rmtree(copy)
        if storage.calls <= number:
            break
        number += 1
    assert number > 1
