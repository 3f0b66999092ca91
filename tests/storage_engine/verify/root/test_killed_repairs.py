"""Kills `verify --repair` of damaged versions at each call to the storage, and then runs it again."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from storage_engine.config import BrokerConfig
from storage_engine.storage import Storage
from storage_engine.topic.chain.version_files import version_key
from storage_engine.topic.kafka.view import settle
from storage_engine.topic.topics import Topics
from storage_engine.verify.findings import problems
from storage_engine.verify.root.root_check import check_root
from storage_engine.verify.root.root_repair import repair_root
from storage_engine.verify.root.state_repair import repair_documents
from storage_engine.verify.segment_check import Options
from tests.storage_engine.topic.append.test_appending import CLOCK, append, contents, new_topic, rows
from tests.stores import clear_root, copy_root, file_in, storage_at


class Killed(BaseException):
    """The process ends here."""


def kill_at(storage: Storage, number: int) -> list[str]:
    """Let the process end right before one of the writing calls to this storage. The list receives these calls."""
    calls: list[str] = []

    def dying(verb: str, whole: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: object) -> None:
            calls.append(verb)
            if len(calls) > number:
                raise Killed
            whole(*arguments)

        return call

    for verb in ("put_new", "replace", "delete", "sync_names"):
        setattr(storage, verb, dying(verb, getattr(storage, verb)))
    return calls


def copied(whole: Storage, place: Path) -> None:
    if whole.root is not None:
        shutil.copytree(whole.root, place, copy_function=os.link)
    else:
        copy_root(whole, storage_at(place))


def repair(storage: Storage) -> None:
    topics = Topics(storage, BrokerConfig(), CLOCK)
    repair_documents(topics)
    repair_root(topics, check_root(topics, None, None, Options(), threads=1))


@pytest.mark.parametrize(
    "damaged", [pytest.param((2, 3), marks=pytest.mark.posix("the view proves what is restored")), (0, 1)]
)
def test_a_repair_that_was_killed_goes_on(tmp_path: Path, damaged: Iterable[int]) -> None:
    whole = storage_at(tmp_path / "root")
    topics = new_topic(whole)
    for values in (range(8), range(8, 10), range(10, 12)):
        append(topics, rows(*values))
    settle(topics)
    expected = contents(topics)
    for version in damaged:
        file = file_in(whole, version_key("t", version))
        file.write_bytes(file.read_bytes()[:90])
    number = 0
    while True:
        copy = tmp_path / f"copy{number}"
        copied(whole, copy)
        storage = storage_at(copy)
        calls = kill_at(storage, number)
        try:
            repair(storage)
        except Killed:
            repair(storage_at(copy))
        after = Topics(storage_at(copy), BrokerConfig(), CLOCK)
        assert contents(after) == expected, f"killed before call {number}"
        settle(after)
        assert problems(check_root(after, None, None, Options(), threads=1).findings) == []
        clear_root(storage_at(copy))
        if len(calls) <= number:
            break
        number += 1
    assert number > 1
