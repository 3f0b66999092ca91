"""Reads and damages the checkpoints of Spark's streams. The checkpoints are on the kind of storage that the tests use
(tests.stores).
"""

from __future__ import annotations

from storage_engine.storage import Storage
from tests.stores import delete_folder, files_below


def completed_batches(storage: Storage, checkpoint: str) -> set[int]:
    """The numbers of the batches that Spark has noted as done."""
    folder = f"{checkpoint}/commits/"
    names = [key.removeprefix(folder) for key in files_below(storage, folder)]
    return {int(name) for name in names if name[:1].isdecimal()}


def lose(storage: Storage, checkpoint: str, *parts: str) -> None:
    """Delete files and folders of a checkpoint, each file with the checksum that Hadoop keeps beside local files."""
    for part in parts:
        path = f"{checkpoint}/{part}"
        folder, _, name = path.rpartition("/")
        files = files_below(storage, f"{folder}/")
        if path in files:
            storage.delete(path)
            storage.delete(f"{folder}/.{name}.crc")
        else:
            assert any(file.startswith(f"{path}/") for file in files), f"{path} does not exist"
            delete_folder(storage, f"{path}/")
