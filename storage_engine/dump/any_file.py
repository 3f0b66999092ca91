"""One file of a log, of whatever kind: its name alone says which, as in Kafka's tool.

Nothing inside of most of them would tell. Files that are not of a log, as whoever names a whole directory meets them, end
in an error of their own that stops no other.
"""

from __future__ import annotations

from collections.abc import Iterator

from storage_engine.checkpoint import META_PROPERTIES, PARTITION_METADATA
from storage_engine.dump.dumped_file import DumpedFile
from storage_engine.dump.findings import Findings
from storage_engine.dump.index_files import dump_index, dump_time_index
from storage_engine.dump.lines import Wanted, encoded
from storage_engine.dump.log_file import dump_log
from storage_engine.dump.small_files import dump_snapshot, dump_text, dump_transaction_index
from storage_engine.errors import LogError
from storage_engine.log.filenames import INDEX, LOG, SNAPSHOT, TIME_INDEX, TRANSACTION_INDEX

_CHECKPOINT = "-checkpoint"
_SUFFIXES = (LOG, INDEX, TIME_INDEX, TRANSACTION_INDEX, SNAPSHOT)


def dump_file(file: DumpedFile, wanted: Wanted, findings: Findings) -> Iterator[bytes]:
    """What a file holds, in pieces of whole lines; what is found in it besides goes to `findings`.

    Raises:
        CorruptionError: behind the last line that could be made of a damaged file.
        NotFoundError, StorageError: it, or the .log that an index belongs to, cannot be read.
        LogError: it is none of a log's files.
    """
    name = file.path.name
    if not wanted.jsonl:
        yield encoded(f"Dumping {file.name}\n")
    if name in (PARTITION_METADATA, META_PROPERTIES) or name.endswith(_CHECKPOINT):
        yield from dump_text(file, wanted)
        return
    suffix = next((each for each in _SUFFIXES if name.endswith(each)), None)
    match suffix:
        case ".log":
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
                file.name, f"ignoring unknown file: expected one that ends in {', '.join(_SUFFIXES)} or {_CHECKPOINT}",
                "Name a file of a Kafka log directory.",
            )  # fmt: skip
