"""Closing a file whose descriptor the operating system gives up with an error, as NFS does."""

from __future__ import annotations

import errno
import os

import pytest

from storage_engine.storage.posix import PosixStorage


@pytest.fixture
def failing_close(monkeypatch):
    """os.close takes place and fails; returns the descriptors that it was given."""
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
