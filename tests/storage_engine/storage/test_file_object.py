"""Files of a storage as file objects: the bytes that Python's own file object returns."""

from __future__ import annotations

import io
import random
from pathlib import Path

import pyarrow as pa

from storage_engine.storage.file_object import ReadableObject
from storage_engine.storage.storage_opening import open_storage


def test_reads_return_the_bytes_that_a_file_returns(tmp_path: Path) -> None:
    chance = random.Random(1)
    data = chance.randbytes(1000)
    storage = open_storage(str(tmp_path))
    storage.put_new("a/file", data)
    ours, plain = ReadableObject(storage, "a/file", len(data)), io.BytesIO(data)
    for _ in range(300):
        whence = chance.choice([io.SEEK_SET, io.SEEK_CUR, io.SEEK_END])
        offset = {io.SEEK_SET: chance.randrange(1200), io.SEEK_CUR: chance.randrange(50), io.SEEK_END: -5}[whence]
        assert ours.seek(offset, whence) == plain.seek(offset, whence)
        length = chance.choice([None, -1, 0, 7, 5000])
        assert ours.read(length) == plain.read(length)
        assert ours.tell() == plain.tell()
    assert pa.PythonFile(ReadableObject(storage, "a/file", len(data)), "r").size() == len(data)
