"""Closing a file if the operating system reports an error, but has freed the descriptor. This can happen on NFS."""

from __future__ import annotations

import errno
import os

import pytest

from storage_engine.errors import StorageUnavailableError
from storage_engine.storage.posix import PosixStorage


@pytest.fixture
def failing_close(monkeypatch):
    """Make os.close close the descriptor and then raise an error; returns the closed descriptors."""
    given: list[int] = []
    close = os.close

    def failing(descriptor: int) -> None:
        given.append(descriptor)
        close(descriptor)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "close", failing)
    return given


def test_a_file_that_cannot_be_closed_is_given_up_once(tmp_path, failing_close) -> None:
    storage = PosixStorage(tmp_path)
    (tmp_path / "data").mkdir()
    file = storage.create("data/a")
    file.write_at(0, [b"synced"])
    failing_close.clear()  # of folders that were synced
    file.close()
    file.close()
    assert len(failing_close) == 1
    assert storage.read("data/a") == b"synced"


def test_a_file_that_is_not_synced_and_cannot_be_closed_may_have_lost_bytes(tmp_path, failing_close) -> None:
    file = PosixStorage(tmp_path).new_file("staging/a", durable=False)
    file.write(b"written, perhaps")
    with pytest.raises(StorageUnavailableError, match="staging/a"):
        file.close()
    assert len(failing_close) == 1
    assert not (tmp_path / "staging" / "a").exists()


def test_a_lock_whose_file_cannot_be_closed_is_free_again(tmp_path, failing_close) -> None:
    storage = PosixStorage(tmp_path)
    with storage.hold_exclusive(".lock"):
        failing_close.clear()
    assert len(failing_close) == 1
    with storage.hold_exclusive(".lock"):
        pass


def test_a_folder_is_removed_without_closing_anything_twice(tmp_path, failing_close) -> None:
    inner = tmp_path / "folder" / "inner"
    inner.mkdir(parents=True)
    (inner / "file").write_text("")
    (tmp_path / "folder" / "link").symlink_to(inner)
    PosixStorage(tmp_path).remove_folder("folder")
    assert list(tmp_path.iterdir()) == []
    assert len(failing_close) == len(set(failing_close)), "a number that another file may have by now was closed"
