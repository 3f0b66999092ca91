"""Reads the topics and settings of a cluster from the folder of __cluster_metadata, and never changes the folder.

    __cluster_metadata-0/
      00000000000000000000.log ...                   the records, as in every partition
      00000000000000012345-0000000004.checkpoint     a snapshot: all records that are needed below offset 12345
      quorum-state                                   KRaft's own file; not read

The newest snapshot is read first, and then the records that are newer than the snapshot. A snapshot is a file of
record batches. Read the folder only while no broker and no controller runs on it. A controller can write a record
that no majority of controllers has accepted. This module cannot distinguish such a record from an accepted record.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from storage_engine.errors import CorruptionError
from storage_engine.kafka_dir.log_directory import LogDirectory
from storage_engine.kafka_dir.open_directory import CLUSTER_METADATA
from storage_engine.kafka_dir.upkeep.cluster_metadata import ClusterMetadata
from storage_engine.record.batch import scan_batches
from storage_engine.record.cluster_metadata.metadata_records import (
    MetadataRecord,
    UndecodableMetadataError,
    decode_metadata_record,
)
from storage_engine.record.decoding import decode_parts

_SNAPSHOT = re.compile(r"(?P<end>[0-9]{20})-(?P<epoch>[0-9]{10})\.checkpoint")
_PART_BYTES = 32 * 1024**2
_REMEDY = "No settings are read from the file. Give the settings of topics with --topic-config."


def read_cluster_metadata(directory: LogDirectory) -> ClusterMetadata:
    """The topics and the settings of the cluster. The directory has the folder of __cluster_metadata.

    Raises:
        CorruptionError: a file is damaged, a record cannot be decoded, or records are missing.
        StorageError: a file cannot be read.
    """
    metadata = ClusterMetadata()
    names = {entry.name for entry in directory.storage.entries(CLUSTER_METADATA.folder) if not entry.is_folder}
    snapshots = sorted(name for name in names if _SNAPSHOT.fullmatch(name))
    if snapshots:
        name = snapshots[-1]
        key = f"{CLUSTER_METADATA.folder}/{name}"
        data = np.frombuffer(directory.storage.read(key), np.uint8)
        for records in decode_parts(data, scan_batches(data, key), key, part_bytes=_PART_BYTES):
            metadata.replay(_decoded(key, records))
        metadata.end_offset = int(name.partition("-")[0])
    found = directory.inspect(CLUSTER_METADATA)
    start, end = found.state.log_start_offset, found.state.high_watermark
    if start > metadata.end_offset:
        raise CorruptionError(
            f"{directory.path}/{CLUSTER_METADATA.folder}", 0, f"a snapshot up to offset {start} or later",
            f"{snapshots[-1]} as the newest" if snapshots else "none", _REMEDY,
        )  # fmt: skip
    if end > metadata.end_offset:
        for records in directory.reader(found).read(metadata.end_offset, end):
            metadata.replay(_decoded(CLUSTER_METADATA.folder, records))
        metadata.end_offset = end
    return metadata


def _decoded(file: str, records: pa.RecordBatch) -> Iterator[MetadataRecord]:
    rows = zip(records["offset"].to_pylist(), records["value"].to_pylist(), strict=True)
    for offset, value in rows:
        try:
            record = decode_metadata_record(value)
        except UndecodableMetadataError as error:
            raise CorruptionError(
                file, 0, f"a record of Kafka 4.3 or earlier at offset {offset}", str(error), _REMEDY
            ) from None
        if record is not None:
            yield record
