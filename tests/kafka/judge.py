"""Compares Kafka's own cleaner with Lakelog's on random logs: `python -m tests.kafka.judge --logs 1000 --seed 7 [--only
N]`.

Each log is cleaned in three ways, round by round (random_logs):

- by Kafka on a copy;
- by Lakelog in place, as `lakelog compact --kafka-dir` does;
- by Lakelog in a root into which the log was imported, as `lakelog compact --root` does. For a root, the program
  compares the files of the view log/.

After each round the three folders must have the same files with the same bytes, and the log must be clean up to the
same offset. With --retention the result of retention is compared: the segments and the log start offset.

Two versions of a compression library can produce different bytes. So for compressed batches, only the records and the
header without CRC and length are compared. If the lengths of a batch differ for this reason, the positions in the
indexes differ, too. Then each index must follow the rule for the .log of its own side.

If a log differs, the program prints the difference, does not clean this log further, and ends with exit status 1.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import typer

from bench.turns import Peer
from lakelog.cli.clean.compact import compact
from lakelog.cli.records.delete_records import delete_records
from lakelog.cli.topics.topics import import_
from storage_engine.clock import ManualClock
from storage_engine.config import BrokerConfig
from storage_engine.errors import LogError
from storage_engine.kafka_dir.log_manager import LogManager
from storage_engine.log.checkpoint import (
    CLEAN_SHUTDOWN,
    FIRST_DIRTY_OFFSETS,
    LEADER_EPOCHS,
    LOG_STARTS,
    PARTITION_METADATA,
    decode_offsets,
    encode_offsets,
    encode_partition_metadata,
)
from storage_engine.log.filenames import INDEX, LOG, SNAPSHOT, TIME_INDEX
from storage_engine.log.growing_segment import index_segment
from storage_engine.record.batch import BatchTable, scan_batches
from storage_engine.record.compression import Codec
from storage_engine.record.header import CRC_POSITION, CRC_START, HEADER_BYTES, LOG_OVERHEAD, MAGIC
from storage_engine.storage.posix import PosixStorage
from storage_engine.topic.clean.topic_retention import retain_topic
from storage_engine.topic.kafka.view import settle
from storage_engine.topic.topics import Topics
from tests.kafka.random_logs import RandomLog, Round, random_log, random_log_to_retain
from tests.kafka.rules import RULES
from tests.kafka_jvm import KafkaJvm
from tests.storage_engine.record_tables import decompress

TOPIC = "t"
FOLDER = f"{TOPIC}-0"
TOPIC_ID = "judgejudgejudgejudge00"
SOURCE = Path(__file__).with_name("KafkaCleanerPeer.java")
JAVA_OPTIONS = ("-XX:+UseSerialGC", "-Xmx256m", "-XX:TieredStopAtLevel=1")
_NOT_COMPARED = (LEADER_EPOCHS, PARTITION_METADATA)
_BREAKS_OFF = {
    "Attempt to append to a full time index": "cleans that Kafka breaks off, as a time index is full",
    "Attempt to append to a full index": "cleans that Kafka breaks off, as an offset index is full",
    "Empty batches are only supported for magic v2": "cleans that Kafka breaks off, as a legacy batch is empty",
}
"""What Kafka's cleaner cannot do, by its error: docs/decisions/0030."""
Where = Literal["in place", "in a root"]


class Difference(NamedTuple):
    """A difference from Kafka's result. round: the number of the log's round; the first is 0."""

    log: int
    round: int
    where: Where
    what: str

    def __str__(self) -> str:
        return f"log {self.log}, round {self.round}, {self.where}: {self.what}"


@dataclass
class Judge:
    """Compares logs with Kafka's results. Inside a `with` block, it has a JVM.

    differences: so far. counts: what was compared.
    """

    differences: list[Difference] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def __enter__(self) -> Judge:
        self._jvm = KafkaJvm(SOURCE, JAVA_OPTIONS)
        return self

    def __exit__(self, *_: object) -> None:
        self._jvm.close()

    def clean(self, number: int, log: RandomLog) -> None:
        """Clean a log by Kafka and by ours, and note what differs."""
        self.counts.update(log.counts)
        with tempfile.TemporaryDirectory(dir=self._jvm.folder) as folder:
            trial = _Trial(Path(folder), log, self._jvm.program)
            for place, each in enumerate(log.rounds):
                found = [Difference(number, place, where, what) for where, what in trial.clean(each, self.counts)]
                self.counts["rounds"] += 1
                self.differences += found
                if found or trial.ended:
                    break

    def retain(self, number: int, log: RandomLog) -> None:
        """Apply retention to a log by Kafka and by ours, and note what differs."""
        self.counts.update(log.counts)
        with tempfile.TemporaryDirectory(dir=self._jvm.folder) as folder:
            trial = _Trial(Path(folder), log, self._jvm.program)
            found = trial.retain(log.rounds[0], self.counts)
            self.differences += [Difference(number, 0, where, what) for where, what in found]


