"""Reads the topics and settings of a cluster from the folder of __cluster_metadata, and never changes the folder.

    __cluster_metadata-0/
      00000000000000000000.log ...                   the records, as in every partition
      00000000000000012345-0000000004.checkpoint     a snapshot: all records that are needed below offset 12345
      quorum-state                                   KRaft's own file; not read

The newest snapshot is read first, and then the records that are newer than the snapshot. A snapshot is a file of
record batches. It begins with a SnapshotHeaderRecord and ends with a SnapshotFooterRecord (RecordsSnapshotWriter), so a
snapshot that was cut off is recognised. Read the folder only while no broker and no controller runs on it. A controller
can write a record that no majority of controllers has accepted. This module cannot distinguish such a record from an
accepted record.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from storage_engine.errors import CorruptionError, LogError
from storage_engine.kafka_dir.log_directory import FoundPartition, LogDirectory
from storage_engine.kafka_dir.open_directory import CLUSTER_METADATA
from storage_engine.kafka_dir.upkeep.cluster_metadata import ClusterMetadata, ContradictingRecordError
from storage_engine.log.segment_reader import position_of, read_chunks
from storage_engine.record.batch import BatchTable, ByteArray, scan_batches
from storage_engine.record.cluster_metadata.metadata_records import (
    MetadataRecord,
    UndecodableMetadataError,
    decode_metadata_record,
)
from storage_engine.record.control import SnapshotControlType, control_type
from storage_engine.record.decoding import decode_batches, decode_parts

_SNAPSHOT = re.compile(r"(?P<end>[0-9]{20})-(?P<epoch>[0-9]{10})\.checkpoint")
_PART_BYTES = 32 * 1024**2
_REMEDY = "No settings are read from the file. Give the settings of topics on the command line."


class MetadataSource(NamedTuple):
    """What was found out about __cluster_metadata.

    folder: the folder that was read, or that cannot be read; None if no directory has the folder.
    metadata: the contents; None if they are not known.
    error: why the folder cannot be read.
    """

    folder: str | None
    metadata: ClusterMetadata | None = None
    error: LogError | None = None


def find_cluster_metadata(directories: Iterable[Path]) -> MetadataSource:
    """Read __cluster_metadata from the first of the directories that has its folder."""
    place = next((each for each in directories if (each / CLUSTER_METADATA.folder).is_dir()), None)
    if place is None:
        return MetadataSource(None)
    folder = str(place / CLUSTER_METADATA.folder)
    try:
        return MetadataSource(folder, read_cluster_metadata(LogDirectory(place)))
    except LogError as error:
        return MetadataSource(folder, error=error)


def read_cluster_metadata(directory: LogDirectory) -> ClusterMetadata:
    """The topics and the settings of the cluster. The directory has the folder of __cluster_metadata.

    Raises:
        CorruptionError: a file is damaged, a record cannot be decoded, or records are missing.
        StorageError: a file cannot be read.
    """
    try:
        return _read(directory)
    except CorruptionError as error:
        raise error.with_remedy(_REMEDY) from None


def _read(directory: LogDirectory) -> ClusterMetadata:
    metadata = ClusterMetadata()
    names = {entry.name for entry in directory.storage.entries(CLUSTER_METADATA.folder) if not entry.is_folder}
    snapshots = sorted(name for name in names if _SNAPSHOT.fullmatch(name))
    if snapshots:
        _replay_snapshot(metadata, directory, snapshots[-1])
    found = directory.inspect(CLUSTER_METADATA)
    start, end = found.state.log_start_offset, found.state.high_watermark
    if start > metadata.end_offset:
        raise CorruptionError(
            f"{directory.path}/{CLUSTER_METADATA.folder}", 0, f"a snapshot up to offset {start} or later",
            f"{snapshots[-1]} as the newest" if snapshots else "none",
        )  # fmt: skip
    if end > metadata.end_offset:
        _check_gapless(directory, found, metadata.end_offset)
        for records in directory.reader(found).read(metadata.end_offset, end):
            _replay(metadata, CLUSTER_METADATA.folder, records)
        metadata.end_offset = end
    if not snapshots and not end:
        raise CorruptionError(f"{directory.path}/{CLUSTER_METADATA.folder}", 0, "a snapshot or records", "neither")
    return metadata


def _check_gapless(directory: LogDirectory, found: FoundPartition, first_offset: int) -> None:
    """Check that every offset from first_offset to the end is there. Unlike other logs, __cluster_metadata is never
    compacted (KafkaRaftLog). So a gap means that a file was lost, and a lost record can be a later value of a setting.
    """
    reader = directory.reader(found)
    expected, file = first_offset, None
    for segment in found.state.segments:
        if segment.end_offset > first_offset:
            file = reader.segment_file(segment)
            for chunk in read_chunks(directory.storage, file, position_of(directory.storage, file, first_offset)):
                table = chunk.table
                firsts = np.maximum(np.concatenate(([expected], table.last_offsets[:-1] + 1)), first_offset)
                gaps = np.flatnonzero(table.base_offsets > firsts)
                if len(gaps):
                    row = int(gaps[0])
                    raise _missing(
                        file.key, chunk.position + int(table.positions[row]), int(firsts[row]),
                        f"a batch that begins at {table.base_offsets[row]}",
                    )  # fmt: skip
                expected = int(table.last_offsets[-1]) + 1
    if expected < found.state.high_watermark:
        raise _missing(file.key if file else CLUSTER_METADATA.folder, 0, expected, "no batch")


def _missing(place: str, position: int, offset: int, found: str) -> CorruptionError:
    return CorruptionError(place, position, f"the record with offset {offset}, which is in no snapshot", found)


def _replay_snapshot(metadata: ClusterMetadata, directory: LogDirectory, name: str) -> None:
    key = f"{CLUSTER_METADATA.folder}/{name}"
    data = np.frombuffer(directory.storage.read(key), np.uint8)
    table = scan_batches(data, key)
    if table.end != len(data):
        raise CorruptionError(key, table.end, "a complete batch", f"{len(data) - table.end} bytes")
    for row, wanted in ((0, SnapshotControlType.HEADER), (len(table) - 1, SnapshotControlType.FOOTER)):
        _check_end(data, table, row, wanted, key)
    for records in decode_parts(data, table, key, part_bytes=_PART_BYTES):
        _replay(metadata, key, records)
    metadata.end_offset = int(name.partition("-")[0])


def _check_end(data: ByteArray, table: BatchTable, row: int, wanted: SnapshotControlType, key: str) -> None:
    """Check that the first or the last batch of a snapshot has the record that must be there."""
    expected = f"the snapshot's {wanted.name.lower()}"
    if not len(table):
        raise CorruptionError(key, 0, expected, "an empty file")
    position = int(table.positions[row])
    batch = table.select(slice(row, row + 1))
    keys = decode_batches(data, batch, key, control=True)["key"].to_pylist() if batch.is_control[0] else []
    if not keys or control_type(keys[-1 if row else 0], key, position) != wanted:
        raise CorruptionError(key, position, expected, "another record")


def _replay(metadata: ClusterMetadata, file: str, records: pa.RecordBatch) -> None:
    try:
        metadata.replay(_decoded(file, records))
    except ContradictingRecordError as error:
        raise CorruptionError(file, 0, error.expected, error.found) from None


def _decoded(file: str, records: pa.RecordBatch) -> Iterator[MetadataRecord]:
    rows = zip(records["offset"].to_pylist(), records["value"].to_pylist(), strict=True)
    for offset, value in rows:
        try:
            record = decode_metadata_record(value)
        except UndecodableMetadataError as error:
            raise CorruptionError(file, 0, f"a record of Kafka 4.3 or earlier at offset {offset}", str(error)) from None
        if record is not None:
            yield record
