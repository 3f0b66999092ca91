"""Tests that topics and settings are read from __cluster_metadata: from the files of a real broker, and from single
records of each kind.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from storage_engine.errors import CorruptionError
from storage_engine.kafka_dir.log_directory import LogDirectory
from storage_engine.kafka_dir.upkeep.cluster_metadata import ClusterMetadata, KnownTopic
from storage_engine.kafka_dir.upkeep.metadata_log import read_cluster_metadata
from storage_engine.record.cluster_metadata.metadata_records import UndecodableMetadataError, decode_metadata_record
from tests.storage_engine.kafka_dir.upkeep.brokers_directory import (
    IDS,
    config_record,
    known,
    make_directory,
    partition_record,
    remove_topic_record,
    replicas_record,
    topic_record,
    transaction_record,
)

GOLDEN = Path(__file__).parents[3] / "golden/metadata"
FOLDER = "__cluster_metadata-0"


def golden_topics(metadata: ClusterMetadata) -> list[KnownTopic | None]:
    return [metadata.topic(name) for name in ("orders", "clicks", "gone")]


EXPECTED = [
    KnownTopic(
        "orders", "_XmAHoLuTpKfDcwxqqG1IA", {"cleanup.policy": "compact,delete", "retention.ms": "1234"},
        {0: (1,), 1: (1,)},
    ),
    KnownTopic("clicks", "9pXV4fCfQ5y0bDVZx6HmWg", {}, {0: (1,)}),
    None,
]  # fmt: skip


def test_topics_and_settings_of_a_real_broker_are_read_from_snapshot_and_log() -> None:
    metadata = read_cluster_metadata(LogDirectory(GOLDEN))
    assert metadata.end_offset == 52
    assert golden_topics(metadata) == EXPECTED
    of_node = {"min.insync.replicas": "1", "log.retention.ms": "5000", "log.cleaner.backoff.ms": "7"}
    assert metadata.broker_settings(1) == of_node
    assert metadata.broker_settings(2) == metadata.broker_settings(None) == {"min.insync.replicas": "1"}


@pytest.mark.parametrize("snapshots", [0, 1, 2, 3])
def test_every_snapshot_leads_to_the_same_topics_as_the_whole_log(tmp_path: Path, snapshots: int) -> None:
    shutil.copytree(GOLDEN, tmp_path / "data")
    for path in sorted((tmp_path / "data" / FOLDER).glob("*.checkpoint"))[snapshots:]:
        path.unlink()
    metadata = read_cluster_metadata(LogDirectory(tmp_path / "data"))
    assert (metadata.end_offset, golden_topics(metadata)) == (52, EXPECTED)


def test_a_log_that_begins_after_the_newest_snapshot_is_refused(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path / "data")
    (tmp_path / "data/log-start-offset-checkpoint").write_text("0\n1\n__cluster_metadata 0 41\n")
    with pytest.raises(CorruptionError, match="a snapshot up to offset 41 or later"):
        read_cluster_metadata(LogDirectory(tmp_path / "data"))


def test_a_damaged_snapshot_is_refused(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path / "data")
    snapshot = max((tmp_path / "data" / FOLDER).glob("*.checkpoint"))
    data = bytearray(snapshot.read_bytes())
    data[300] ^= 1
    snapshot.write_bytes(data)
    with pytest.raises(CorruptionError, match=snapshot.name):
        read_cluster_metadata(LogDirectory(tmp_path / "data"))


def replayed(tmp_path: Path, *values: bytes) -> ClusterMetadata:
    make_directory(tmp_path, {}, values)
    return read_cluster_metadata(LogDirectory(tmp_path))


def test_a_deleted_topic_loses_its_settings_and_a_new_topic_of_its_name_has_none(tmp_path: Path) -> None:
    gone = replayed(tmp_path, *known("a", {"retention.ms": "5"}), remove_topic_record("a"), topic_record("a"))
    assert gone.topic("a") == KnownTopic("a", IDS["a"])


def test_a_setting_without_a_value_is_deleted(tmp_path: Path) -> None:
    records = [*known("a", {"retention.ms": "5", "retention.bytes": "6"}), config_record(2, "a", "retention.ms", None)]
    assert replayed(tmp_path, *records).topic("a") == KnownTopic("a", IDS["a"], {"retention.bytes": "6"}, {0: (1,)})


def test_a_change_of_the_replicas_counts(tmp_path: Path) -> None:
    metadata = replayed(tmp_path, *known("a"), partition_record("a", 1, (2, 3)), replicas_record("a", 0, (1, 2)))
    assert metadata.topic("a") == KnownTopic("a", IDS["a"], {}, {0: (1, 2), 1: (2, 3)})


def test_records_of_a_transaction_count_when_it_ends(tmp_path: Path) -> None:
    begin, end, abort = (transaction_record(kind) for kind in (23, 24, 25))
    records = [begin, *known("a"), end, begin, *known("b"), abort, *known("c"), begin, *known("d")]
    metadata = replayed(tmp_path, *records)
    found = [name for name in "abcd" if metadata.topic(name)]
    assert found == ["a", "c"]


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (None, "expected 1 more bytes, found 0"),
        (b"\x02\x02\x00", "expected frame version 1, found 2"),
        (b"\x01\x02\x01", "version 1 of record type 2; the known versions are 0 to 0"),
        (topic_record("a")[:-2], "expected 16 more bytes, found 15"),
    ],
)
def test_a_record_that_cannot_be_decoded_is_refused(value: bytes | None, problem: str) -> None:
    with pytest.raises(UndecodableMetadataError) as failure:
        decode_metadata_record(value)
    assert str(failure.value) == problem


def test_an_undecodable_record_in_the_log_is_named_by_its_offset(tmp_path: Path) -> None:
    with pytest.raises(CorruptionError, match=r"at offset 1, found version 9 of record type 2"):
        replayed(tmp_path, topic_record("a"), b"\x01\x02\x09")


def test_a_record_of_another_type_is_skipped() -> None:
    assert decode_metadata_record(b"\x01\x14\x00whatever") is None
