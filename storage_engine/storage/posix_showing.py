"""Implements the verbs that show a view on a POSIX file system: files and folders that other programs read.

Each verb replaces a whole file, by a temporary name beside it and a rename. No verb syncs, because a view is derived
and is made again after a power cut. Files left by a crash have a temporary name. Paths are texts: a view has thousands
of small files, and a Path takes ten times as long. Any thread may call anything.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from typing_extensions import Buffer

from storage_engine.errors import StorageError
from storage_engine.storage import TEMPORARY
from storage_engine.storage.posix_directories import make_directory, remove_folder
from storage_engine.storage.posix_errors import named
from storage_engine.storage.posix_files import open_regular, write_all

_COPY_BYTES = 4 * 1024**2


def show(file: str, place: str, modified_ns: int) -> None:
    """Let `place` be a second name of a file."""
    with _in_place_of(place) as temporary:
        os.link(file, temporary)
        with suppress(PermissionError):  # another user's file
            os.utime(temporary, ns=(modified_ns, modified_ns))
    # Renaming one name of a file over another name of the same file leaves both.
    with suppress(OSError):
        os.unlink(temporary)  # noqa: PTH108 - paths are texts


def show_copy(file: str, size: int, place: str, modified_ns: int) -> None:
    """Let `place` be a copy of the first `size` bytes of a file."""
    with (
        _in_place_of(place) as temporary,
        open(open_regular(file, os.O_RDONLY), "rb", buffering=0) as source,  # noqa: PTH123 - a descriptor
    ):
        with _new(temporary) as copy:
            left = size
            while left and (data := source.read(min(left, _COPY_BYTES))):
                write_all(copy, size - left, [data])
                left -= len(data)
        if left:
            raise StorageError(file, f"ends {left} bytes before the {size} that are wanted of it")
        os.utime(temporary, ns=(modified_ns, modified_ns))


def show_bytes(data: Buffer, place: str, modified_ns: int | None) -> None:
    """Let `place` be a file with these bytes."""
    with _in_place_of(place) as temporary:
        _write_new(temporary, data)
        if modified_ns is not None:
            os.utime(temporary, ns=(modified_ns, modified_ns))


def show_folders(files: Mapping[str, Buffer], places: Sequence[str]) -> Sequence[int]:
    """Let each of these folders beside one another hold these files; returns the numbers of those that are there already."""
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
                    # A second name costs half of what a new file does, and thousands of partitions are empty at first.
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
    """A temporary name beside a path; what the block makes there takes the path's place."""
    with named(place):
        parent = place.rpartition("/")[0]
        if not os.path.isdir(parent):  # noqa: PTH112 - paths are texts
            make_directory(Path(parent))
        temporary = f"{parent}/{TEMPORARY}{secrets.token_hex(8)}"
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
    """Give a file with these bytes a second name; where it has as many as it may have, a new file does as well."""
    try:
        os.link(file, place)
    except OSError as error:
        if error.errno != errno.EMLINK:
            raise
        _write_new(place, data)


def _new_folder(parent: str) -> str:
    """A folder of a name that nobody gave."""
    folder = f"{parent}/{TEMPORARY}{secrets.token_hex(8)}"
    try:
        os.mkdir(folder)  # noqa: PTH102 - paths are texts
    except FileNotFoundError:
        make_directory(Path(parent))
        os.mkdir(folder)  # noqa: PTH102
    return folder


@contextmanager
def _new(place: str) -> Iterator[int]:
    """The descriptor of a new file."""
    descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
