"""Describes the new segments that compaction and merging make in place of neighbours, before a version names them.

Their files are durable when they are handed on, and do not count until a version of the state names them
(topic.clean.swapping) or, in a plain Kafka directory, they are swapped in. A caller that does not commit the files
deletes them; a process that dies before leaves files that no reader uses.
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
    """Segments made of others of the same partition. Small, and can be pickled.

    topic_id: empty in a plain Kafka directory. files: where they lie. replaced: the segments that were read, neighbours in
    the log. segments: those to take their place.
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
    """What reading a segment needs."""
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
        growing: what its .log holds. group: the segments that it was made of; its time of change is the last one's, as
            Kafka has it. aborted: the aborted transactions of its .txnindex, which is written where there is no state
            to keep them. horizon_ms: the first delete horizon of what it still has to lose, -1 for none.

    Raises:
        StorageError: no file of it is left.
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
    """Delete the files of new segments that are not wanted."""
    for segment in segments:
        for suffix in files.suffixes:
            storage.delete(files.new_key(segment.name, suffix))