class _Trial:
    """One log in three places. ended: it cannot be cleaned further."""

    ended = False

    def __init__(self, folder: Path, log: RandomLog, kafka: Peer) -> None:
        self._log = log
        self._kafka = kafka
        self._theirs, self._in_place, self._arriving = (folder / name for name in ("kafka", "in-place", "arriving"))
        self._root = folder / "root"
        self._configs = [f"{key}={value}" for key, value in log.settings.items()]
        self._start = 0

    def clean(self, each: Round, counts: Counter[str]) -> Iterator[tuple[Where, str]]:
        for parent in (self._theirs, self._in_place):
            _lay(parent, each)
        ratio = {"min.cleanable.dirty.ratio": "0.0"} if self._log.force else {}
        answer = self._ask("clean", each, ratio)
        self.ended = isinstance(answer, dict)
        if self.ended:
            known = [count for words, count in _BREAKS_OFF.items() if words in answer["error"]]
            if not known:
                yield "in place", f"Kafka fails: {answer['error']}"
                return
            counts.update(known)
        counts["cleans"] += answer is not None
        interval = int(self._log.settings["index.interval.bytes"])
        expected = None if self.ended else _Left.of(self._theirs, each.log_start_offset)
        said, failed = _quietly(
            lambda: compact(
                topic=None, now=each.now_ms, force=self._log.force, kafka_dir=self._in_place, config=self._configs,
                root=None, conf=None,
            )
        )  # fmt: skip
        yield from (
            ("in place", what)
            for what in _compared(expected, _Left.of(self._in_place, each.log_start_offset), said, failed, interval)
        )
        if (problem := self._import(each)) is not None:
            yield "in a root", f"import fails: {problem}"
            return
        said, failed = _quietly(
            lambda: compact(
                topic=[TOPIC], now=each.now_ms, force=self._log.force, kafka_dir=None, config=None,
                root=str(self._root), conf=None,
            )
        )  # fmt: skip
        shown = _Left.of(self._root / "log", each.log_start_offset)
        yield from (("in a root", what) for what in _compared(expected, shown, said, failed, interval, counts))

    def retain(self, each: Round, counts: Counter[str]) -> Iterator[tuple[Where, str]]:
        for parent in (self._theirs, self._in_place):
            _lay(parent, each)
        before = _segments(self._theirs)
        answer = self._ask("retain", each, {})
        if isinstance(answer, dict):
            yield "in place", f"Kafka fails: {answer['error']}"
            return
        left = _segments(self._theirs)
        counts["retentions that delete"] += left != before
        counts["segments deleted"] += len(before - left)
        clock = ManualClock(each.now_ms)
        with LogManager([self._in_place], topics={TOPIC: self._log.settings}, clock=clock) as logs:
            log = logs.log(TOPIC, 0)
            log.apply_retention()
            start = log.log_start_offset
        yield from (("in place", what) for what in _retained(answer, left, start, _segments(self._in_place)))
        if (problem := self._import(each)) is not None:
            yield "in a root", f"import fails: {problem}"
            return
        topics = Topics(PosixStorage(self._root), BrokerConfig(), clock)
        start = retain_topic(topics.chain(TOPIC), topics.broker).state.partitions[0].log_start_offset
        settle(topics)
        yield from (("in a root", what) for what in _retained(answer, left, start, _segments(self._root / "log")))

    def _ask(self, what: str, each: Round, more: Mapping[str, str]) -> Any:
        config = {**self._log.settings, **more}
        config["internal.segment.bytes"] = config.pop("segment.bytes")
        return self._kafka.ask(
            {
                "what": what, "parent": str(self._theirs), "folder": FOLDER, "config": config, "now": each.now_ms,
                "start": each.log_start_offset, "clean": True,
            }
        )  # fmt: skip

    def _import(self, each: Round) -> str | None:
        """Bring the root up to a round: by importing what it shows together with the new files.

        Returns:
            What was said against it.
        """
        is_new = not self._root.exists()
        self._root.mkdir(exist_ok=True)
        shutil.rmtree(self._arriving, ignore_errors=True)
        if not is_new:
            shutil.copytree(self._root / "log", self._arriving)
        _lay(self._arriving, each, with_start=is_new)
        said, failed = _quietly(
            lambda: import_(
                directory=self._arriving, topic=None, config=self._configs if is_new else None, move=False,
                root=str(self._root), conf=None,
            )
        )  # fmt: skip
        if not failed and not is_new and each.log_start_offset > self._start:
            said, failed = _quietly(
                lambda: delete_records(
                    topic=TOPIC, partition=0, offset=each.log_start_offset, root=str(self._root), conf=None
                )
            )
        self._start = each.log_start_offset
        return said if failed else None


