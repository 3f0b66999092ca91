"""Exports topics as a plain Kafka log directory, on which a broker can run. The files are copies, so a broker cannot
change the root.

    <directory>/
      orders-0/
        00000000000000052110.log        the committed bytes, with leader epoch 0 in each batch header (see keep_epochs)
        00000000000000052110.index .timeindex .txnindex
        00000000000000052110.snapshot   the producers at this offset; one file for each segment except the first,
                                        and one for the log end
        leader-epoch-checkpoint  partition.metadata
      recovery-point-offset-checkpoint  replication-offset-checkpoint
      log-start-offset-checkpoint       cleaner-offset-checkpoint
      meta.properties                   with a new cluster id and a new directory id
      .kafka_cleanshutdown              shows a broker that it has nothing to recover

A new cluster begins with leader epoch 0 and truncates logs with later epochs. So the batches get epoch 0; the CRC
does not cover the epoch. The .index and .timeindex files are derived during the copy, and each CRC is checked, so
damage is not exported. A .snapshot is copied from the view. If the view does not have the .snapshot, the export
derives it. The view's snapshot is better, because it was made at the segment roll. Later, compaction may have deleted
the first records of a transaction that was open at the roll.

A decided transaction gets its missing markers before its topic is copied, because a broker can read decisions only
from markers. An open transaction is exported as open, and the cluster's operator must abort it.

The exported directory gets its final name only when it is complete. If cleaning deletes a file during the export, the
export continues with the newest state.
"""

from __future__ import annotations

from collections.abc import Sequence

from storage_engine.errors import NotFoundError
from storage_engine.log.checkpoint import (
    CLEAN_SHUTDOWN,
    LEADER_EPOCHS,
    META_PROPERTIES,
    PARTITION_METADATA,
    MetaProperties,
    encode_leader_epochs,
    encode_meta_properties,
    encode_partition_metadata,
)
from storage_engine.log.filenames import INDEX, LOG, SNAPSHOT, TIME_INDEX, TRANSACTION_INDEX, offset_name
from storage_engine.log.growing_segment import GrowingSegment
from storage_engine.log.indexes.transaction_index import encode_transaction_index
from storage_engine.log.partition_state import LeaderEpoch
from storage_engine.log.producers.producer_snapshot import encode_snapshot
from storage_engine.log.producers.producer_state import Producers
from storage_engine.log.segment_reader import SegmentFile, read_chunks
from storage_engine.progress import NO_PROGRESS, Progress
from storage_engine.record.crc import check_crcs
from storage_engine.record.stamping import stamp_leader_epoch
from storage_engine.storage import Directory, Readable
from storage_engine.storage.read_ahead import read_ahead
from storage_engine.topic.append.transaction_writer import finish_transactions
from storage_engine.topic.chain.topic_state import TopicState
from storage_engine.topic.chain.transaction_files import open_producers, read_begun
from storage_engine.topic.kafka.snapshots import producers_at_start, shown_snapshots
from storage_engine.topic.kafka.view import checkpoints
from storage_engine.topic.readers.reader import segment_file
from storage_engine.topic.topics import Topics
from storage_engine.topic_id import new_topic_id

_FIRST_EPOCH = 0
_MOST_ATTEMPTS = 5
"""How often the export of a topic begins again because cleaning deleted a file."""


def export_topics(
    topics: Topics,
    names: Sequence[str],
    directory: Directory,
    *,
    keep_epochs: bool = False,
    progress: Progress = NO_PROGRESS,
) -> list[TopicState]:
    """Write topics into an empty directory, in the form in which a broker leaves its logs after a clean shutdown.

    Args:
        directory: made by storage.storage_opening.new_directory, so that an incomplete export is never visible under
        its name.
        keep_epochs: do not replace the leader epochs. Such an export can be read, but not used by a new cluster.
        progress: receives the bytes of the segments.

    Returns:
        The state that was exported of each topic.

    Raises:
        UnknownTopicError: a topic does not exist.
        CorruptionError, NotFoundError: a file is missing or does not have the bytes that the state names, or the record
            of an open transaction is damaged.
    """
    for name in names:
        topics.state(name)
    finish_transactions(topics, names)
    states = [topics.state(name) for name in names]
    for producer_id in sorted(set().union(*(open_producers(state) for state in states))):
        read_begun(topics.storage, producer_id)  # with a damaged record its timeout is unknown, so it cannot be aborted
    progress.expect(size=sum(part.size for state in states for part in state.partitions))
    exported = [_export_topic(topics, state, directory, keep_epochs, progress) for state in states]
    fresh = MetaProperties(cluster_id=new_topic_id(), directory_id=new_topic_id())
    files = {META_PROPERTIES: encode_meta_properties(fresh), CLEAN_SHUTDOWN: b""}
    for name, data in (checkpoints(exported) | files).items():
        directory.put_new(name, data)
    return exported


