"""Measures the encoding and decoding of record batches, for each codec.

The peers are Kafka's own Java classes, aiokafka's C extension and kafka-python.

Each case runs in a separate JVM (tests/kafka_jvm.py), because calls to Kafka's classes are slower after the JVM has
used another codec. Before the measurement, the JVM gets two seconds to compile hot code. The heap of the JVM is larger
than a case can fill. The JVM uses ParallelGC, because the JVM was fastest with this collector. With the default
collector, G1, decoding took 1.5 times as long.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path

from bench.peers.codec import PEERS, write_inputs
from bench.results import Ratio, write_results
from bench.turns import ROUNDS, Peer, take_turns
from tests.kafka_broker import VERSION
from tests.kafka_jvm import kafka_command

CODECS = ("uncompressed", "gzip", "snappy", "lz4", "zstd")
VALUE_BYTES = (100, 1024)
BATCH_BYTES = (16 * 1024, 1024 * 1024)
KAFKA = "Kafka (Java)"
JAVA_PEER = Path(__file__).with_name("peers") / "KafkaCodecPeer.java"
JAVA_OPTIONS = ("-XX:+UseParallelGC", "-Xmx1g", "-Xmn512m")
ORDER = ("lakelog", KAFKA, "aiokafka", "kafka-python")
WANTED = {("encode", KAFKA): 0.9, ("decode", KAFKA): 0.8, ("encode", "aiokafka"): 0.95, ("decode", "aiokafka"): 0.95}
WANTED_UNCOMPRESSED = {
    ("encode", KAFKA): 1.0, ("decode", KAFKA): 0.8, ("encode", "aiokafka"): 3.0, ("decode", "aiokafka"): 2.0,
}  # fmt: skip


def main() -> None:
    rows = []
    ratios = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lakelog-bench-")))
        peers = {name: stack.enter_context(Peer.module("bench.peers.codec", name)) for name in PEERS}
        for what in ("encode", "decode"):
            for codec in CODECS:
                for value_bytes in VALUE_BYTES:
                    for batch_bytes in BATCH_BYTES:
                        case = {"what": what, "codec": codec, "value_bytes": value_bytes, "batch_bytes": batch_bytes}
                        inputs = write_inputs(folder, codec, value_bytes, batch_bytes)
                        with Peer(kafka_command(JAVA_PEER, JAVA_OPTIONS)) as kafka:
                            rates = take_turns({KAFKA: kafka, **peers}, case, own={KAFKA: inputs})
                        name = f"{what} {codec}, {value_bytes} B, {batch_bytes // 1024} KiB"
                        rows.append([name, *(f"{rates[peer]:.2f}" for peer in ORDER)])
                        wanted = WANTED_UNCOMPRESSED if codec == "uncompressed" else WANTED
                        beside = [
                            Ratio(f"{name}: lakelog / {peer}", rates["lakelog"] / rates[peer], at_least=least)
                            for (kind, peer), least in wanted.items()
                            if kind == what
                        ]
                        ratios += beside
                        print(
                            f"{name:38}" + "".join(f"{rates[peer]:8.2f}" for peer in ORDER) + "  "
                            + "".join(f"{ratio.value:8.2f}" for ratio in beside), flush=True,
                        )  # fmt: skip
    write_results(
        "codec",
        "Encode and decode",
        f"The figures are millions of records per second on one thread: the median of {ROUNDS} rounds. Each library"
        " runs in its own process, and in each round the processes take turns. Keys have 10 bytes. Values are text that"
        " compresses to about a third of its size. The size of a batch is its size before compression. Encoding"
        " computes the CRC, and decoding checks it. Lakelog encodes Arrow columns and decodes into Arrow columns, about"
        f" 8 MiB at a time. The other libraries process one record after another. {KAFKA} is version {VERSION}. Kafka"
        " encodes with MemoryRecordsBuilder, and decodes with the lazy iteration that a consumer uses. Each case runs"
        " in a separate JVM, after a warm-up.",
        ["", *ORDER],
        rows,
        ratios,
    )


if __name__ == "__main__":
    main()
