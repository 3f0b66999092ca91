"""Makes random log directories as a broker could have left them, to compare Kafka's log manager with Lakelog's.

A case has one to three log directories with the partitions of one to three topics, and one to three lives. In each life,
new segments are laid beside those that the last life left, files are damaged, and the manager runs for some simulated
days. A life ends with an orderly stop or with a crash. The same number always gives the same case.

The cases vary in all that random_logs varies, and in:

- the topics' settings for retention and compaction, the broker's intervals, the times at which the manager works;
- checkpoints: recovery points anywhere, first dirty offsets, log start offsets, high watermarks anywhere or at the logs'
  ends;
- after an orderly stop: missing indexes and snapshots, files and folders that a broker had set aside or not finished;
- folders that a broker has set aside, to move, delete or forget a partition;
- appends in the last life but one, with rolls, and a further life after them;
- after a crash: also torn tails, zeros and garbage at the end, damaged batches and indexes.

A damage is a function of a partition's folder, so that the same damage can be done to two copies of the folder.
"""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from storage_engine.log.checkpoint import (
    CLEAN_SHUTDOWN,
    FIRST_DIRTY_OFFSETS,
    HIGH_WATERMARKS,
    LEADER_EPOCHS,
    LOG_STARTS,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    encode_offsets,
    encode_partition_metadata,
)
from storage_engine.log.filenames import INDEX, LOG, SNAPSHOT, TIME_INDEX, TRANSACTION_INDEX
from storage_engine.record.batch import scan_batches
from storage_engine.record.compression import Codec
from storage_engine.record.header import HEADER_BYTES
from tests.kafka.random_logs import DAY_MS, RandomLog, Record, Round, Sender, encode_batch, random_log_of

TOPIC_ID = "judgejudgejudgejudge00"
MINUTE_MS, HOUR_MS = 60_000, 3_600_000
LOG_END = 2**62
"""A high watermark that stands for the end of the log, also after appends."""
Damage = Callable[[Path], None]
"""Damages the files in a partition's folder."""


@dataclass(frozen=True)
class Partition:
    """A partition: the number of its log directory, the name of its folder, and its files."""

    directory: int
    folder: str
    log: RandomLog

    @property
    def topic(self) -> str:
        return self.folder.rpartition("-")[0]


