"""Runs an ingest of sample data from every source that has a file in conf/: `make sources`.

This program first deletes ./lakelog-sources. Then the program writes files with orders and a Delta table below this
folder. The program also starts a Kafka broker, writes orders to a topic on this broker, and stops the broker at the
end. Each ingest runs as the command that a user would type. The stream of conf/rate.yaml never ends, so this ingest is
stopped after its first micro-batches.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

from tests.kafka_broker import KafkaBroker
from tests.sample_orders import KAFKA_TOPIC, send_orders, write_files

HOME = Path(__file__).resolve().parent.parent
FOLDER = HOME / "lakelog-sources"
ORDERS = 10_000
RATE_SECONDS = 40


def main() -> int:
    shutil.rmtree(FOLDER, ignore_errors=True)
    write_files(FOLDER / "source", 0, ORDERS)
    failed = [source for source in ("json", "csv", "parquet", "delta", "lakelog") if ingest(source) != 0]
    print("\nstarting a Kafka broker", file=sys.stderr, flush=True)
    with KafkaBroker() as broker:
        broker.create_topic(KAFKA_TOPIC, partitions=2)
        send_orders(broker.bootstrap_servers, 0, ORDERS)
        servers = f"ingest.source.options.kafka.bootstrap.servers={broker.bootstrap_servers}"
        failed += ["kafka"] if ingest("kafka", "--set", servers) != 0 else []
    failed += ["rate"] if ingest("rate", "--root", str(FOLDER), seconds=RATE_SECONDS) != 0 else []
    print(f"failed: {', '.join(failed)}" if failed else f"all done; look into {FOLDER}", file=sys.stderr)
    return 1 if failed else 0


def ingest(source: str, *options: str, seconds: float | None = None) -> int:
    """Run ./spark-submit.sh ingest. If the ingest still runs after `seconds`, stop it. Returns its exit status."""
    command = ["./spark-submit.sh", "ingest", "--conf", f"conf/{source}.yaml", *options]
    print(f"\n$ {' '.join(command)}", file=sys.stderr, flush=True)
    with subprocess.Popen(command, cwd=HOME) as job:
        try:
            return job.wait(seconds)
        except subprocess.TimeoutExpired:
            job.send_signal(signal.SIGTERM)
            return job.wait()


if __name__ == "__main__":
    sys.exit(main())
