"""Measures how fast a Python program without Spark reads a topic into Arrow, and compares this with confluent-kafka's
consumer.

    python -m bench.reading.consumer [--records 5000000] [--rounds 5]

The consumer reads the same topic from a Kafka broker on this machine. The benchmark checks that Lakelog and the
consumer return the same records.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from bench.peers.consumer import AT_ONCE, PEERS
from bench.reading.filled_topic import PARTITIONS, RECORDS, VALUE_BYTES, fill_topic, serve_topic
from bench.results import Ratio, print_ratios, write_results
from bench.turns import ROUNDS, Peer, take_turns
from tests.kafka_broker import VERSION, KafkaBroker

NAMES = {
    "lakelog": "lakelog: Topic.read().to_arrow()",
    "messages": "confluent-kafka: messages",
    "arrow": "confluent-kafka: messages into Arrow",
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args(sys.argv[1:] if sys.argv[0] == __file__ else [])
    seconds = read_seconds(arguments.records, arguments.rounds)
    rows = [[NAMES[peer], f"{taken:.2f}", f"{arguments.records / taken / 1e6:.2f}"] for peer, taken in seconds.items()]
    for row in rows:
        print(f"{row[0]:38}{row[1]:>8} s{row[2]:>8} million records/s", flush=True)
    ratios = [
        Ratio(f"speed: lakelog / {NAMES[peer]}", seconds[peer] / seconds["lakelog"], at_least=5)
        for peer in ("messages", "arrow")
    ]
    if arguments != parser.parse_args([]):
        print_ratios(ratios)
        return
    write_results(
        "consumer",
        "Reads by a Python program",
        f"The table shows how many seconds a peer needs to read {RECORDS:,} records of a topic with {PARTITIONS}"
        f" partitions: the median of {ROUNDS} rounds, after one round to warm up. Each record has a key of 10 bytes"
        f" and a value of {VALUE_BYTES} incompressible bytes. Each peer is a separate process; in each round, the"
        " peers take turns. Lakelog uses one thread, and the log's files are in the page cache. Lakelog checks the CRC"
        " of each batch, and returns one Arrow table with all columns. The consumer of confluent-kafka reads the same"
        f" records from a Kafka broker, up to {AT_ONCE:,} messages with each call of consume. The broker has version"
        f" {VERSION}, and runs on the same cores. The consumer does not check CRCs, and fetches in a separate thread."
        " The consumer's setting fetch.queue.backoff.ms is 1. With the default, 1000, the consumer pauses for a second"
        ' whenever its queue was full. For the row "messages", the program only gets the messages and does not process'
        ' them. For the row "messages into Arrow", the program makes the same Arrow table as Lakelog. A hash of all'
        " columns shows that both tables have the same records.",
        ["", "seconds", "million records/s"],
        rows,
        ratios,
    )  # fmt: skip


def read_seconds(records: int, rounds: int) -> dict[str, float]:
    """The seconds that each peer needs for one read of all records."""
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lakelog-bench-")))
        fill_topic(work / "root", records)
        broker = stack.enter_context(KafkaBroker(java_options=("-Xmx1g",)))
        serve_topic(broker, work / "root", work / "exported")
        case = {"root": str(work / "root"), "records": records, "bootstrap_servers": broker.bootstrap_servers}
        peers = {name: stack.enter_context(Peer.module("bench.peers.consumer", name)) for name in PEERS}
        ours, theirs = (peers[name].ask({**case, "what": "digest"}) for name in ("lakelog", "arrow"))
        assert ours[0] == records, ours
        assert ours == theirs, (ours, theirs)
        return take_turns(peers, {**case, "what": "read"}, rounds)


if __name__ == "__main__":
    main()