def _export_topic(
    topics: Topics, state: TopicState, directory: Directory, keep_epochs: bool, progress: Progress
) -> TopicState:
    for _ in range(_MOST_ATTEMPTS):
        try:
            for number in range(len(state.partitions)):
                _export_partition(topics, state, number, directory, keep_epochs, progress)
            return state
        except NotFoundError:
            newest = topics.state(state.topic)
            if newest.version == state.version:
                raise
            for number in range(len(state.partitions)):
                directory.remove_folder(f"{state.topic}-{number}")
            state = newest
    raise NotFoundError(
        f"topic {state.topic}", f"cleaning deleted needed files {_MOST_ATTEMPTS} times in a row",
        "Export the topic when no cleaning is running.",
    )  # fmt: skip


def _export_partition(
    topics: Topics, state: TopicState, number: int, directory: Directory, keep_epochs: bool, progress: Progress
) -> None:
    folder = f"{state.topic}-{number}"
    part = state.partitions[number]
    epochs = part.leader_epochs if keep_epochs else (LeaderEpoch(_FIRST_EPOCH, part.log_start_offset),)
    files = {
        PARTITION_METADATA: encode_partition_metadata(state.topic_id),
        LEADER_EPOCHS: encode_leader_epochs(epochs),
    }
    if not part.segments:
        files |= {offset_name(part.log_start_offset) + suffix: b"" for suffix in (LOG, INDEX, TIME_INDEX)}
    interval = topics.config(state).index_interval_bytes
    known = shown_snapshots(topics.storage, state, number)
    derives = len(part.segments) > 1 and part.segments[1].base_offset not in known
    producers = producers_at_start(topics.storage, state, number) if derives else Producers()
    sources = [segment_file(state.topic_id, number, segment) for segment in part.segments]
    reads = read_ahead(topics.storage, [(source.key, source.size) for source in sources])
    for segment, source in zip(part.segments, sources, strict=True):
        name = offset_name(segment.base_offset)
        if segment.base_offset in known:
            producers = Producers(known[segment.base_offset])
        files[name + SNAPSHOT] = encode_snapshot(producers.entries())
        log = f"{folder}/{name}{LOG}"
        indexes = _export_segment(
            reads, source, segment.modified_ms, directory, log, producers, interval, keep_epochs, progress
        )
        files[name + INDEX] = indexes.offset_index_bytes()
        files[name + TIME_INDEX] = indexes.time_index_bytes()
        if segment.aborted:
            files[name + TRANSACTION_INDEX] = encode_transaction_index(segment.aborted)
    if part.segments:
        del files[offset_name(part.segments[0].base_offset) + SNAPSHOT]
        files[offset_name(part.high_watermark) + SNAPSHOT] = encode_snapshot(part.producers)
    for name, data in files.items():
        directory.put_new(f"{folder}/{name}", data)


def _export_segment(
    reads: Readable,
    file: SegmentFile,
    modified_ms: int,
    directory: Directory,
    log: str,
    producers: Producers,
    index_interval_bytes: int,
    keep_epochs: bool,
    progress: Progress,
) -> GrowingSegment:
    """Copy a segment's committed bytes; return its index entries. `producers` is updated to the end of the segment."""
    growing = GrowingSegment(file.base_offset, 0, index_interval_bytes)
    with directory.new_file(log) as copy:
        for chunk in read_chunks(reads, file):
            check_crcs(chunk.data, chunk.table, file.key, chunk.position)
            data = chunk.data
            if not keep_epochs:
                data = data.copy()
                stamp_leader_epoch(data, chunk.table, _FIRST_EPOCH)
            copy.write(data.data)
            growing.append_all(chunk.table)
            producers.replay(chunk.data, chunk.table, file.key, chunk.position)
            progress.advance(size=len(data))
    growing.seal()
    directory.set_modified(log, modified_ms * 1_000_000)
    return growing