def _segments(parent: Path) -> set[str]:
    return {path.name for path in (parent / FOLDER).glob(f"*{LOG}")}


def _retained(kafkas_start: int, kafkas: set[str], start: int, left: set[str]) -> Iterator[str]:
    if start != kafkas_start:
        yield f"the log starts at {start}, Kafka's at {kafkas_start}"
    if left != kafkas:
        yield f"left that Kafka deletes: {sorted(left - kafkas)}, gone that Kafka keeps: {sorted(kafkas - left)}"


def _lay(parent: Path, each: Round, *, with_start: bool = True) -> None:
    """Put a round's files into a log directory, as after an orderly stop."""
    folder = parent / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in each.files.items():
        (folder / name).write_bytes(data)
    for name, modified_ms in each.modified_ms.items():
        os.utime(folder / name, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))
    (folder / PARTITION_METADATA).write_bytes(encode_partition_metadata(TOPIC_ID))
    (folder / LEADER_EPOCHS).write_text(f"0\n1\n0 {each.log_start_offset}\n")
    (parent / CLEAN_SHUTDOWN).touch()
    bases = [int(path.stem) for path in folder.glob(f"*{LOG}")]
    starts = {(TOPIC, 0): each.log_start_offset} if with_start and each.log_start_offset > min(bases) else {}
    (parent / LOG_STARTS).write_bytes(encode_offsets(starts))


def _quietly(command: Any) -> tuple[str, bool]:
    """What a command of the CLI says, and whether it fails."""
    said = io.TextIOWrapper(io.BytesIO(), errors="replace")
    failed = False
    with redirect_stdout(said), redirect_stderr(said):
        try:
            command()
        except typer.Exit as status:
            failed = bool(status.exit_code)
        except LogError as error:
            failed = True
            print(f"{type(error).__name__}: {error}")
    said.seek(0)
    return said.read().strip(), failed


class _Left(NamedTuple):
    """What lies in a log directory after a clean."""

    files: Mapping[str, bytes]
    first_dirty_offset: int

    @classmethod
    def of(cls, parent: Path, log_start_offset: int) -> _Left:
        files = {
            path.name: path.read_bytes()
            for path in (parent / FOLDER).iterdir()
            if path.suffix != ".deleted"
            and path.name not in _NOT_COMPARED
            # These Kafka removes when it loads a log, and no clean would.
            and not (path.suffix == SNAPSHOT and int(path.stem) <= log_start_offset)
        }
        checkpoint = parent / FIRST_DIRTY_OFFSETS
        offsets = decode_offsets(checkpoint.read_bytes(), checkpoint.name) if checkpoint.exists() else {}
        # What lies below the log start counts as the log start, whether it is written down (Kafka) or not (ours).
        return cls(files, max(log_start_offset, offsets.get((TOPIC, 0), 0)))


def _compared(
    kafka: _Left | None,
    ours: _Left,
    said: str,
    failed: bool,
    index_interval_bytes: int,
    counts: Counter[str] | None = None,
) -> Iterator[str]:
    """The differences of our result, in words. If Kafka left no result, the only possible difference is a failure of
    ours."""
    if failed:
        yield f"fails: {said}"
        return
    if kafka is None:
        return
    if kafka.first_dirty_offset != ours.first_dirty_offset:
        yield f"clean up to {ours.first_dirty_offset}, Kafka up to {kafka.first_dirty_offset}"
    if missing := sorted(kafka.files.keys() - ours.files.keys()):
        yield f"has no {', '.join(missing)}"
    if extra := sorted(ours.files.keys() - kafka.files.keys()):
        yield f"has {', '.join(extra)}, Kafka has not"
    for name in sorted(kafka.files.keys() & ours.files.keys()):
        theirs, mine = kafka.files[name], ours.files[name]
        if theirs == mine:
            continue
        stem, _, suffix = name.partition(".")
        if name.endswith(LOG):
            yield from (f"{name}: {what}" for what in differing_batches(theirs, mine, counts))
        elif suffix in (INDEX[1:], TIME_INDEX[1:]):
            logs = kafka.files[stem + LOG], ours.files.get(stem + LOG, b"")
            rules = [index_by_rule(int(stem), log, index_interval_bytes, f".{suffix}") for log in logs]
            if [theirs, mine] != rules or batch_sizes(logs[0]) == batch_sizes(logs[1]):
                yield f"{name}: {mine.hex()}, Kafka's {theirs.hex()}"
        else:
            yield f"{name}: {mine.hex()}, Kafka's {theirs.hex()}"


