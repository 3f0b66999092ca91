"""Repairs a plain Kafka log directory after a check: rebuilds the wrong files from the .log files.

A repair changes only the files for which the check found a problem. Each new file is written under a temporary name,
synced and renamed. A crash leaves only whole files, and a second repair finishes the work. The caller locks the
directory's .lock exclusively.

Damaged bytes of a .log cannot be rebuilt. kafka_dir.log_loading cuts out exactly these bytes and saves them beside the
log.
"""

from __future__ import annotations

from storage_engine.clock import SystemClock
from storage_engine.config import TopicConfig
from storage_engine.errors import CorruptionError
from storage_engine.kafka_dir.log_loading import LoadOptions, load_log
from storage_engine.kafka_dir.segment_swap import settle_swaps
from storage_engine.log.checkpoint import (
    HIGH_WATERMARKS,
    LEADER_EPOCHS,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    encode_leader_epochs,
    encode_offsets,
    encode_partition_metadata,
)
from storage_engine.log.derived_indexes import derived_indexes
from storage_engine.log.filenames import (
    CLEANED,
    DELETED,
    INDEX,
    SNAPSHOT,
    SWAP,
    TIME_INDEX,
    TRANSACTION_INDEX,
    is_offset_name,
)
from storage_engine.log.indexes.transaction_index import encode_transaction_index
from storage_engine.log.producers.producer_snapshot import encode_snapshot
from storage_engine.log.segment_reader import SegmentFile
from storage_engine.storage import Storage
from storage_engine.verify.directory.directory_check import (
    CHECKPOINTS,
    CheckedDirectory,
    check_directory,
    correct_offsets,
    in_range,
)
from storage_engine.verify.directory.folder_check import CheckedPartition
from storage_engine.verify.findings import Kind, problems
from storage_engine.verify.segment_check import Options

_INTERRUPTED = (CLEANED, SWAP, DELETED)
_PASSES = 4
"""A directory is checked again at most this often. A repair can uncover problems that only the next repair can
correct.
"""


def repair_directory(found: CheckedDirectory, options: Options, threads: int) -> CheckedDirectory:
    """Repair the files that can be derived. Returns the result of a check after the repair.

    Args:
        found: the result of a check that was made under the exclusive .lock, which is still locked.

    Raises:
        StorageError: the storage refused. Files that were repaired before stay repaired.
    """
    for _ in range(_PASSES):
        changed = [name for name, part in found.partitions.items() if _repair_partition(found, part)]
        beside = not changed and _repair_checkpoints(found)
        if not changed and not beside:
            break
        known = {name: part for name, part in found.partitions.items() if name not in changed}
        found = check_directory(found.directory, tuple(found.partitions), options, threads, known)
    return found


def _repair_partition(found: CheckedDirectory, part: CheckedPartition) -> bool:
    """Make one step of the repair of a partition. Returns whether anything was changed."""
    storage = found.directory.storage
    folder = part.name.folder
    wrong = problems(part.findings)
    if part.unread or not wrong:
        return False
    if any(finding.file.endswith(_INTERRUPTED) for finding in wrong):
        settle_swaps(storage, folder)
        return True
    if part.damaged:
        return _cut_out(found, part)
    files: dict[str, bytes | None] = {}
    for finding in wrong:
        name = finding.file.rpartition("/")[2]
        if finding.kind is Kind.LEFT_OVER:
            files[name] = None
        elif finding.kind is Kind.METADATA:
            files |= _metadata(found, part)
        elif name == LEADER_EPOCHS:
            files[name] = encode_leader_epochs(part.epochs)
        elif name not in files:
            files |= _derived(storage, part, name, _interval_bytes(found, part))
    for name, data in files.items():
        if data is None:
            storage.delete(f"{folder}/{name}")
        else:
            storage.replace(f"{folder}/{name}", data)
    storage.sync_names(folder)
    return bool(files)


def _cut_out(found: CheckedDirectory, part: CheckedPartition) -> bool:
    """Cut the bytes that are not intact batches out of the log, and save these bytes beside the log. The batches before
    these bytes are not read.
    """
    damaged = next(segment.files.base_offset for segment in part.segments if segment.damages)
    config = TopicConfig(index_interval_bytes=_interval_bytes(found, part))
    options = LoadOptions(
        SystemClock().now_ms(), recovery_point=damaged, log_start_offset=part.log_start_offset
    )  # fmt: skip
    try:
        load_log(found.directory.storage, part.name.folder, config, options)
    except CorruptionError:
        return False  # a .log with a wrong name or size, which has its own finding
    return True


def _interval_bytes(found: CheckedDirectory, part: CheckedPartition) -> int:
    """The index.interval.bytes that explains the indexes of all partitions of the topic, or at least of this partition."""
    interval = part.interval
    for name, other in found.partitions.items():
        if name.topic == part.name.topic and other.interval.both(interval).is_possible:
            interval = other.interval.both(interval)
    return interval.likeliest


def _derived(storage: Storage, part: CheckedPartition, name: str, interval_bytes: int) -> dict[str, bytes | None]:
    """The correct bytes of a file according to the .log files. None: the file must not exist. An empty result: the .log
    files do not show the contents.
    """
    stem, _, suffix = name.partition(".")
    if not is_offset_name(stem):
        return {}
    offset, suffix = int(stem), "." + suffix
    segment = next((each for each in part.segments if each.files.base_offset == offset), None)
    if suffix == SNAPSHOT:
        if segment is not None:
            return {name: encode_snapshot(segment.producers) if segment is not part.segments[0] else None}
        return {name: encode_snapshot(part.producers) if offset == part.end_offset else None}
    if segment is None or segment.damages:
        return {}
    if suffix == TRANSACTION_INDEX:
        return {name: encode_transaction_index(segment.aborted) or None}
    if suffix not in (INDEX, TIME_INDEX):
        return {}
    file = SegmentFile(segment.files.stem, offset, segment.files.size, segment.files.following)
    closed = derived_indexes(storage, file, interval_bytes)
    return {name: closed.offset_index_bytes() if suffix == INDEX else closed.time_index_bytes()}


def _metadata(found: CheckedDirectory, part: CheckedPartition) -> dict[str, bytes | None]:
    """The partition.metadata with the topic id of another partition, if this partition's file is unreadable."""
    if part.topic_id is not None:
        return {}
    ids = {each.topic_id for name, each in found.partitions.items() if name.topic == part.name.topic and each.topic_id}
    return {PARTITION_METADATA: encode_partition_metadata(ids.pop())} if len(ids) == 1 else {}


def _repair_checkpoints(found: CheckedDirectory) -> bool:
    """Replace the checkpoints that have a problem in the findings. Returns whether there were any."""
    storage = found.directory.storage
    wrong = {finding.file.rpartition("/")[2] for finding in problems(found.findings) if finding.kind is Kind.CHECKPOINT}
    if any(part.damaged or part.unread for part in found.partitions.values()):
        # The end of a damaged log is not known. An offset that only seems to be above the end must not be removed.
        return False
    for file in wrong & set(CHECKPOINTS):
        lines = correct_offsets(storage.read(file))
        for name, part in found.partitions.items():
            _, highest = in_range(file, part)
            if file in (RECOVERY_POINTS, HIGH_WATERMARKS):
                # After a crash it is unknown how much was durable or acknowledged. A broker determines this.
                lines.setdefault(name, highest if part.closed else part.log_start_offset)
                lines[name] = min(lines[name], highest)
            elif lines.get(name, 0) > highest:
                del lines[name]
        storage.replace(file, encode_offsets(lines))
    return bool(wrong & set(CHECKPOINTS))