@dataclass(frozen=True)
class Life:
    """One run of a manager.

    now_ms: when it starts. ticks: when it works. damages: what is damaged before, by folder. loses: the folders whose
    damage costs intact records in Kafka. ends_clean: whether it ends with an orderly stop.
    appends: batches that are appended after a tick, each with the folder of its partition.
    """

    now_ms: int
    ticks: tuple[int, ...]
    damages: Mapping[str, tuple[Damage, ...]]
    loses: frozenset[str]
    ends_clean: bool
    appends: Mapping[int, tuple[tuple[str, bytes], ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Aside:
    """A folder that a broker has set aside: a partition of another directory that it moves (-future), or that it does not
    know (-stray), or that it deletes (-delete).

    directory: the number of its log directory. partition: the partition with the same files.
    """

    directory: int
    name: str
    partition: Partition


@dataclass(frozen=True)
class Case:
    """Log directories and the lives of their manager.

    settings: of each topic, by Kafka's keys. intervals: of the manager's tasks, in milliseconds.
    starts_clean: whether the directories were closed in order. truncates: whether Lakelog ends a log at its damage.
    """

    directories: int
    partitions: tuple[Partition, ...]
    settings: Mapping[str, Mapping[str, str]]
    intervals: Mapping[str, int]
    lives: tuple[Life, ...]
    checkpoints: tuple[Mapping[str, Mapping[tuple[str, int], int]], ...]
    starts_clean: bool
    truncates: bool
    counts: Counter[str] = field(default_factory=Counter)
    aside: tuple[Aside, ...] = ()

    def lay(self, parent: Path, number: int) -> None:
        """Put the files of a life into the log directories below `parent`, and damage them."""
        life = self.lives[number]
        for place in range(self.directories):
            directory = parent / f"d{place}"
            directory.mkdir(parents=True, exist_ok=True)
            if number == 0:
                for name, offsets in self.checkpoints[place].items():
                    (directory / name).write_bytes(encode_offsets(offsets))
                if self.starts_clean:
                    (directory / CLEAN_SHUTDOWN).touch()
        for partition in self.partitions:
            folder = parent / f"d{partition.directory}" / partition.folder
            if number == 0 or self.lives[number - 1].ends_clean:  # a broker appends only to what it has recovered
                for each in partition.log.rounds[number : number + 1]:
                    _lay(folder, each, is_new=number == 0)
            for damage in life.damages.get(partition.folder, ()):
                damage(folder)
        for aside in self.aside if number == 0 else ():
            _lay(parent / f"d{aside.directory}" / aside.name, aside.partition.log.rounds[0], is_new=True)


def random_case(seed: int, number: int) -> Case:
    """The case with this number."""
    case = _Maker(random.Random(f"log manager {seed} {number}")).case()
    chance = random.Random(f"additions {seed} {number}")
    return _with_appends(chance, _with_folders_aside(chance, case))


def _with_folders_aside(chance: random.Random, case: Case) -> Case:
    found = []
    for partition in case.partitions:
        kind, place = chance.choice(["delete", "stray", "future"]), chance.randrange(case.directories)
        if chance.random() < 0.15 and (kind != "future" or place != partition.directory):
            found.append(Aside(place, f"{partition.folder}.{chance.randbytes(16).hex()}-{kind}", partition))
            case.counts[f"folders with the suffix -{kind}"] += 1
    return replace(case, aside=tuple(found))


def _with_appends(chance: random.Random, case: Case) -> Case:
    """The case with appends in its last life, and a further life after them. Only logs whose high watermarks are their
    ends get appends.
    """
    marks = {key: at for each in case.checkpoints for key, at in each[HIGH_WATERMARKS].items()}
    if chance.random() < 0.6 or list(marks.values()) != [LOG_END] * len(case.partitions):
        return case
    *before, last = case.lives
    appends: dict[int, tuple[tuple[str, bytes], ...]] = {}
    for tick in last.ticks[::2]:
        for _ in range(chance.randrange(4)):
            partition = chance.choice(case.partitions)
            appends[tick] = (*appends.get(tick, ()), (partition.folder, _batch(chance, tick)))
            case.counts["appended batches"] += 1
    began = last.ticks[-1]
    further = Life(began, (began + HOUR_MS, began + DAY_MS), {}, frozenset(), chance.random() < 0.5)
    return replace(case, lives=(*before, replace(last, appends=appends), further))


def _batch(chance: random.Random, now_ms: int) -> bytes:
    """A batch of some records, of no producer or of a new idempotent one."""
    records = [
        Record(
            now_ms - chance.randrange(MINUTE_MS), b"k%d" % chance.randrange(9), chance.randbytes(chance.randrange(60))
        )
        for _ in range(chance.randrange(1, 12))
    ]
    sender = chance.choice([Sender(), Sender(chance.randrange(2**40), 0, 0)])
    return encode_batch(0, records, chance.choice([Codec.NONE, Codec.GZIP]), sender)


def _lay(folder: Path, each: Round, *, is_new: bool) -> None:
    folder.mkdir(exist_ok=True)
    for name, data in each.files.items():
        (folder / name).write_bytes(data)
    for name, modified_ms in each.modified_ms.items():
        os.utime(folder / name, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))
    if is_new:
        (folder / PARTITION_METADATA).write_bytes(encode_partition_metadata(TOPIC_ID))
        (folder / LEADER_EPOCHS).write_text(f"0\n1\n0 {each.log_start_offset}\n")


class _Maker:
    """Makes one case."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.counts: Counter[str] = Counter()

    def case(self) -> Case:
        chance = self.chance
        directories = chance.choice([1, 1, 2, 3])
        lives = chance.choice([1, 1, 2, 3])
        settings = {f"t{number}": self._settings() for number in range(chance.choice([1, 1, 2, 3]))}
        partitions = tuple(
            Partition(chance.randrange(directories), f"{topic}-{number}", random_log_of(chance, own, lives))
            for topic, own in settings.items()
            for number in range(chance.choice([1, 1, 2]))
        )
        for partition in partitions:
            self.counts += partition.log.counts
        clean = [chance.random() < 0.6] + [chance.random() < 0.7 for _ in range(lives)]
        self.counts["log directories"] += directories
        self.counts["partitions"] += len(partitions)
        points = {each.folder: self._recovery_point(each.log) for each in partitions}
        self.high_watermarks = chance.random() < 0.3
        return Case(
            directories, partitions, settings, self._intervals(), self._lives(partitions, clean, points),
            tuple(self._checkpoints(partitions, place, points) for place in range(directories)),
            starts_clean=clean[0], truncates=chance.random() < 0.5, counts=self.counts,
        )  # fmt: skip

    def _settings(self) -> dict[str, str]:
        chance = self.chance
        settings = {
            "cleanup.policy": chance.choice(["delete", "delete", "compact", "compact", "compact,delete"]),
            "segment.bytes": chance.choice(["1024", "2048", "4096"]),
            "segment.index.bytes": "4096",
            "index.interval.bytes": chance.choice(["0", "50", "200", "1000", "4096"]),
            "retention.ms": chance.choice(["-1", "0", str(HOUR_MS), str(DAY_MS), str(3 * DAY_MS), str(7 * DAY_MS)]),
            "retention.bytes": chance.choice(["-1", "-1", "-1", "2048", "5000", "20000"]),
            "delete.retention.ms": chance.choice(["0", "60000", str(HOUR_MS), str(DAY_MS)]),
            "min.cleanable.dirty.ratio": chance.choice(["0.0", "0.01", "0.1", "0.5", "0.9"]),
            "file.delete.delay.ms": chance.choice(["60000", "60000", "0", str(HOUR_MS)]),
            "flush.ms": chance.choice([str(2**63 - 1), str(HOUR_MS), "0"]),
        }
        if chance.random() < 0.3:
            settings["min.compaction.lag.ms"] = chance.choice(["1", "30000", str(HOUR_MS), str(DAY_MS)])
        if chance.random() < 0.2:
            settings["max.compaction.lag.ms"] = chance.choice([str(DAY_MS), str(2 * DAY_MS)])
        self.counts[f"topics with cleanup.policy {settings['cleanup.policy']}"] += 1
        return settings

    def _intervals(self) -> dict[str, int]:
        chance = self.chance
        return {
            "retention": chance.choice([5 * MINUTE_MS, HOUR_MS]),
            "flush": chance.choice([MINUTE_MS, 10 * MINUTE_MS]),
            "recovery_points": chance.choice([MINUTE_MS, HOUR_MS]),
            "log_starts": chance.choice([MINUTE_MS, HOUR_MS]),
            "initial_delay": chance.choice([0, 30_000]),
            "producer_expiration": chance.choice([DAY_MS, HOUR_MS]),
        }

    def _lives(
        self, partitions: tuple[Partition, ...], clean: list[bool], points: Mapping[str, int]
    ) -> tuple[Life, ...]:
        chance, lives, now_ms = self.chance, [], 0
        for number in range(len(clean) - 1):
            now_ms = max([now_ms, *(each.log.rounds[number].now_ms for each in partitions)])
            began, ticks = now_ms, []
            for _ in range(chance.choice([1, 3, 6, 10])):
                now_ms += chance.choice([MINUTE_MS, 7 * MINUTE_MS, HOUR_MS, 8 * HOUR_MS, DAY_MS])
                ticks += [now_ms, now_ms + 1000]
                now_ms += 1000
            damages: dict[str, tuple[Damage, ...]] = {}
            loses = set()
            for each in partitions:
                found = self._damages(each.log.rounds[number], clean=clean[number], point=points[each.folder])
                damages[each.folder] = tuple(damage for damage, _ in found)
                if any(lost for _, lost in found):
                    loses.add(each.folder)
            lives.append(Life(began, tuple(ticks), damages, frozenset(loses), clean[number + 1]))
            self.counts["simulated hours"] += (now_ms - began) // HOUR_MS
            self.counts["lives after an orderly stop" if clean[number] else "lives after a crash"] += 1
        return tuple(lives)

    def _recovery_point(self, log: RandomLog) -> int:
        """Where the log is durable up to: anywhere."""
        names = sorted(name for name in log.rounds[0].files if name.endswith(LOG))
        bases = [int(name.removesuffix(LOG)) for name in names]
        return self.chance.choice([0, bases[0], self.chance.choice(bases), bases[-1], bases[-1] + 1])

    def _checkpoints(
        self, partitions: tuple[Partition, ...], place: int, points: Mapping[str, int]
    ) -> dict[str, dict[tuple[str, int], int]]:
        chance = self.chance
        here = {
            (each.topic, int(each.folder.rpartition("-")[2])): each for each in partitions if each.directory == place
        }
        found: dict[str, dict[tuple[str, int], int]] = {
            RECOVERY_POINTS: {}, LOG_STARTS: {}, FIRST_DIRTY_OFFSETS: {}, HIGH_WATERMARKS: {},
        }  # fmt: skip
        for key, each in here.items():
            first = each.log.rounds[0]
            bases = sorted(int(name.removesuffix(LOG)) for name in first.files if name.endswith(LOG))
            if chance.random() < 0.9:
                found[RECOVERY_POINTS][key] = points[each.folder]
            if first.log_start_offset > bases[0]:
                found[LOG_STARTS][key] = first.log_start_offset
            if chance.random() < 0.2:
                found[FIRST_DIRTY_OFFSETS][key] = chance.choice(bases)
            if chance.random() < 0.9:
                found[HIGH_WATERMARKS][key] = chance.choice([bases[0], chance.choice(bases), LOG_END])
        if not self.high_watermarks:
            found[HIGH_WATERMARKS] = dict.fromkeys(here, LOG_END)
        return found

    def _damages(self, each: Round, *, clean: bool, point: int) -> list[tuple[Damage, bool]]:
        """Damages, each with whether Kafka loses intact records by it."""
        chance = self.chance
        if chance.random() < 0.4:
            return []
        names = sorted(name for name in each.files if name.endswith(LOG))
        kinds = ["missing index", "missing time index", "missing snapshot", "unfinished files", "stray index"]
        if not clean:
            kinds += [
                "torn tail",
                "zeros at the end",
                "garbage at the end",
                "damaged batch",
                "insane index",
                "bad snapshot",
            ]
        kind = chance.choice(kinds)
        self.counts[f"damage: {kind}"] += 1
        name = chance.choice(names)
        stem = name.removesuffix(LOG)
        last = names[-1]
        cut, seed = chance.random(), chance.randrange(2**32)
        loses = False
        match kind:
            case "missing index":
                damage = _removed(stem + INDEX)
            case "missing time index":
                damage = _removed(stem + TIME_INDEX)
            case "missing snapshot":
                damage = _removed(stem + SNAPSHOT)
            case "unfinished files":
                damage = _unfinished(stem, chance.choice([".deleted", ".cleaned", ".swap"]))
            case "stray index":
                damage = _stray_index
            case "torn tail":
                damage = _changed(last, lambda data: data[: int(len(data) * cut)])
            case "zeros at the end":
                damage = _changed(last, lambda data: data + bytes(1 + int(200 * cut)))
            case "garbage at the end":
                damage = _changed(last, lambda data: data + random.Random(seed).randbytes(1 + int(200 * cut)))
            case "insane index":
                damage = _changed(stem + INDEX, lambda data: data + b"???")
            case "bad snapshot":
                damage = _changed(stem + SNAPSHOT, lambda data: data[:-1] + b"?")
            case _:
                unflushed = [name for name in names if int(name.removesuffix(LOG)) >= point] or [last]
                damage = _changed(chance.choice(unflushed), lambda data: _with_damaged_batch(data, cut))
                loses = True
        return [(damage, loses)]


def _removed(name: str) -> Damage:
    return lambda folder: (folder / name).unlink(missing_ok=True)


def _changed(name: str, change: Callable[[bytes], bytes]) -> Damage:
    def damage(folder: Path) -> None:
        file = folder / name
        if file.exists():
            stat = file.stat()
            file.write_bytes(change(file.read_bytes()))
            os.utime(file, ns=(stat.st_mtime_ns, stat.st_mtime_ns))

    return damage


def _unfinished(stem: str, suffix: str) -> Damage:
    """Files of a segment as an unfinished deletion, compaction or swap leaves them beside the segment."""

    def damage(folder: Path) -> None:
        for each in (LOG, INDEX, TIME_INDEX, TRANSACTION_INDEX):
            if (folder / (stem + each)).exists():
                shutil.copy2(folder / (stem + each), folder / (stem + each + suffix))

    return damage


def _stray_index(folder: Path) -> None:
    (folder / f"{7:020d}{INDEX}").write_bytes(bytes(8))
    (folder / f"{7:020d}{TIME_INDEX}").write_bytes(bytes(12))


def _with_damaged_batch(data: bytes, where: float) -> bytes:
    """A flipped bit in the records of a batch."""
    table = scan_batches(np.frombuffer(data, np.uint8), "a random log")
    if not len(table):
        return data
    row = int(where * len(table))
    place = int(table.positions[row]) + min(HEADER_BYTES, int(table.sizes[row]) - 1)
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