def index_by_rule(base_offset: int, log: bytes, interval: int, suffix: str) -> bytes:
    indexed = index_segment(base_offset, scanned(log), interval)
    return indexed.offset_index_bytes() if suffix == INDEX else indexed.time_index_bytes()


def scanned(log: bytes) -> BatchTable:
    table = scan_batches(np.frombuffer(log, np.uint8), "a .log")
    assert table.end == len(log)
    return table


def batch_sizes(log: bytes) -> list[int]:
    return [int(size) for size in scanned(log).sizes]


def differing_batches(theirs: bytes, ours: bytes, counts: Counter[str] | None) -> Iterator[str]:
    """The first batch that differs, in words. Equal batches of different sizes are counted."""
    both = [[_Batch.of(log, table, row) for row in range(len(table))] for log, table in _with_table(theirs, ours)]
    for number, (one, other) in enumerate(zip(*both, strict=False)):
        if one.contents != other.contents:
            yield f"batch {number} is {other}, Kafka's {one}"
            return
        if counts is not None and one.data != other.data:
            codec = Codec(one.codec).name.lower()
            counts[f"{codec} batches compressed to other bytes"] += 1
            counts[f"{codec} batches compressed to another size"] += len(one.data) != len(other.data)
    if len(both[0]) != len(both[1]):
        shorter, longer = sorted(both, key=len)
        yield f"{len(both[1])} batches, Kafka {len(both[0])}; one has {longer[len(shorter)]} behind"


def _with_table(*logs: bytes) -> Iterator[tuple[bytes, BatchTable]]:
    for log in logs:
        yield log, scanned(log)


class _Batch(NamedTuple):
    data: bytes
    codec: int
    contents: bytes
    words: str

    @classmethod
    def of(cls, log: bytes, table: BatchTable, row: int) -> _Batch:
        position, size, codec = (int(column[row]) for column in (table.positions, table.sizes, table.codecs))
        data = log[position : position + size]
        contents = data
        if codec and table.magics[row] == MAGIC:  # older messages have another header
            records = decompress(Codec(codec), data[HEADER_BYTES:])
            contents = data[:8] + data[LOG_OVERHEAD:CRC_POSITION] + data[CRC_START:HEADER_BYTES] + records
        words = ", ".join(
            f"{name} {int(getattr(table, column)[row])}"
            for name, column in (
                ("offset", "base_offsets"),
                ("to", "last_offsets"),
                ("attributes", "attributes"),
                ("base timestamp", "base_timestamps"),
                ("largest", "max_timestamps"),
                ("producer", "producer_ids"),
                ("epoch", "producer_epochs"),
                ("sequence", "base_sequences"),
                ("records", "records_counts"),
                ("bytes", "sizes"),
            )
        )
        return cls(data, codec, contents, words)

    def __str__(self) -> str:
        return f"({self.words})"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kafka.judge", allow_abbrev=False)
    parser.add_argument("--logs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--only", type=int, help="the number of one log")
    parser.add_argument("--retention", action="store_true", help="retention instead of cleaning")
    parser.add_argument("--rules", action="store_true", help="switch rules off, one by one, until a log shows it")
    given = parser.parse_args()
    numbers = range(given.logs) if given.only is None else [given.only]
    if given.rules:
        return _switch_rules_off(given.seed, numbers)
    began = time.monotonic()
    differing = set()
    with Judge() as judge:
        for number in numbers:
            told = len(judge.differences)
            if given.retention:
                judge.retain(number, random_log_to_retain(given.seed, number))
            else:
                judge.clean(number, random_log(given.seed, number))
            for difference in judge.differences[told:]:
                differing.add(number)
                print(difference, flush=True)
    for what, count in sorted(judge.counts.items()):
        print(f"{count:10,}  {what}")
    print(f"{len(numbers)} logs of seed {given.seed} in {time.monotonic() - began:.0f} s: {len(differing)} differ")
    return 1 if differing else 0


def _switch_rules_off(seed: int, numbers: Sequence[int]) -> int:
    """For each rule, find the first log that shows that the rule is missing. With all rules, this log must show no
    difference."""
    unnoticed = 0
    with Judge() as judge:
        for rule, switch in RULES.items():
            noticed = None
            for number in numbers:
                log = random_log(seed, number)
                with switch():
                    judge.clean(number, log)
                if judge.differences:
                    noticed, judge.differences = judge.differences[0], []
                    judge.clean(number, log)
                    if not judge.differences:
                        break
                    noticed, judge.differences = None, []
            print(f"{rule}: " + (f"noticed by {noticed}"[:200] if noticed else "not noticed"), flush=True)
            unnoticed += noticed is None
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main())
