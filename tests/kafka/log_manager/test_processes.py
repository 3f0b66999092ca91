"""Runs processes of `lakelog log-manager` on random directories. Processes are killed at random moments, or one of the
directories is on a full disk. After each process, Kafka's log manager and Lakelog's load the same records. At the end, the
records are those that Kafka's log manager keeps. KILLS=50 kills so many processes; SEED gives other directories.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import time_ns

import pytest

from storage_engine.kafka_dir.log_directory import partition_of
from storage_engine.log.checkpoint import CLEAN_SHUTDOWN, HIGH_WATERMARKS
from tests.kafka.log_manager.judge import JAVA_OPTIONS, SOURCE
from tests.kafka.log_manager.random_directories import LOG_END, Case, Life, random_case
from tests.kafka.log_manager.sides import KafkaSide, OurSide
from tests.kafka.random_logs import DAY_MS
from tests.kafka_jvm import KafkaJvm
from tests.small_disks import needs_a_disk, small_disk

pytestmark = pytest.mark.kafka

HOME = Path(__file__).parents[3]
SEED = int(os.environ.get("SEED", "7"))
KILLS = int(os.environ.get("KILLS", "3"))
MOST_LINES = 40
KEPT = {"retention.ms": "-1", "min.cleanable.dirty.ratio": "0.0", "delete.retention.ms": str(DAY_MS)}
"""Settings under which the time of a run does not decide what is deleted."""
FAST = """log.initial.task.delay.ms=0
log.cleaner.backoff.ms=20
log.flush.scheduler.interval.ms=50
log.flush.offset.checkpoint.interval.ms=50
log.flush.start.offset.checkpoint.interval.ms=50
producer.id.expiration.ms={expiration}
"""
Records = dict[str, dict[int, int]]


def undamaged_case(number: int) -> Case:
    """A random case with one life, whose files are intact. Its deletions do not depend on the time, nor on the snapshot
    from which Kafka and Lakelog start: this decides whether a transaction with its marker above the high watermark is open
    (decision 0071)."""
    case = random_case(SEED, number)
    settings = {topic: {**own, **KEPT} for topic, own in case.settings.items()}
    lives = (Life(time_ns() // 1_000_000, (), {}, frozenset(), True),)
    with_markers = {partition_of(each.folder) for each in case.partitions if each.log.counts["markers"]}
    checkpoints = tuple(
        {
            **files,
            HIGH_WATERMARKS: {
                key: LOG_END if key in with_markers else mark for key, mark in files[HIGH_WATERMARKS].items()
            },
        }
        for files in case.checkpoints
    )
    return replace(case, settings=settings, lives=lives, checkpoints=checkpoints)


def managed_by_kafka(parent: Path, case: Case, jvm: KafkaJvm) -> Records:
    """The records that Kafka's log manager keeps."""
    case.lay(parent, 0)
    kafka = KafkaSide(parent, case, jvm.program)
    now_ms = case.lives[0].now_ms
    kafka.open(now_ms)
    for minutes in (1, 2):
        kafka.tick(now_ms + minutes * 60_000)
    records = kafka.records()
    kafka.end(clean=True)
    return records


def loaded(parent: Path, case: Case, jvm: KafkaJvm) -> tuple[Records, Records]:
    """The records that Kafka and Lakelog find in copies of the directories."""
    now_ms = case.lives[0].now_ms
    found = []
    for side in ("kafka", "ours"):
        copy = parent.with_name(f"copy-{side}")
        shutil.copytree(parent, copy)
        manager = KafkaSide(copy, case, jvm.program) if side == "kafka" else OurSide(copy, case)
        manager.open(now_ms)
        found.append(manager.records())
        manager.end(clean=False)
        shutil.rmtree(copy)
    return found[0], found[1]


def command(parent: Path, case: Case) -> list[str]:
    properties, topics = parent.with_suffix(".properties"), parent.with_suffix(".yaml")
    dirs = ",".join(str(parent / f"d{number}") for number in range(case.directories))
    fast = FAST.format(expiration=case.intervals["producer_expiration"])
    properties.write_text(f"log.dirs={dirs}\n{fast}")
    sections = {
        topic: {key: int(value) if value.lstrip("-").isdigit() else value for key, value in own.items()}
        for topic, own in case.settings.items()
    }
    topics.write_text(json.dumps(sections))
    options = ["--config", str(properties), "--topic-config", str(topics)]
    return [sys.executable, "-m", "lakelog.cli", "log-manager", *options]


