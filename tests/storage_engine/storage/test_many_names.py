"""A file system that allows no more hard links of a file, or no more folders in a folder."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from storage_engine.errors import StorageFullError
from storage_engine.storage.posix import PosixStorage

FILES = {"a": b"first", "b": b""}
MOST = 5


def folders(path: Path) -> dict[str, dict[str, bytes]]:
    return {folder.name: {file.name: file.read_bytes() for file in folder.iterdir()} for folder in path.iterdir()}


def test_folders_are_shown_with_files_of_their_own_where_a_file_has_no_more_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def limited(file: str, name: str) -> None:
        if os.stat(file).st_nlink == MOST:  # noqa: PTH116
            raise OSError(errno.EMLINK, os.strerror(errno.EMLINK))
        link(file, name)

    monkeypatch.setattr(os, "link", limited)
    names = [f"log/t-{number}" for number in range(3 * MOST)]
    assert PosixStorage(tmp_path).show_folders(FILES, names) == []
    assert folders(tmp_path / "log") == {f"t-{number}": FILES for number in range(3 * MOST)}


def test_a_folder_that_can_hold_no_more_folders_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir = os.mkdir

    def limited(path: str, mode: int = 0o777) -> None:
        if len(list((tmp_path / "log").iterdir())) == MOST:
            raise OSError(errno.EMLINK, os.strerror(errno.EMLINK))
        mkdir(path, mode)

    (tmp_path / "log").mkdir()
    monkeypatch.setattr(os, "mkdir", limited)
    names = [f"log/t-{number}" for number in range(3 * MOST)]
    with pytest.raises(StorageFullError, match=r"log/t-4: Too many links\. .*: spread the topics over several roots"):
        PosixStorage(tmp_path).show_folders(FILES, names)
    assert folders(tmp_path / "log") == {f"t-{number}": FILES for number in range(MOST - 1)}
