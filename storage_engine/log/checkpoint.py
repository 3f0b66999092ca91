"""Encodes and decodes the small files that Kafka keeps beside the segments. These files contain offsets, leader epochs
and ids.

    in a log directory       recovery-point-offset-checkpoint   the offset up to which each log is known to be durable
                             replication-offset-checkpoint      high watermarks
                             log-start-offset-checkpoint        log start offsets above the first segment's base offset
                             cleaner-offset-checkpoint          first dirty offsets
                             meta.properties                    the ids of the cluster, the node and the directory
                             .lock                              empty; locked by the process that uses the directory
                             .kafka_cleanshutdown               written by an orderly stop; its contents do not matter
    in a partition's folder  leader-epoch-checkpoint            the start offset of each leader epoch
                             partition.metadata                 the topic's id

A checkpoint is text: a line with the version, a line with the number of entries, and a line per entry (CheckpointFile):

    0                        0
    2                        2
    orders 0 52110           0 0            offsets: topic, partition, offset; epochs: epoch, start offset
    orders 1 51984           3 41002

partition.metadata is text without a newline at its end. meta.properties has the format of Java's Properties.

This module encodes and decodes only bytes; the callers read and write the files. The error for a malformed file names
the byte position and the text that was found there. The order of the lines has no meaning. The lines are written in
sorted order, so that equal offsets give equal bytes. All functions are pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from storage_engine.config import INT_MAX, LONG_MAX
from storage_engine.errors import CorruptionError

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
FIRST_DIRTY_OFFSETS = "cleaner-offset-checkpoint"
META_PROPERTIES = "meta.properties"
LOCK = ".lock"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"

_VERSION = 0
_MOST_SHOWN = 100  # an error shows at most so many characters of a line
_REMEDY = (
    "In the `log/` of a root, `lakelog topics settle` writes the file again. In a broker's directory, restore it from a"
    " backup, or move it away; docs/LOG_MANAGER.md describes what happens without it."
)


def encode_offsets(offsets: Mapping[tuple[str, int], int]) -> bytes:
    """Encode a checkpoint with one offset for each (topic, partition)."""
    return _encode_lines([f"{topic} {partition} {offset}" for (topic, partition), offset in sorted(offsets.items())])


def decode_offsets(data: bytes, file: str) -> dict[tuple[str, int], int]:
    """Decode a checkpoint; returns the offset of each (topic, partition).

    Raises:
        CorruptionError: a line is malformed, or the number of entries is wrong. The error names the first such line.
    """
    offsets = {}
    for position, words in _decode_lines(data, file):
        match words:
            case [topic, partition, offset] if _is_number(partition, INT_MAX) and _is_number(offset, LONG_MAX):
                offsets[topic, int(partition)] = int(offset)
            case _:
                raise _malformed(file, position, "topic, partition and offset", words)
    return offsets


def encode_leader_epochs(epochs: Iterable[tuple[int, int]]) -> bytes:
    """Encode a leader-epoch-checkpoint with entries of (epoch, start offset), in the given order."""
    return _encode_lines([f"{epoch} {start_offset}" for epoch, start_offset in epochs])


def decode_leader_epochs(data: bytes, file: str) -> list[tuple[int, int]]:
    """Decode a leader-epoch-checkpoint; returns (epoch, start offset) of each entry.

    Raises:
        CorruptionError: a line is malformed, or the number of entries is wrong. The error names the first such line.
    """
    epochs = []
    for position, words in _decode_lines(data, file):
        match words:
            case [epoch, start_offset] if _is_number(epoch, INT_MAX) and _is_number(start_offset, LONG_MAX):
                epochs.append((int(epoch), int(start_offset)))
            case _:
                raise _malformed(file, position, "epoch and start offset", words)
    return epochs


def _encode_lines(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in [_VERSION, len(lines), *lines]).encode("ascii")


def _decode_lines(data: bytes, file: str) -> Iterator[tuple[int, list[str]]]:
    """Return the position and the words of each entry's line. An empty file, which Kafka may leave, has no entries."""
    if not data:
        return
    lines = []
    position = 0
    for line in data.split(b"\n"):
        if line:
            lines.append((position, line.decode("ascii", "replace").split()))
        position += len(line) + 1
    if lines[:1] != [(0, [str(_VERSION)])]:
        raise _malformed(file, 0, f"version {_VERSION}", lines[0][1] if lines else [])
    position, count = lines[1] if len(lines) > 1 else (len(data), [])
    if len(count) != 1 or not _is_number(count[0], INT_MAX):
        raise _malformed(file, position, "a number of entries", count)
    if int(count[0]) != len(lines) - 2:
        raise CorruptionError(file, position, f"{count[0]} entries", str(len(lines) - 2), _REMEDY)
    yield from lines[2:]


