"""Makes directories durably, checks them, and removes them."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path


def make_directory(path: Path) -> None:
    """Create a directory and its missing parents, each durable in its own parent."""
    if path.is_dir():
        return
    make_directory(path.parent)
    with suppress(FileExistsError):
        path.mkdir()
        sync_directory(path.parent)
    check_directory(path)


def check_directory(path: Path) -> None:
    """
    Raises:
        NotADirectoryError: something else is there, or nothing.
    """
    if not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))


def sync_directory(path: Path) -> None:
    """Make the names in it durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        with suppress(OSError):  # nothing was written through it
            os.close(descriptor)


def remove_folder(path: Path, tries: int = 3) -> None:
    """Remove a directory with all that is in it, which others may be doing, too; or may add to it, a few times.

    shutil.rmtree closes a descriptor again whose close failed, and by then it may be another thread's file.
    """
    with suppress(FileNotFoundError):
        with os.scandir(path) as entries:
            found = list(entries)
        for entry in found:
            if entry.is_dir(follow_symlinks=False):
                remove_folder(Path(entry))
            else:
                with suppress(FileNotFoundError):
                    Path(entry).unlink()
        try:
            path.rmdir()
        except OSError as error:
            if error.errno != errno.ENOTEMPTY or tries == 1:
                raise
            remove_folder(path, tries - 1)
