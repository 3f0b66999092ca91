"""Tests that BoundedFile closes files above the limit and opens them again, but never after `close`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from storage_engine.storage.bounded_files import BoundedFile
from storage_engine.storage.posix import PosixStorage


def test_a_file_that_made_way_is_opened_again_and_a_closed_one_is_not(tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()
    file = BoundedFile(PosixStorage(tmp_path), "t-0/a.index")
    file.write_at(0, [b"one "])
    file.in_use.acquire()
    file.close_for_others()
    file.write_at(4, [b"two "])
    file.sync()
    file.close()
    file.close()
    calls: list[Callable[[], None]] = [lambda: file.write_at(8, [b"three"]), lambda: file.truncate(0), file.sync]
    for call in calls:
        with pytest.raises(ValueError, match=r"t-0/a\.index is closed"):
            call()
    assert (tmp_path / "t-0/a.index").read_bytes() == b"one two "
