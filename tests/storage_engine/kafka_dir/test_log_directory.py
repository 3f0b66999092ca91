"""Reading plain Kafka log directories that a 4.3.1 broker wrote."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from lakelog.cli.records.json_lines import format_lines
from storage_engine.errors import ConflictError, CorruptionError, StorageAccessError, UnknownTopicError
from storage_engine.kafka_dir.log_directory import FoundPartition, LogDirectory, TopicPartition, partition_of
from storage_engine.log.isolation import Isolation
from storage_engine.log.log_reader import EARLIEST, LATEST, MAX_TIMESTAMP
from storage_engine.record.batch import scan_batches

GOLDEN = Path(__file__).parents[2] / "golden"
PARTITIONS = [
    *((name, 0) for name in ("codec_none", "codec_zstd", "codec_gzip", "codec_snappy", "codec_lz4")),
    *((name, 0) for name in ("shapes", "logappend", "ooo", "idem", "retention_bytes", "delrec", "empty", "txn")),
    *(("multi", number) for number in range(3)),
    *((f"{name}.{when}", 0) for name in ("compact", "compact_delete") for when in ("before", "after1", "after2")),
]
SMALL = ["partition.metadata", "leader-epoch-checkpoint"]


@pytest.fixture(params=PARTITIONS, ids=lambda partition: "-".join(map(str, partition)))
def golden(request) -> tuple[Path, TopicPartition]:
    name, number = request.param
    return GOLDEN / name, TopicPartition(name.partition(".")[0], number)


def golden_file(folder: Path, name: TopicPartition, stem: str, suffix: str) -> Path:
    """Files of partitions other than 0 have its number in their names."""
    return folder / (f"{stem}.{name.number}{suffix}" if name.number else f"{stem}{suffix}")


@pytest.fixture
def copy(golden, tmp_path) -> tuple[Path, TopicPartition, Path]:
    """A copy of a golden directory that was closed in order, and the folder of its partition."""
    folder, name = golden
    shutil.copytree(folder / "data", tmp_path / "data")
    (tmp_path / "data/.kafka_cleanshutdown").touch()
    return tmp_path / "data", name, tmp_path / "data" / name.folder


def without_times(found: FoundPartition) -> FoundPartition:
    """Git keeps no mtimes; and a directory that was closed in order is believed without a look at each header."""
    segments = tuple(
        segment._replace(modified_ms=0, first_timestamp=None, smallest_timestamp=None, largest_lateness_ms=None)
        for segment in found.state.segments
    )
    return FoundPartition(found.name, found.state.model_copy(update={"segments": segments}), found.topic_id, found.torn)


@pytest.mark.parametrize("isolation", Isolation)
def test_records_are_those_that_a_consumer_was_given(golden, isolation: Isolation) -> None:
    folder, name = golden
    directory = LogDirectory(folder / "data")
    reader = directory.reader(directory.inspect(name))
    given = golden_file(folder, name, f"records.{isolation}", ".jsonl")
    if not given.exists():  # a topic without transactions: both were the same
        given = golden_file(folder, name, "records.read_uncommitted", ".jsonl")
    expected = [json.loads(line) for line in given.read_bytes().splitlines()]
    chunks = list(reader.read(reader.partition.log_start_offset, None, isolation))
    found = [
        json.loads(line) for records in chunks for line in format_lines(name.topic, name.number, records).splitlines()
    ]  # fmt: skip
    assert len(found) == len(expected)
    assert [{key: record[key] for key in wanted} for record, wanted in zip(found, expected, strict=True)] == expected


def test_offsets_are_those_that_the_broker_answered(golden) -> None:
    folder, name = golden
    directory = LogDirectory(folder / "data")
    reader = directory.reader(directory.inspect(name))
    answers = json.loads(golden_file(folder, name, "offsets", ".json").read_text())
    assert reader.offset_at(EARLIEST) == answer(answers["earliest"])
    assert reader.offset_at(LATEST) == answer(answers["latest"])
    assert reader.offset_at(LATEST, Isolation.READ_COMMITTED) == answer(answers["latest_read_committed"])
    assert reader.offset_at(MAX_TIMESTAMP) == answer(answers["max_timestamp"])
    if ".after" in folder.name:
        return  # an emptied segment hides what is behind it by its mtime, which git does not keep
    for timestamp, expected in answers["for_timestamp"].items():
        for isolation in Isolation:
            assert reader.offset_at(int(timestamp), isolation) == answer(expected[isolation])


def answer(given: dict[str, int]) -> tuple[int, int, int] | None:
    return None if given["offset"] < 0 else (given["offset"], given["timestamp"], given["leaderEpoch"])


def test_reading_the_log_files_finds_what_indexes_and_snapshots_say(copy) -> None:
    path, name, folder = copy
    believed = without_times(LogDirectory(path).inspect(name))
    for file in folder.iterdir():
        if file.suffix != ".log" and file.name not in SMALL:
            file.unlink()
    read = without_times(LogDirectory(path).inspect(name))
    compacted = believed.state.producers and "compact" in name.topic
    assert compacted or read == believed


def test_a_missing_transaction_index_lets_no_aborted_record_through(tmp_path) -> None:
    shutil.copytree(GOLDEN / "txn/data", tmp_path / "data")
    before = LogDirectory(tmp_path / "data").inspect(TopicPartition("txn", 0))
    (tmp_path / "data/.kafka_cleanshutdown").touch()
    for file in (tmp_path / "data/txn-0").glob("*.txnindex"):
        file.unlink()
    after = LogDirectory(tmp_path / "data").inspect(TopicPartition("txn", 0))
    assert [segment.aborted for segment in after.state.segments] == [
        segment.aborted for segment in before.state.segments
    ]
    assert any(segment.aborted for segment in after.state.segments)


def test_an_open_transaction_holds_back_readers_of_committed_records(tmp_path) -> None:
    shutil.copytree(GOLDEN / "txn/data", tmp_path / "data")
    (tmp_path / "data/.kafka_cleanshutdown").unlink(missing_ok=True)
    folder = tmp_path / "data/txn-0"
    kept = folder / f"{0:020d}.log"
    for file in folder.iterdir():
        if file.name not in (kept.name, *SMALL):
            file.unlink()
    directory = LogDirectory(tmp_path / "data")
    found = directory.inspect(TopicPartition("txn", 0))
    # The broker's snapshot at 33 says so, too: producer 2 has been in a transaction since the first record.
    assert (found.state.high_watermark, found.state.last_stable_offset) == (33, 0)
    assert list(directory.reader(found).read(0, None, Isolation.READ_COMMITTED)) == []
    assert directory.reader(found).offset_at(LATEST, Isolation.READ_COMMITTED) == (0, -1, 0)


@pytest.mark.parametrize("torn", [b"\0" * 100, b"\0\0\0\0", bytes(8) + b"\0\0\1\0" + bytes(30)])
def test_a_torn_tail_is_left_out_after_a_crash_and_damage_after_an_orderly_stop(tmp_path, torn: bytes) -> None:
    shutil.copytree(GOLDEN / "codec_lz4/data", tmp_path / "data")
    clean = tmp_path / "data/.kafka_cleanshutdown"
    name = TopicPartition("codec_lz4", 0)
    before = without_times(LogDirectory(tmp_path / "data").inspect(name))
    last = max((tmp_path / "data/codec_lz4-0").glob("*.log"))
    with last.open("ab") as log:
        log.write(torn)
    clean.unlink(missing_ok=True)
    after = without_times(LogDirectory(tmp_path / "data").inspect(name))
    assert (after.state, after.torn) == (before.state, len(torn))
    clean.touch()
    with pytest.raises(CorruptionError) as error:
        LogDirectory(tmp_path / "data").inspect(name)
    assert error.value.position == before.state.segments[-1].size


@pytest.mark.parametrize("is_clean", [True, False])
def test_damage_before_intact_batches_is_not_a_torn_tail(tmp_path, is_clean: bool) -> None:
    shutil.copytree(GOLDEN / "idem/data", tmp_path / "data")
    if not is_clean:
        (tmp_path / "data/.kafka_cleanshutdown").unlink()
    newest = max((tmp_path / "data/idem-0").glob("*.log"))
    data = bytearray(newest.read_bytes())
    second = int(scan_batches(np.frombuffer(data, np.uint8), newest.name).positions[1])
    data[second + 16] = 9
    newest.write_bytes(data)
    directory = LogDirectory(tmp_path / "data")
    with pytest.raises(CorruptionError, match=f"{newest.name} at position {second}"):
        directory.inspect(directory.partitions[0])


def test_a_last_batch_with_changed_bytes_is_torn_after_a_crash(tmp_path) -> None:
    shutil.copytree(GOLDEN / "codec_lz4/data", tmp_path / "data")
    (tmp_path / "data/.kafka_cleanshutdown").unlink(missing_ok=True)
    last = max((tmp_path / "data/codec_lz4-0").glob("*.log"))
    data = bytearray(last.read_bytes())
    data[-1] ^= 1
    last.write_bytes(data)
    found = LogDirectory(tmp_path / "data").inspect(TopicPartition("codec_lz4", 0))
    assert 0 < found.torn < len(data)
    assert found.state.high_watermark < 600


def test_what_no_broker_leaves_is_refused(tmp_path) -> None:
    shutil.copytree(GOLDEN / "codec_lz4/data", tmp_path / "data")
    name = TopicPartition("codec_lz4", 0)
    folder = tmp_path / "data" / name.folder
    odd = folder / "notes.log"
    odd.touch()
    with pytest.raises(CorruptionError, match="20 digits"):
        LogDirectory(tmp_path / "data").inspect(name)
    odd.rename(folder / f"{0:020d}.log.swap")
    with pytest.raises(ConflictError, match="swap"):
        LogDirectory(tmp_path / "data").inspect(name)
    (tmp_path / "data/log-start-offset-checkpoint").write_bytes(b"7\n")
    with pytest.raises(CorruptionError, match="log-start-offset-checkpoint"):
        _ = LogDirectory(tmp_path / "data").log_start_offsets
    with pytest.raises(StorageAccessError, match="is not a directory"):
        LogDirectory(tmp_path / "nothing")
    with pytest.raises(UnknownTopicError):
        LogDirectory(tmp_path / "data").partitions_of("codec")


@pytest.mark.parametrize("is_clean", [False, True])
def test_a_folder_that_has_lost_its_only_log_file_is_refused(tmp_path: Path, is_clean: bool) -> None:
    shutil.copytree(GOLDEN / "idem/data", tmp_path / "data")
    if is_clean:
        (tmp_path / "data/.kafka_cleanshutdown").touch()
    directory = LogDirectory(tmp_path / "data")
    (name,) = directory.partitions
    logs = list((tmp_path / "data" / name.folder).glob("*.log"))
    for each in logs:
        each.unlink()
    with pytest.raises(
        CorruptionError, match=r"expected a file 0{20}.log beside it, found no .log file in this folder"
    ):
        directory.inspect(name)


def test_folders_that_a_broker_puts_aside_are_no_partitions(tmp_path) -> None:
    for name in ("a-0", "a-10", "a-2", "b-c-1", "a-0.4f-delete", "a-3.ab-stray", "a-01", "-1", "a"):
        (tmp_path / name).mkdir()
    (tmp_path / "file-0").touch()
    assert LogDirectory(tmp_path).partitions == (("a", 0), ("a", 2), ("a", 10), ("b-c", 1))
    assert partition_of("b-c-1") == ("b-c", 1)
