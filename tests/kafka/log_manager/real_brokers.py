"""Compares Kafka's log manager with `lakelog log-manager` on the log directories of a real broker: `python -m
tests.kafka.log_manager.real_brokers --directories 20 --seed 7`.

For each directory, one broker creates some topics with random settings, gets records for them from plain, idempotent and
transactional producers, and is stopped in order or killed. Both log managers then get a copy of the broker's log directory,
and live for some simulated days in one or two lives, as in tests.kafka.log_manager.judge. If a case differs, the program
prints the differences, and ends with exit status 1.

The broker itself retains and compacts nothing. Each copy has only the topics of its directory. Internal topics are left
out: only KRaft and the coordinators know their settings.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kafka import KafkaProducer

from storage_engine.log.checkpoint import CLEAN_SHUTDOWN, decode_offsets, encode_offsets
from tests.kafka.log_manager.judge import ManagerJudge, judge_all
from tests.kafka.log_manager.random_directories import HOUR_MS, MINUTE_MS, Case, Life, Partition
from tests.kafka.random_logs import DAY_MS, RandomLog
from tests.kafka_broker import KafkaBroker

QUIET = "log.cleaner.enable=false\nlog.initial.task.delay.ms=3600000\nlog.retention.check.interval.ms=3600000\n"
MOST_RECORDS = 300
SETTINGS: Mapping[str, tuple[str, ...]] = {
    "cleanup.policy": ("delete", "compact", "compact,delete"),
    "index.interval.bytes": ("100", "4096"),
    "retention.ms": ("-1", str(HOUR_MS), str(DAY_MS), str(3 * DAY_MS)),
    "retention.bytes": ("-1", "-1", "5000", "20000"),
    "delete.retention.ms": ("60000", str(DAY_MS)),
    "min.cleanable.dirty.ratio": ("0.01", "0.5"),
    "segment.bytes": ("2048", "8192"),
    "flush.ms": (str(MINUTE_MS), str(2**63 - 1)),
}


@dataclass(frozen=True)
class BrokersCase(Case):
    """The log directory that a broker has left. data: a copy of it."""

    data: Path = Path()

    def lay(self, parent: Path, number: int) -> None:
        """Copy the broker's directory before the first life."""
        if number == 0:
            shutil.copytree(self.data, parent / "d0")


def fill(broker: KafkaBroker, chance: random.Random, prefix: str) -> dict[str, dict[str, str]]:
    """Create topics and send records to them. Returns the settings of each topic."""
    topics = {}
    for number in range(chance.choice([2, 3, 4])):
        settings = {key: chance.choice(values) for key, values in SETTINGS.items()}
        topic = f"{prefix}-{number}"
        of_broker = {"internal.segment.bytes" if key == "segment.bytes" else key: at for key, at in settings.items()}
        broker.create_topic(topic, configs=of_broker)
        topics[topic] = settings
        for producer in range(chance.choice([1, 2])):
            _send(broker, topic, chance, f"{topic}-{producer}")
    return topics


def _send(broker: KafkaBroker, topic: str, chance: random.Random, name: str) -> None:
    """Send records of the last days by a producer of a random kind."""
    kind = chance.choice(["plain", "idempotent", "transactional"])
    codec = chance.choice([None, "gzip", "lz4", "zstd", "snappy"])
    producer = KafkaProducer(
        bootstrap_servers=broker.bootstrap_servers, batch_size=chance.choice([200, 2000]), compression_type=codec,
        enable_idempotence=kind != "plain", transactional_id=name if kind == "transactional" else None,
    )  # fmt: skip
    transactional = kind == "transactional"
    if transactional:
        producer.init_transactions()
    at_ms = time.time_ns() // 1_000_000 - chance.choice([HOUR_MS, 2 * DAY_MS])
    for _ in range(chance.choice([1, 4])):
        if transactional:
            producer.begin_transaction()
        for _ in range(chance.randrange(1, MOST_RECORDS // 4)):
            value = None if chance.random() < 0.1 else chance.randbytes(chance.randrange(120))
            producer.send(topic, value, key=b"k%d" % chance.randrange(20), partition=0, timestamp_ms=at_ms)
            at_ms += chance.randrange(2000)
        producer.flush()
        if transactional and chance.random() < 0.7:
            producer.commit_transaction()
        elif transactional:
            producer.abort_transaction()
    producer.close()


def copied_case(broker: KafkaBroker, chance: random.Random, prefix: str, copy: Path) -> BrokersCase:
    """Fill the broker's topics, end the broker, and copy its log directory. The broker must be started again."""
    settings = fill(broker, chance, prefix)
    is_clean = chance.random() < 0.5
    if is_clean:
        broker.stop()
    else:
        broker.kill()
    shutil.copytree(broker.data, copy, ignore=shutil.ignore_patterns(".lock", "__*"))
    for folder in copy.glob("*-*/"):
        if folder.name.rpartition("-")[0] not in settings:
            shutil.rmtree(folder)
    for file in copy.glob("*-checkpoint"):
        offsets = decode_offsets(file.read_bytes(), file.name)
        file.write_bytes(encode_offsets({each: at for each, at in offsets.items() if each[0] in settings}))
    assert (copy / CLEAN_SHUTDOWN).exists() == is_clean
    intervals = {
        "retention": 5 * MINUTE_MS, "flush": MINUTE_MS, "recovery_points": MINUTE_MS, "log_starts": MINUTE_MS,
        "initial_delay": 30_000, "producer_expiration": chance.choice([DAY_MS, HOUR_MS]),
    }  # fmt: skip
    partitions = tuple(
        Partition(0, f"{topic}-0", RandomLog(own, False, (), Counter())) for topic, own in settings.items()
    )
    counts = Counter({"brokers stopped in order" if is_clean else "brokers killed": 1, "partitions": len(partitions)})
    return BrokersCase(1, partitions, settings, intervals, _lives(chance), ({},), is_clean, True, counts, data=copy)


def _lives(chance: random.Random) -> tuple[Life, ...]:
    """One or two lives, from now on."""
    now_ms, lives = time.time_ns() // 1_000_000, []
    for _ in range(chance.choice([1, 2])):
        began, ticks = now_ms, []
        for step in (MINUTE_MS, HOUR_MS, DAY_MS, 2 * DAY_MS):
            now_ms += step
            ticks += [now_ms, now_ms + 1000]
            now_ms += 1000
        lives.append(Life(began, tuple(ticks), {}, frozenset(), chance.random() < 0.7))
    return tuple(lives)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kafka.log_manager.real_brokers", allow_abbrev=False)
    parser.add_argument("--directories", type=int, default=20, help="the number of directories")
    parser.add_argument("--seed", type=int, default=7)
    given = parser.parse_args()
    with KafkaBroker(more_properties=QUIET) as broker, ManagerJudge() as judge:
        return judge_all(judge, _cases(broker, given.directories, given.seed), given.seed)


def _cases(broker: KafkaBroker, directories: int, seed: int) -> Iterator[tuple[int, Case]]:
    """Numbered cases, each with a copy of the broker's directory that exists until the next case is taken."""
    for number in range(directories):
        if number:
            broker.start()
        copy = broker.data.with_name(f"copy-{number}")
        yield number, copied_case(broker, random.Random(f"real broker {seed} {number}"), f"t{number}", copy)
        shutil.rmtree(copy)


if __name__ == "__main__":
    sys.exit(main())
