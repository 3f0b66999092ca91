"""Measures how fast Lakelog and Kafka's own LogCleaner compact the same log, and how fast a Spark job of Lakelog
compacts two partitions on two cores.

Lakelog and Kafka take turns. Each of the two peers compacts, in place, its own copy of the same log directory. Each
peer is a separate process, and is bound to one core, so that Java's compiler and garbage collector cannot use a second
core. Kafka's peer is tests/kafka/KafkaCleanerPeer.java, which calls Kafka's classes. The JVM of this peer does the same
work before the measurement, to warm up. Each round checks that both results are the same.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench.peers.compaction import CONFIG, KEYS, MAP_BYTES, RECORDS, TOPIC, VALUE_BYTES, copy_log, write_log
from bench.results import Ratio, write_results
from bench.turns import Peer
from storage_engine.record.compression import Codec
from tests.kafka_broker import VERSION
from tests.kafka_jvm import kafka_command

ROUNDS = 5
WARM_UP = 2
WANTED = {Codec.NONE: 4.0, Codec.LZ4: 3.0}
KAFKA = f"Kafka {VERSION}"
SOURCE = Path(__file__).parents[1] / "tests" / "kafka" / "KafkaCleanerPeer.java"
PARTITION_RECORDS = 10_000_000  # a little more than a gigabyte
PARTITION_ROUNDS = 3


class Speed(NamedTuple):
    """MB of the log before compaction, per second of elapsed time and per second of processor time."""

    by_clock: float
    by_processor: float


def main() -> None:
    rows, ratios = [], []
    with tempfile.TemporaryDirectory(prefix="lakelog-bench-") as folder:
        for codec, least in WANTED.items():
            name = codec.name.lower()
            ours, kafka = beside_kafka(Path(folder), codec)
            for who, speed in (("lakelog", ours), (KAFKA, kafka)):
                rows.append([f"{name}: {who}", f"{speed.by_clock:.0f}", f"{speed.by_processor:.0f}"])
            ratios += [
                Ratio(
                    f"{name}: speed of lakelog / speed of Kafka, elapsed time",
                    ours.by_clock / kafka.by_clock, at_least=least,
                ),
                Ratio(
                    f"{name}: speed of lakelog / speed of Kafka, processor time",
                    ours.by_processor / kafka.by_processor, at_least=least,
                ),
            ]  # fmt: skip
            for row in rows[-2:]:
                print(f"{row[0]:24}{row[1]:>8}{row[2]:>8}", flush=True)
        one, two = on_spark(Path(folder))
        rows += [
            ["Spark, one partition of two", f"{one:.0f}", ""],
            ["Spark, two partitions on two cores", f"{two:.0f}", ""],
        ]
        ratios.append(Ratio("speed: two partitions on two cores / one partition on one core", two / one, at_least=1.7))
    write_results(
        "compaction",
        "Compaction",
        f"The figures show how many megabytes of log are compacted per second: the median of {ROUNDS} rounds, after"
        f" {WARM_UP} rounds to warm up. The first column has megabytes per second of elapsed time, and the second"
        f" column has megabytes per second of processor time. The log is one partition of {RECORDS:,} records with"
        f" {KEYS:,} keys in random order. Values are {VALUE_BYTES} bytes of text that compresses to about a third of"
        " its size. A batch has 16 KiB, and a segment has 64 MiB. All segments except the last are compacted. Each"
        f" cleaner has {MAP_BYTES // 1024**2} MiB for its map from keys to offsets. All files are in the page cache,"
        " and written files are synced. Lakelog and Kafka use the same single core and take turns. In the rows with"
        f" Spark, each partition has {PARTITION_RECORDS:,} uncompressed records of the same kind. A Spark job with the"
        " master local[2] compacts the partitions, with one task for each partition. These rows give the median of"
        f" {PARTITION_ROUNDS} rounds.",
        ["", "MB/s, elapsed time", "MB/s, processor time"],
        rows,
        ratios,
    )


def beside_kafka(folder: Path, codec: Codec) -> tuple[Speed, Speed]:
    """The speeds of Lakelog and of Kafka."""
    log = folder / codec.name
    write_log(log, codec)
    size = compactable_bytes(log)
    names = ("lakelog", "kafka")
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    everywhere = os.sched_getaffinity(0)
    with ExitStack() as stack:
        os.sched_setaffinity(0, {max(everywhere)})
        stack.callback(os.sched_setaffinity, 0, everywhere)
        peers = (
            stack.enter_context(Peer.module("bench.peers.compaction")),
            stack.enter_context(Peer(kafka_command(SOURCE, ("-XX:+UseSerialGC", "-Xmx1g", "-Xmn512m")))),
        )
        for _ in range(WARM_UP + ROUNDS):
            for name, peer in zip(names, peers, strict=True):
                copy_log(log, folder / name)
                os.sync()
                taken[name].append(peer.ask(request(folder / name)))
            refuse_differences(folder / "lakelog", folder / "kafka", codec)
    shutil.rmtree(log)
    seconds = (zip(*taken[name][WARM_UP:], strict=True) for name in names)
    ours, kafka = (Speed(*(size / 1e6 / median(column) for column in columns)) for columns in seconds)
    return ours, kafka


def request(parent: Path) -> dict[str, object]:
    """The case that both peers get."""
    return {
        "what": "bench", "parent": str(parent), "folder": f"{TOPIC}-0", "config": CONFIG, "start": 0, "clean": True,
        "map_bytes": MAP_BYTES,
    }  # fmt: skip


def compactable_bytes(parent: Path) -> int:
    """The bytes of all segments except the active segment."""
    sizes = [path.stat().st_size for path in sorted(parent.glob(f"{TOPIC}-0/*.log"))]
    return sum(sizes[:-1])


def refuse_differences(ours: Path, kafka: Path, codec: Codec) -> None:
    """End the benchmark if the two results differ. Without a codec, every byte is compared. With a codec, only the
    names of the segments are compared."""
    left = [{path.name: path for path in parent.glob(f"{TOPIC}-0/*.log")} for parent in (ours, kafka)]
    assert left[0].keys() == left[1].keys(), "the same segments are left"
    if codec is Codec.NONE:
        assert all(path.read_bytes() == left[1][name].read_bytes() for name, path in left[0].items()), "and bytes"


def on_spark(folder: Path) -> tuple[float, float]:
    """MB per second for one partition in one task, and for two partitions in two tasks."""
    from pipeline.clean.runners import on_spark as tasks_on_spark
    from pipeline.spark.session import spark_session
    from storage_engine.cleaner.replacement import delete_segments
    from storage_engine.clock import SystemClock
    from storage_engine.config import BrokerConfig
    from storage_engine.kafka_dir.log_directory import LogDirectory
    from storage_engine.progress import NO_PROGRESS
    from storage_engine.storage.posix import PosixStorage
    from storage_engine.topic.clean.state_swap import Failure
    from storage_engine.topic.clean.topic_compaction import cleaning_tasks
    from storage_engine.topic.kafka.kafka_import import import_topic
    from storage_engine.topic.topics import Topics

    write_log(folder / "two", Codec.NONE, PARTITION_RECORDS, partitions=2)
    (folder / "root").mkdir()
    topics = Topics(PosixStorage(folder / "root"), BrokerConfig(), SystemClock())
    state = import_topic(topics, LogDirectory(folder / "two"), TOPIC, CONFIG, move=True).state
    tasks = cleaning_tasks(topics.storage, state, topics.config(state), topics.broker, topics.clock.now_ms())
    spark = spark_session("bench compaction")
    speeds: dict[int, list[float]] = {1: [], 2: []}
    with tasks_on_spark(spark, topics.storage, NO_PROGRESS, tasks) as runner:
        for _ in range(1 + PARTITION_ROUNDS):
            for count, found in speeds.items():
                os.sync()
                started = time.perf_counter()
                outcomes = runner.submit(tasks[:count]).result()
                seconds = time.perf_counter() - started
                size = 0
                for outcome in outcomes:
                    assert not isinstance(outcome, Failure), outcome
                    delete_segments(topics.storage, outcome.files, outcome.segments)
                    size += outcome.bytes_before
                found.append(size / 1e6 / seconds)
    return median(speeds[1][1:]), median(speeds[2][1:])


if __name__ == "__main__":
    main()
