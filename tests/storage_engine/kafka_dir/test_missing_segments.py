"""Segments between two others of which only an index is left: which of them are a loss."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from storage_engine.kafka_dir.log_directory import LogDirectory, TopicPartition
from storage_engine.kafka_dir.recovery_report import lost_in

GOLDEN = Path(__file__).parents[2] / "golden"
DIRECTORIES = sorted(path.parent.name for path in GOLDEN.glob("*/data"))
MULTI = TopicPartition("multi", 0)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of a directory. The segments of multi-0 begin at the offsets 0, 127 and 254."""
    shutil.copytree(GOLDEN / "multi/data", tmp_path / "data")
    return tmp_path / "data"


def losses(path: Path, *partitions: TopicPartition) -> list[str]:
    directory = LogDirectory(path)
    found = [directory.inspect(each) for each in partitions or directory.partitions]
    return [str(loss) for loss in lost_in(directory, found)]


@pytest.mark.parametrize("name", DIRECTORIES)
def test_a_directory_of_a_broker_has_no_missing_segment(name: str) -> None:
    assert losses(GOLDEN / name / "data") == []


@pytest.mark.parametrize("clean", [True, False])
def test_an_index_between_two_segments_proves_a_missing_segment(copy: Path, clean: bool) -> None:
    marker = copy / ".kafka_cleanshutdown"
    marker.touch() if clean else marker.unlink(missing_ok=True)
    missing = copy / f"multi-0/{127:020}.log"
    missing.unlink()
    (loss,) = losses(copy, MULTI)
    assert loss == (
        f"{missing} at position 0: expected a segment, because it had an index, found no such file. The offsets 127 to 253 are"
        " missing. Restore the file from a backup or a replica."
    )


def test_an_index_beside_a_deleted_log_is_no_loss(copy: Path) -> None:
    """A broker renames the .log of a replaced segment first, and its indexes after it."""
    log = copy / f"multi-0/{127:020}.log"
    log.rename(log.with_suffix(".log.deleted"))
    assert losses(copy, MULTI) == []


def test_an_index_of_offsets_that_the_segment_before_has_is_no_loss(copy: Path) -> None:
    (copy / f"multi-0/{100:020}.index").touch()
    assert losses(copy, MULTI) == []


def test_an_index_below_the_log_start_is_no_loss(copy: Path) -> None:
    (copy / f"multi-0/{127:020}.log").unlink()
    (copy / "log-start-offset-checkpoint").write_text("0\n1\nmulti 0 254\n")
    assert losses(copy, MULTI) == []
