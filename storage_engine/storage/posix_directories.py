"""Creates directories durably, checks them, and removes them."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path


def make_directory(path: Path) -> None:
    """Create a directory and its missing parents. The name of each is durable on return."""
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
        NotADirectoryError: the path does not exist, or is not a directory.
    """
    if not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        with suppress(OSError):  # nothing was written through this descriptor
            os.close(descriptor)


def remove_folder(path: Path, tries: int = 3) -> None:
    """Remove a directory and its contents, even if other processes remove or add files in it meanwhile. If the path is a
    symbolic link to a directory, remove the contents and the link.

    shutil.rmtree is not used. If the close of a descriptor fails, rmtree closes the same number again. By then, another
    thread may have opened a file with this number.

    Args:
        tries: how many attempts are made if other processes add files.
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
            path.unlink() if path.is_symlink() else path.rmdir()
        except OSError as error:
            if error.errno != errno.ENOTEMPTY or tries == 1:
                raise
            remove_folder(path, tries - 1)
