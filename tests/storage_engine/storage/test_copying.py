"""Copying between files: by the kernel, and where the kernel cannot."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from storage_engine.errors import NotFoundError, StorageError, StorageFullError
from storage_engine.storage.posix import PosixStorage

SOURCE = bytes(range(256)) * 40_000  # more than is read at once


@pytest.fixture(params=["kernel", "without", "stops"])
def storage(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PosixStorage:
    copy = os.copy_file_range

    def copy_some(source: int, target: int, count: int, start: int, position: int) -> int:
        if request.param == "without" or start > 5_000_000:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        return copy(source, target, min(count, 3_000_000), start, position)

    if request.param != "kernel":
        monkeypatch.setattr(os, "copy_file_range", copy_some)
    storage = PosixStorage(tmp_path)
    storage.put_new("source", SOURCE)
    return storage


def test_bytes_arrive_at_their_position_and_nowhere_else(storage: PosixStorage) -> None:
    file = storage.create("target")
    file.write_at(0, [b"x" * 200])
    file.copy_at(100, "source", 7, 50)
    file.copy_at(1000, "source", 3, len(SOURCE) - 3)
    file.close()
    expected = b"x" * 100 + SOURCE[7:57] + b"x" * 50 + bytes(800) + SOURCE[3:]
    assert storage.read("target") == expected


def test_a_source_that_ends_too_early_or_is_missing_is_an_error(storage: PosixStorage) -> None:
    file = storage.create("target")
    with pytest.raises(StorageError, match=f"source: ends at byte {len(SOURCE)}, expected bytes up to"):
        file.copy_at(0, "source", 10, len(SOURCE))
    with pytest.raises(NotFoundError, match="elsewhere"):
        file.copy_at(0, "elsewhere", 0, 1)
    file.close()


def test_a_full_disk_is_not_taken_for_a_kernel_that_cannot_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    storage = PosixStorage(tmp_path)
    storage.put_new("source", SOURCE)
    file = storage.create("target")
    monkeypatch.setattr(os, "copy_file_range", full)
    with pytest.raises(StorageFullError, match="target"):
        file.copy_at(0, "source", 0, 10)
    file.close()
