"""Compares Kafka's own log manager with `lakelog log-manager` on random log directories: `python -m
tests.kafka.log_manager.judge --directories 500 --seed 7 [--only 13 409]`.

Kafka's LogManager and LogCleaner run in one JVM with a simulated clock (KafkaLogManagerPeer.java), on a copy of the
directories of each case (random_directories). Lakelog's log manager runs on another copy, with the same clock, the same
server.properties and the same settings of topics. Both live for the same simulated days. The following is compared:

- after the start and after each tick: log start and end, recovery point, high watermark and last stable offset of each
  log; directories that went offline; partitions that can no longer be cleaned;
- after the start, if records are damaged: each record that Kafka can still read must be readable by Lakelog, too;
- after each life: the names and bytes of all files, the checkpoints, .kafka_cleanshutdown.

Batches that are compressed by other versions of a library are compared as in tests.kafka.judge. Decision
0063 lists the differences that exist on purpose. If a case differs, the program prints the differences, and ends with exit
status 1.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from bench.turns import Peer
from storage_engine.errors import LogError
from storage_engine.kafka_dir.log_directory import DELETED_FOLDER, FUTURE_FOLDER
from storage_engine.log.checkpoint import CLEAN_SHUTDOWN
from storage_engine.log.filenames import LOG, TIME_INDEX
from tests.kafka.log_manager.comparison import Folder, compare, same_offsets
from tests.kafka.log_manager.derivations import Derivations, Found
from tests.kafka.log_manager.random_directories import Case, random_case
from tests.kafka.log_manager.sides import KafkaError, KafkaSide, Offsets, OurSide, Seen
from tests.kafka_jvm import KafkaJvm

SOURCE = Path(__file__).with_name("KafkaLogManagerPeer.java")
JAVA_OPTIONS = ("-XX:+UseSerialGC", "-Xmx384m", "-XX:TieredStopAtLevel=1")
CASES_A_JVM = 60


class Difference(NamedTuple):
    """A difference from Kafka. life: its number; the first is 0."""

    case: int
    life: int
    where: str
    what: str

    def __str__(self) -> str:
        return f"case {self.case}, life {self.life}, {self.where}: {self.what}"


@dataclass
class ManagerJudge:
    """Compares cases. Inside a `with` block, it has a JVM.

    differences: so far. counts: what was compared.
    """

    differences: list[Difference] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def __enter__(self) -> ManagerJudge:
        self._jvm = KafkaJvm(SOURCE, JAVA_OPTIONS)
        self._asked = 0
        return self

    def __exit__(self, *_: object) -> None:
        self._jvm.close()

    def judge(self, number: int, case: Case) -> None:
        """Run a case by Kafka and by Lakelog, and note what differs."""
        self.counts.update(case.counts)
        self._asked += 1
        if self._asked % CASES_A_JVM == 0:  # Kafka's metrics keep a part of each manager in memory
            self._jvm.restart()
        with tempfile.TemporaryDirectory(dir=self._jvm.folder) as folder:
            trial = _Trial(Path(folder), case, self._jvm.program, self.counts)
            for life in range(len(case.lives)):
                found = [Difference(number, life, where, what) for where, what in trial.live(life)]
                self.differences += found
                self.counts["lives"] += 1
                if found or trial.ended:
                    break


class _Trial:
    """One case in two places. ended: no further life is compared."""

    def __init__(self, folder: Path, case: Case, kafka: Peer, counts: Counter[str]) -> None:
        self.ended = False
        self._case = case
        self._counts = counts
        self._theirs, self._ours = folder / "kafka", folder / "ours"
        for parent in (self._theirs, self._ours):
            parent.mkdir()
        self._kafka = KafkaSide(self._theirs, case, kafka)
        self._lakelog = OurSide(self._ours, case)
        self._left_out: set[str] = set()
        self._lost_epochs: set[str] = set()
        self._known: dict[str, tuple[Derivations, Derivations]] = {}
        self._recovered: dict[str, list[int]] = {}

    def live(self, number: int) -> Iterator[tuple[str, str]]:
        """The differences of one life."""
        life = self._case.lives[number]
        for parent in (self._theirs, self._ours):
            self._case.lay(parent, number)
        found = [self._found(parent) for parent in (self._theirs, self._ours)]
        self._lost_epochs |= {folder for folder, each in found[0].items() if not each.has_epoch}
        try:
            theirs = self._kafka.open(life.now_ms)
        except KafkaError as error:
            yield "start", f"Kafka fails: {error}"
            return
        try:
            ours = self._lakelog.open(life.now_ms)
        except LogError as error:
            self._kafka.end(clean=False)
            yield "start", f"fails: {error}"
            return
        self._known = self._derivations(found, ours, life.now_ms)
        self._recovered = self._lakelog.recovered()
        self._date_changes(life.now_ms)
        self._leave_out_empty_time_indexes()
        self._leave_out_empty_segments()
        self._leave_out_missing_transactions()
        self._leave_out_empty_batches()
        yield from self._lost_records(theirs, ours)
        yield from self._differing("start", theirs, ours)
        for tick in life.ticks:
            # A log that differs on purpose is not cleaned between the others. It would change when retention comes.
            theirs, ours = (side.tick(tick, self._left_out) for side in (self._kafka, self._lakelog))
            self._date_changes(tick)
            self._left_out |= theirs.uncleanable
            differing = list(self._differing(f"tick {tick}", theirs, ours))
            yield from differing
            if differing:
                break
            for folder, batch in life.appends.get(tick, ()):
                if folder in theirs.logs and folder in ours.logs:
                    self._kafka.append(folder, batch)
                    self._lakelog.append(folder, batch)
                    for known in self._known[folder]:
                        known.read_batches()
        self._kafka.end(clean=life.ends_clean)
        self._lakelog.end(clean=life.ends_clean)
        expiration_ms = self._case.intervals["producer_expiration"]
        folders = {
            folder: Folder(
                int(self._case.settings[folder.rpartition("-")[0]]["index.interval.bytes"]), each.start, each.end,
                life.ticks[-1], expiration_ms, life.ends_clean,
                self._recovered.get(folder, ()), folder in self._lost_epochs, *self._known[folder],
            )
            for folder, each in ours.logs.items()
        }  # fmt: skip
        for place in range(self._case.directories):
            yield from self._compare_directory(place, folders, was_clean=self._was_clean(number))
        yield from self._changed_aside()

    def _was_clean(self, number: int) -> bool:
        """Whether the directories were closed in order before a life."""
        return self._case.lives[number - 1].ends_clean if number else self._case.starts_clean

    def _compare_directory(
        self, place: int, folders: Mapping[str, Folder], *, was_clean: bool
    ) -> Iterator[tuple[str, str]]:
        theirs, ours = self._theirs / f"d{place}", self._ours / f"d{place}"
        moving = {
            each.partition.folder
            for each in self._case.aside
            if each.directory == place and each.name.endswith(FUTURE_FOLDER)
        }
        yield from compare(theirs, ours, folders, self._left_out, moving)
        clean = (theirs / CLEAN_SHUTDOWN).exists(), (ours / CLEAN_SHUTDOWN).exists()
        if moving and not was_clean and clean == (True, False):
            self.ended = True  # Lakelog does not open logs with the suffix -future, so the next start must recover them
        elif clean[0] != clean[1]:
            yield f"d{place}/{CLEAN_SHUTDOWN}", f"{clean[1]}, Kafka {clean[0]}"

    def _changed_aside(self) -> Iterator[tuple[str, str]]:
        """The files that Lakelog has changed in folders with the suffixes -future and -stray. Kafka opens their logs."""
        for each in self._case.aside:
            folder = self._ours / f"d{each.directory}" / each.name
            if not each.name.endswith(DELETED_FOLDER):
                files = {name: (folder / name).read_bytes() for name in each.partition.log.rounds[0].files}
                if files != each.partition.log.rounds[0].files:
                    yield str(folder.relative_to(self._ours)), "was changed"

    def _found(self, parent: Path) -> dict[str, Found]:
        """What is in the folder of each partition before a life."""
        return {each.folder: Found.at(parent / f"d{each.directory}" / each.folder) for each in self._case.partitions}

    def _derivations(
        self, found: Sequence[Mapping[str, Found]], ours: Seen, now_ms: int
    ) -> dict[str, tuple[Derivations, Derivations]]:
        """What can be known about the producers of each log, on both sides."""
        expiration_ms = self._case.intervals["producer_expiration"]
        known = {}
        for each in self._case.partitions:
            if each.folder in ours.logs:
                start = ours.logs[each.folder].start
                theirs, mine = (
                    Derivations(
                        before[each.folder], parent / f"d{each.directory}" / each.folder, start, now_ms, expiration_ms
                    )
                    for before, parent in zip(found, (self._theirs, self._ours), strict=True)
                )
                known[each.folder] = theirs, mine
        return known

    def _date_changes(self, now_ms: int) -> None:
        """Give files that were changed by the real clock the simulated time. Kafka asks the file system for this time if
        no record of a segment has a timestamp."""
        for parent in (self._theirs, self._ours):
            for file in parent.glob(f"*/*/*{LOG}"):
                if file.stat().st_mtime_ns > now_ms * 1_000_000:
                    os.utime(file, ns=(now_ms * 1_000_000, now_ms * 1_000_000))

    def _leave_out_empty_time_indexes(self) -> None:
        """Leave out the logs in which Kafka has made an empty time index in place of a missing one. Kafka then decides by
        the times at which the files were changed, and Lakelog by the times of the records."""
        for file in self._theirs.glob(f"*/*/*{TIME_INDEX}"):
            ours = self._ours / file.relative_to(self._theirs)
            if not file.read_bytes().strip(b"\0") and ours.exists() and ours.read_bytes().strip(b"\0"):
                self._left_out.add(file.parent.name)
                self._counts["logs in which Kafka loses a time index"] += 1

    def _leave_out_empty_segments(self) -> None:
        """Leave out the logs that end with a segment without an intact batch. Kafka keeps the segment as an empty one."""
        for file in self._theirs.glob(f"*/*/*{LOG}"):
            if file.stat().st_size == 0 and not (self._ours / file.relative_to(self._theirs)).exists():
                self._left_out.add(file.parent.name)
                self._counts["logs in which Kafka keeps a segment without an intact batch"] += 1

    def _leave_out_missing_transactions(self) -> None:
        """Leave out the logs in which Kafka misses an aborted transaction. Its cleaner then keeps records of it."""
        for folder, (theirs, ours) in self._known.items():
            missing = ours.aborted_now() - theirs.aborted_now()
            if missing and missing <= ours.aborted(ours.end) and folder not in self._left_out:
                self._left_out.add(folder)
                self._counts["logs in which Kafka misses an aborted transaction"] += 1

    def _leave_out_empty_batches(self) -> None:
        """Leave out the logs in which only one cleaner has left an empty batch of a transaction, because only one log manager
        knows its producer. This cleaner also keeps the marker of the transaction for longer."""
        for folder, (theirs, ours) in self._known.items():
            if theirs.empty_batches() != ours.empty_batches() and folder not in self._left_out:
                self._left_out.add(folder)
                self._counts["logs in which only one side has an empty batch"] += 1

    def _lost_records(self, theirs: Seen, ours: Seen) -> Iterator[tuple[str, str]]:
        """The records that Kafka can read and Lakelog cannot, of the logs in which damage was cut out. Leave out the logs in
        which only Lakelog keeps what follows the damage."""
        damaged = self._lakelog.damaged() - self._left_out
        if self._case.truncates or not damaged:
            return
        kept = self._kafka.records(), self._lakelog.records()
        for folder in sorted(damaged):
            kafkas, others = (each[folder] for each in kept)
            lost = [offset for offset, crc in kafkas.items() if others.get(offset) != crc]
            if lost:
                yield folder, f"{len(lost)} records that Kafka has are lost, the first is {lost[0]}"
            more = len(others) - len(kafkas)
            self._counts["records that only Lakelog keeps"] += more
            if more or ours.logs[folder].end > theirs.logs[folder].end:  # the rest may have only markers
                self._left_out.add(folder)

    def _knows_other_transaction(self, folder: str, theirs: Offsets, ours: Offsets) -> bool:
        """Whether only one side knows an open transaction.

        Only Lakelog knows one that began below the log start, one before a snapshot that Kafka misses, and one whose
        marker is above the high watermark, but below the snapshot that Kafka has loaded. If a gap in the log has the marker,
        only the snapshots behind the gap say that the transaction has ended. Kafka deletes them if it recovers a segment.
        """
        known = self._known[folder]
        return (
            (ours.last_stable_offset < theirs.last_stable_offset or folder in self._recovered)
            and same_offsets(theirs._replace(last_stable_offset=0), ours._replace(last_stable_offset=0))
            and theirs.last_stable_offset in known[0].stable_offsets(theirs.start, theirs.high_watermark)
            and ours.last_stable_offset in known[1].stable_offsets(ours.start, ours.high_watermark)
        )

    def _differing(self, when: str, theirs: Seen, ours: Seen) -> Iterator[tuple[str, str]]:
        if theirs.offline != ours.offline:
            yield when, f"offline {sorted(ours.offline)}, Kafka {sorted(theirs.offline)}"
        for folder in sorted((theirs.logs.keys() | ours.logs.keys()) - self._left_out):
            one, other = theirs.logs.get(folder), ours.logs.get(folder)
            if same_offsets(one, other):
                continue
            if one is not None and other is not None and self._knows_other_transaction(folder, one, other):
                self._left_out.add(folder)
                self._counts["logs in which only one side knows an open transaction"] += 1
            else:
                yield f"{when}, {folder}", f"{other}, Kafka {one}"


def judge_all(judge: ManagerJudge, cases: Iterable[tuple[int, Case]], seed: int) -> int:
    """Judge numbered cases, and print what differs and the figures. Returns the exit status."""
    began = time.monotonic()
    judged, differing = 0, set()
    for number, case in cases:
        told = len(judge.differences)
        judge.judge(number, case)
        judged += 1
        for difference in judge.differences[told:]:
            differing.add(number)
            print(difference, flush=True)
    for what, count in sorted(judge.counts.items()):
        print(f"{count:10,}  {what}")
    took = time.monotonic() - began
    print(f"{judged} cases of seed {seed} in {took:.0f} s: {len(differing)} differ")
    return 1 if differing else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kafka.log_manager.judge", allow_abbrev=False)
    parser.add_argument("--directories", type=int, default=500, help="the number of cases")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--only", type=int, nargs="+", help="the numbers of single cases")
    given = parser.parse_args()
    numbers = range(given.first, given.first + given.directories) if given.only is None else given.only
    with ManagerJudge() as judge:
        return judge_all(judge, ((number, random_case(given.seed, number)) for number in numbers), given.seed)


if __name__ == "__main__":
    sys.exit(main())
