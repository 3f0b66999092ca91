"""Dumps one file of a log, of any kind. As in Kafka's tool, only the file's name determines the kind.

The contents of most files do not show their kind. If the user gives a whole directory, the directory can contain files
that do not belong to a log. Such a file is an error, but the other files are still dumped.
"""

from __future__ import annotations

from collections.abc import Iterator

from lakelog.dump.index_files import dump_index, dump_time_index
from lakelog.dump.lines import DumpOptions, encoded
from lakelog.dump.log_file import SNAPSHOT_OF_METADATA, dump_log
from lakelog.dump.mismatches import Mismatches
from lakelog.dump.reading.dumped_file import DumpedFile
from lakelog.dump.small_files import dump_snapshot, dump_text, dump_transaction_index
from storage_engine.errors import LogError
from storage_engine.log.checkpoint import META_PROPERTIES, PARTITION_METADATA
from storage_engine.log.filenames import INDEX, LOG, SNAPSHOT, TIME_INDEX, TRANSACTION_INDEX

_CHECKPOINT = "-checkpoint"
_SUFFIXES = (LOG, INDEX, TIME_INDEX, TRANSACTION_INDEX, SNAPSHOT, SNAPSHOT_OF_METADATA)


def dump_file(file: DumpedFile, wanted: DumpOptions, findings: Mismatches) -> Iterator[bytes]:
    """The lines of a file. Each piece consists of whole lines. Contradictions are added to `findings`.

    Raises:
        CorruptionError: the file is damaged. The error is raised after the last line that could be made.
        NotFoundError, StorageError: the file, or the .log that an index belongs to, cannot be read.
        LogError: the file is not a file of a log.
    """
    name = file.path.name
    if not wanted.jsonl:
        yield encoded(f"Dumping {file.name}\n")
    if name in (PARTITION_METADATA, META_PROPERTIES) or name.endswith(_CHECKPOINT):
        yield from dump_text(file, wanted)
        return
    suffix = next((each for each in _SUFFIXES if name.endswith(each)), None)
    match suffix:
        case ".log" | ".checkpoint":
            yield from dump_log(file, wanted, findings)
        case ".index":
            yield from dump_index(file, wanted, findings)
        case ".timeindex":
            yield from dump_time_index(file, wanted, findings)
        case ".txnindex":
            yield from dump_transaction_index(file, wanted)
        case ".snapshot":
            yield from dump_snapshot(file, wanted)
        case _:
            raise LogError(
                file.name, f"ignoring unknown file: expected a name that ends in {', '.join(_SUFFIXES)} or {_CHECKPOINT}",
                "Name a file of a Kafka log directory.",
            )  # fmt: skip