def kill_after(lines: int, started: list[str]) -> None:
    """Start a process, and kill it after it has printed so many lines."""
    with subprocess.Popen(started, cwd=HOME, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(lines):
            assert process.stdout.readline()
        process.kill()


@pytest.fixture(scope="module")
def jvm() -> Iterator[KafkaJvm]:
    print(f"SEED={SEED} KILLS={KILLS}", file=sys.stderr)
    jvm = KafkaJvm(SOURCE, JAVA_OPTIONS)
    try:
        yield jvm
    finally:
        jvm.close()


def once(started: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*started, "--once"], check=False, cwd=HOME, capture_output=True, text=True)


def finish(parent: Path, case: Case, jvm: KafkaJvm, expected: Records) -> None:
    """The next run does all the work that is left."""
    ended = once(command(parent, case))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert all((parent / f"d{place}" / CLEAN_SHUTDOWN).exists() for place in range(case.directories))
    assert loaded(parent, case, jvm) == (expected, expected)


def holds(ours: Records, expected: Records) -> bool:
    return all(expected[folder].items() <= ours[folder].items() for folder in expected)


@pytest.mark.parametrize("number", range(max(1, KILLS // 3)))
def test_a_killed_process_loses_nothing_that_kafka_keeps(jvm: KafkaJvm, number: int) -> None:
    chance = random.Random(f"{SEED} {number}")
    case = undamaged_case(number)
    expected = managed_by_kafka(jvm.folder / f"expected-{number}", case, jvm)
    assert any(expected.values())
    parent = jvm.folder / f"killed-{number}"
    case.lay(parent, 0)
    for _ in range(3):
        kill_after(chance.randrange(MOST_LINES), command(parent, case))
        kafkas, ours = loaded(parent, case, jvm)
        assert ours == kafkas
        assert holds(ours, expected)
    finish(parent, case, jvm, expected)


@needs_a_disk
def test_a_full_disk_costs_no_record_and_the_other_directories_go_on(jvm: KafkaJvm, tmp_path: Path) -> None:
    cases = (case for case in map(undamaged_case, range(100)) if two_busy_directories(case))
    case = next(case for number, case in enumerate(cases) if goes_offline(tmp_path / f"kafka{number}", case, jvm))
    expected = managed_by_kafka(jvm.folder / "expected-full", case, jvm)
    parent = tmp_path / "ours"
    with full_disk(parent, case) as filler:
        ended = once(command(parent, case))
        # Retention may free the space that the other work needs. Then everything is done.
        assert (ended.returncode == 0) == (ended.stderr == "")
        assert all("No space left on device" in line for line in ended.stderr.splitlines())
        filler.unlink()
        kafkas, ours = loaded(parent, case, jvm)
        assert ours == kafkas
        assert holds(ours, expected)
        others = [each.folder for each in case.partitions if each.directory != 0]
        assert {folder: ours[folder] for folder in others} == {folder: expected[folder] for folder in others}
        assert all((parent / f"d{place}" / CLEAN_SHUTDOWN).exists() for place in range(1, case.directories))
        finish(parent, case, jvm, expected)


@contextmanager
def full_disk(parent: Path, case: Case) -> Iterator[Path]:
    """Lays a case. The first directory is on a small disk of which a file, the result, uses all space that is left."""
    parent.mkdir()
    with small_disk(parent / "d0", 4 * 1024**2) as disk:
        case.lay(parent, 0)
        free = os.statvfs(disk)
        (disk / "filler").write_bytes(bytes(free.f_bavail * free.f_frsize))
        yield disk / "filler"


def goes_offline(parent: Path, case: Case, jvm: KafkaJvm) -> bool:
    """Whether Kafka takes the full directory offline. Otherwise its retention frees space, or it writes nothing."""
    with full_disk(parent, case):
        kafka = KafkaSide(parent, case, jvm.program)
        now_ms = case.lives[0].now_ms
        kafka.open(now_ms)
        offline = kafka.tick(now_ms + 60_000).offline
        kafka.end(clean=False)
    return offline == {"d0"}


def two_busy_directories(case: Case) -> bool:
    return {each.directory for each in case.partitions} == {0, 1}
