"""Tests that topics and settings are read from __cluster_metadata: from the files of a real broker, and from single
records of each kind.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from storage_engine.errors import CorruptionError
from storage_engine.kafka_dir.log_directory import LogDirectory
from storage_engine.kafka_dir.upkeep.cluster_metadata import ClusterMetadata, KnownTopic
from storage_engine.kafka_dir.upkeep.metadata_log import read_cluster_metadata
from storage_engine.record.batch import scan_batches
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


HEADER_END, LAST_BATCH = 83, 1288
"""The position after the first batch of the newest snapshot, and that of its last batch."""


@pytest.mark.parametrize(
    ("begin", "end", "problem"),
    [
        (0, 0, "expected the snapshot's header, found an empty file"),
        (0, HEADER_END, "expected the snapshot's footer, found another record"),
        (0, LAST_BATCH, f"at position {HEADER_END}: expected the snapshot's footer, found another record"),
        (
            0,
            LAST_BATCH - 1,
            f"at position {HEADER_END}: expected a complete batch, found {LAST_BATCH - 1 - HEADER_END}",
        ),
        (0, -1, f"at position {LAST_BATCH}: expected a complete batch, found 74 bytes"),
        (HEADER_END, None, "at position 0: expected the snapshot's header, found another record"),
    ],
)
def test_a_snapshot_that_was_cut_off_is_refused(tmp_path: Path, begin: int, end: int | None, problem: str) -> None:
    shutil.copytree(GOLDEN, tmp_path / "data")
    snapshot = max((tmp_path / "data" / FOLDER).glob("*.checkpoint"))
    snapshot.write_bytes(snapshot.read_bytes()[begin:end])
    with pytest.raises(CorruptionError, match=snapshot.name) as failure:
        read_cluster_metadata(LogDirectory(tmp_path / "data"))
    assert problem in str(failure.value)


def test_a_folder_without_snapshot_and_records_is_refused(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    for _ in range(2):
        with pytest.raises(
            CorruptionError, match=f"{FOLDER} at position 0: expected a snapshot or records, found neith"
        ):
            read_cluster_metadata(LogDirectory(tmp_path))
        (tmp_path / FOLDER / "00000000000000000000.log").touch()


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("place", [16, 70])
def test_a_damaged_batch_hides_no_later_settings(tmp_path: Path, place: int, is_clean: bool) -> None:
    forever = config_record(2, "a", "retention.ms", "-1")
    make_directory(tmp_path, {}, [*known("a"), config_record(2, "b", "retention.ms", "5"), forever])
    log = tmp_path / FOLDER / "00000000000000000000.log"
    data = bytearray(log.read_bytes())
    third = int(scan_batches(np.frombuffer(data, np.uint8), log.name).positions[2])
    data[third + place] ^= 64
    log.write_bytes(data)
    if not is_clean:
        (tmp_path / ".kafka_cleanshutdown").unlink()
    with pytest.raises(
        CorruptionError, match=f"at position {third}: .*Give the settings of topics on the command line"
    ):
        read_cluster_metadata(LogDirectory(tmp_path))


def test_a_torn_tail_is_damage_only_after_an_orderly_stop(tmp_path: Path) -> None:
    make_directory(tmp_path, {}, known("a"))
    with (tmp_path / FOLDER / "00000000000000000000.log").open("ab") as log:
        log.write(bytes(100))
    with pytest.raises(CorruptionError, match="Give the settings of topics on the command line"):
        read_cluster_metadata(LogDirectory(tmp_path))
    (tmp_path / ".kafka_cleanshutdown").unlink()
    assert read_cluster_metadata(LogDirectory(tmp_path)).topic("a") == KnownTopic("a", IDS["a"], {}, {0: (1,)})


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("harm", ["removed", "emptied"])
def test_a_lost_segment_is_noticed_although_every_other_file_is_whole(
    tmp_path: Path, harm: str, is_clean: bool
) -> None:
    """A lost segment may have a later value of a setting, such as an endless retention."""
    other = [config_record(2, f"b{number}", "x", "y" * 300) for number in range(9)]
    forever = config_record(2, "a", "retention.ms", "-1")
    make_directory(tmp_path, {}, [*known("a", {"retention.ms": "1000"}), *other[:4], forever, *other])
    logs = sorted((tmp_path / FOLDER).glob("*.log"))
    assert read_cluster_metadata(LogDirectory(tmp_path)).topic("a") == KnownTopic(
        "a", IDS["a"], {"retention.ms": "-1"}, {0: (1,)}
    )
    lost = max(path for path in logs[:-1] if int(path.stem) <= 7)
    lost.write_bytes(b"") if harm == "emptied" else lost.unlink()
    if not is_clean:
        (tmp_path / ".kafka_cleanshutdown").unlink()
    with pytest.raises(CorruptionError, match=f"the record with offset {int(lost.stem)}, which is in no snapshot"):
        read_cluster_metadata(LogDirectory(tmp_path))


@pytest.mark.parametrize(("offset", "is_read"), [(30, True), (45, False)])
def test_only_a_gap_above_the_newest_snapshot_counts(tmp_path: Path, offset: int, is_read: bool) -> None:
    shutil.copytree(GOLDEN, tmp_path / "data")
    log = tmp_path / "data" / FOLDER / "00000000000000000000.log"
    data = log.read_bytes()
    table = scan_batches(np.frombuffer(data, np.uint8), log.name)
    row = int(np.searchsorted(table.last_offsets, offset))
    begin, end = table.positions[row : row + 2]
    log.write_bytes(data[:begin] + data[end:])
    if is_read:
        assert golden_topics(read_cluster_metadata(LogDirectory(tmp_path / "data"))) == EXPECTED
        return
    with pytest.raises(CorruptionError, match=f"position {begin}: .*the record with offset {table.base_offsets[row]}"):
        read_cluster_metadata(LogDirectory(tmp_path / "data"))


def replayed(tmp_path: Path, *values: bytes) -> ClusterMetadata:
    make_directory(tmp_path, {}, values)
    return read_cluster_metadata(LogDirectory(tmp_path))


def test_a_deleted_topic_loses_its_settings_and_a_new_topic_of_its_name_has_none(tmp_path: Path) -> None:
    gone = replayed(tmp_path, *known("a", {"retention.ms": "5"}), remove_topic_record("a"), topic_record("a"))
    assert gone.topic("a") == KnownTopic("a", IDS["a"])


@pytest.mark.parametrize(
    "later",
    [
        [],
        [config_record(2, "a", "retention.ms", "5")],
        [remove_topic_record("b"), remove_topic_record("a")],
        [remove_topic_record("b"), partition_record("a", 0, (1,))],
    ],
)
def test_a_new_topic_of_a_name_whose_topic_was_not_deleted_is_refused(tmp_path: Path, later: list[bytes]) -> None:
    """The record that deletes the first topic is lost. The new topic must not get its settings."""
    expected = (
        f"{FOLDER} at position 0: expected a record that deletes topic a with the id {IDS['a']}, found a new topic"
    )
    with pytest.raises(CorruptionError, match=f"{expected} of this name with the id {IDS['b']}"):
        replayed(tmp_path, *known("a", {"retention.ms": "1"}), topic_record("a", "b"), *later)


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
