"""Writes the files and folders of a view on a POSIX file system. Other programs read these files.

Each function writes a whole file under a temporary name and then renames it. No function syncs, because a view is
derived from other files and is rebuilt after a power cut. A crash leaves only files with temporary names. Paths are
strings in this module: a view has thousands of small files, and pathlib is ten times slower. All functions are
thread-safe.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from typing_extensions import Buffer

from storage_engine.errors import StorageError
from storage_engine.storage import temporary_name
from storage_engine.storage.posix_directories import make_directory, remove_folder
from storage_engine.storage.posix_errors import named
from storage_engine.storage.posix_files import open_regular, write_all

_COPY_BYTES = 4 * 1024**2


def show(file: str, place: str, modified_ns: int) -> None:
    """Make `place` a second name of a file. If the file belongs to this user, also set its modification time."""
    with _in_place_of(place) as temporary:
        os.link(file, temporary)
        with suppress(PermissionError):  # the file belongs to another user
            os.utime(temporary, ns=(modified_ns, modified_ns))
    # If both names already belong to one file, rename() does nothing and leaves the temporary name.
    with suppress(OSError):
        os.unlink(temporary)  # noqa: PTH108 - paths are text


def show_copy(file: str, size: int, place: str, modified_ns: int) -> None:
    """Make `place` a copy of the first `size` bytes of a file."""
    with (
        _in_place_of(place) as temporary,
        open(open_regular(file, os.O_RDONLY), "rb", buffering=0) as source,  # noqa: PTH123 - opens a descriptor
    ):
        with _new(temporary) as copy:
            left = size
            while left and (data := source.read(min(left, _COPY_BYTES))):
                write_all(copy, size - left, [data])
                left -= len(data)
        if left:
            raise StorageError(file, f"expected at least {size} bytes, found {size - left}")
        os.utime(temporary, ns=(modified_ns, modified_ns))


def show_bytes(data: Buffer, place: str, modified_ns: int | None) -> None:
    """Make `place` a file with these bytes."""
    with _in_place_of(place) as temporary:
        _write_new(temporary, data)
        if modified_ns is not None:
            os.utime(temporary, ns=(modified_ns, modified_ns))


def show_folders(files: Mapping[str, Buffer], places: Sequence[str]) -> Sequence[int]:
    """Make sibling folders that all contain these files. Returns the positions, in `places`, of the folders that
    already have contents.
    """
    there = []
    parent = places[0].rpartition("/")[0]
    with named(parent):
        template = _new_folder(parent)
    try:
        with named(template):
            for name, data in files.items():
                _write_new(f"{template}/{name}", data)
        for number, place in enumerate(places):
            with named(place):
                temporary = _new_folder(parent)
                try:
                    # A hard link takes half as long as a new file, and a new topic may have many empty partitions.
                    for name, data in files.items():
                        _name_again(f"{template}/{name}", f"{temporary}/{name}", data)
                    os.rename(temporary, place)  # noqa: PTH104
                except OSError as error:
                    remove_folder(Path(temporary))
                    if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                        raise
                    there.append(number)
    finally:
        with suppress(OSError):
            remove_folder(Path(template))
    return there


@contextmanager
def _in_place_of(place: str) -> Iterator[str]:
    """Give the block a temporary path beside `place`. At the end, the file that the block wrote gets the name `place`."""
    with named(place):
        parent = place.rpartition("/")[0]
        if not os.path.isdir(parent):  # noqa: PTH112 - paths are text
            make_directory(Path(parent))
        temporary = f"{parent}/{temporary_name()}"
        try:
            yield temporary
            os.replace(temporary, place)  # noqa: PTH105
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)  # noqa: PTH108
            raise


def _write_new(place: str, data: Buffer) -> None:
    with _new(place) as descriptor:
        write_all(descriptor, 0, [data])


def _name_again(file: str, place: str, data: Buffer) -> None:
    """Make `place` a hard link to a file with these bytes, or a new file if that file cannot have more links."""
    try:
        os.link(file, place)
    except OSError as error:
        if error.errno != errno.EMLINK:
            raise
        _write_new(place, data)


def _new_folder(parent: str) -> str:
    """Make a folder with a random temporary name."""
    folder = f"{parent}/{temporary_name()}"
    try:
        os.mkdir(folder)  # noqa: PTH102 - paths are text
    except FileNotFoundError:
        make_directory(Path(parent))
        os.mkdir(folder)  # noqa: PTH102
    return folder


@contextmanager
def _new(place: str) -> Iterator[int]:
    """Create a file, give its descriptor to the block, and close it at the end."""
    descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
