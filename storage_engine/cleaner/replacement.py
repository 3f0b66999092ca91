"""Describes the result of a compaction or a merge: the new segments, which replace neighbouring segments.

The new files are durable, but no reader uses them yet. Under a root, readers use the new files after a version of the
topic's state names these files (topic.clean.state_swap). In a plain Kafka directory, the new files are renamed, and
then replace the old files. Readers use the new files after the replacement. A caller that does not commit the new
files deletes them. If the process dies before the commit, the new files are never read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from storage_engine.errors import LogError
from storage_engine.log.filenames import INDEX, TIME_INDEX, TRANSACTION_INDEX, SegmentFolder
from storage_engine.log.growing_segment import GrowingSegment
from storage_engine.log.indexes.transaction_index import AbortedTransaction, encode_transaction_index
from storage_engine.log.partition_state import Segment
from storage_engine.log.segment_reader import SegmentFile
from storage_engine.storage import Storage


@dataclass(frozen=True)
class Replacement:
    """New segments, and the segments of the same partition that they replace. Small and picklable.

    topic_id: empty for a plain Kafka directory.
    files: the folder of the segments.
    replaced: the neighbouring segments that were read.
    segments: the new segments.
    """

    topic_id: str
    partition: int
    files: SegmentFolder
    replaced: tuple[Segment, ...]
    segments: tuple[Segment, ...]

    @property
    def bytes_before(self) -> int:
        return sum(segment.size for segment in self.replaced)

    @property
    def bytes_after(self) -> int:
        return sum(segment.size for segment in self.segments)


def file_of(files: SegmentFolder, segment: Segment) -> SegmentFile:
    """The value that readers of a segment need."""
    return SegmentFile(files.key(segment.name, ""), segment.base_offset, segment.size, segment.end_offset)


def finish_segment(
    storage: Storage,
    files: SegmentFolder,
    name: str,
    growing: GrowingSegment,
    group: Sequence[Segment],
    aborted: tuple[AbortedTransaction, ...],
    horizon_ms: int,
) -> Segment:
    """Write the indexes of a new segment, whose .log is durable already.

    Args:
        growing: describes the contents of the .log.
        group: the segments from which the new segment was made. As in Kafka, the new segment gets the modification time
            of the last segment of the group.
        aborted: the aborted transactions of the new segment. In a plain Kafka directory, they are written into the
            .txnindex. Under a root, the state contains them, and there is no .txnindex.
        horizon_ms: the earliest delete horizon of the records and markers that will be deleted later, -1 for none.

    Raises:
        StorageError: the storage refused a call, or failed. After this error, no file of the segment remains.
    """
    growing.seal()
    segment = growing.segment(name, group[-1].modified_ms, aborted, horizon_ms)
    indexes = [(INDEX, growing.offset_index_bytes()), (TIME_INDEX, growing.time_index_bytes())]
    if aborted and TRANSACTION_INDEX in files.suffixes:
        indexes.append((TRANSACTION_INDEX, encode_transaction_index(aborted)))
    try:
        for suffix, data in indexes:
            with storage.new_file(files.new_key(name, suffix)) as index:
                index.write(data)
    except LogError:
        delete_segments(storage, files, [segment])
        raise
    return segment


def delete_segments(storage: Storage, files: SegmentFolder, segments: Sequence[Segment]) -> None:
    """Delete the files of new segments that are not committed."""
    for segment in segments:
        for suffix in files.suffixes:
            storage.delete(files.new_key(segment.name, suffix))
