"""Copies the bytes of a planned append into the files of a topic.

A publisher executes an append plan. The publisher copies the staged runs in order, checks each batch against its CRC,
writes the base offset and the leader epoch into each batch, and writes the index entries. When `publish` returns,
each .log that the publisher wrote is durable. Readers see the new bytes only after the commit. There are three
publishers:

AppendingPublisher   Used if files of the storage can grow. Threads of this process append to .log files, which remain
                     open for the next publish. A .log is written only through the descriptor that created it. If there
                     are more of these files than the process is allowed to keep open, the publisher closes some of them
                     permanently, as soon as they are durable. The next publish begins a new segment in the partitions
                     of the closed files.
NewFilesPublisher    Used if files cannot grow. Threads of this process write only new files. A small active segment is
                     written again together with the new batches, whichever process wrote the segment.
pipeline.ingest.spark_publisher
                     Used if one process is too slow. The tasks of a Spark job write only new files.

No file name is used twice, and no position of a file is ever written with two different values. When a thread or task
writes a new file, the file's name is made from the base offset, the version of the plan, and a random token of the
attempt. An attempt can fail, be repeated, or run at the same time as another attempt. Such an attempt leaves only
files that no version names. Index files are not synced, and not left open: they can be rebuilt, and readers check
them.
"""

from __future__ import annotations

from storage_engine.storage import Storage
from storage_engine.topic.append.appending_publisher import AppendingPublisher
from storage_engine.topic.append.new_files_publisher import NewFilesPublisher
from storage_engine.topic.append.publishing import Publisher


def publisher_for(storage: Storage) -> Publisher:
    """The publisher for one process on this storage."""
    return AppendingPublisher(storage, storage.growing) if storage.growing is not None else NewFilesPublisher(storage)