def _malformed(file: str, position: int, expected: str, words: list[str]) -> CorruptionError:
    return CorruptionError(file, position, expected, repr(" ".join(words)[:_MOST_SHOWN]), _REMEDY)


def _is_number(word: str, most: int) -> bool:
    """Whether a word is a number from 0 to the largest number of a Java type."""
    return word.isdigit() and len(word) <= len(str(most)) and int(word) <= most


def encode_partition_metadata(topic_id: str) -> bytes:
    """Encode the partition.metadata of a topic's partitions (PartitionMetadataFile)."""
    return f"version: 0\ntopic_id: {topic_id}".encode("ascii")


def decode_partition_metadata(data: bytes, file: str) -> str:
    """Decode partition.metadata; returns the topic's id.

    Raises:
        CorruptionError: the version is not 0, or the id is missing.
    """
    fields = dict(line.partition(": ")[::2] for line in data.decode("ascii", "replace").splitlines())
    if fields.get("version") != "0" or not fields.get("topic_id"):
        raise CorruptionError(
            file, 0, "version 0 and a topic_id", f"{len(fields)} other lines",
            "Copy the file from another partition of the topic.",
        )  # fmt: skip
    return fields["topic_id"]


@dataclass(frozen=True)
class MetaProperties:
    """The ids of a log directory, its node and its cluster (Kafka's MetaProperties).

    A broker with ZooKeeper wrote no directory_id (version 0); it may have written no cluster_id and no node_id. A broker
    before Kafka 3.7 wrote no directory_id (version 1).
    """

    cluster_id: str | None
    directory_id: str | None
    node_id: int | None = 1

    def contradicts(self, other: MetaProperties) -> bool:
        """Whether the two directories belong to different clusters or nodes, as far as the files say it."""
        ids = ((self.cluster_id, other.cluster_id), (self.node_id, other.node_id))
        return any(None not in pair and pair[0] != pair[1] for pair in ids)


def encode_meta_properties(properties: MetaProperties) -> bytes:
    """Encode meta.properties of version 1 with all ids."""
    return (
        f"version=1\ncluster.id={properties.cluster_id}\n"
        f"node.id={properties.node_id}\ndirectory.id={properties.directory_id}\n"
    ).encode("ascii")


def decode_meta_properties(data: bytes, file: str) -> MetaProperties:
    """Decode meta.properties. Lines that begin with # are comments.

    Raises:
        CorruptionError: the version is not 0 or 1, or a field is missing or malformed.
    """
    lines = [line.strip() for line in data.decode("ascii", "replace").splitlines()]
    fields = {
        key.strip(): value.strip()
        for key, _, value in (line.partition("=") for line in lines if line and not line.startswith("#"))
    }
    version = fields.get("version")
    node = "broker.id" if version == "0" else "node.id"
    needed = set() if version == "0" else {"cluster.id", "node.id"}
    if version not in ("0", "1") or not needed <= fields.keys() or not _is_number(fields.get(node, "0"), INT_MAX):
        expected = "version=1, cluster.id and node.id; or version=0"
        raise CorruptionError(file, 0, expected, ", ".join(fields), _REMEDY)
    node_id = int(fields[node]) if node in fields else None
    return MetaProperties(fields.get("cluster.id"), fields.get("directory.id"), node_id)
