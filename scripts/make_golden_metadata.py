"""Rebuilds tests/golden/metadata: the folder __cluster_metadata-0 of a real broker, with a snapshot and later records.

    python -m scripts.make_golden_metadata

The broker has the topics orders and clicks, and a topic that was deleted. The topic orders is compacted, and its
settings were changed. The retention of all topics and the cleaner's back-off were changed while the broker ran.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient

from tests.kafka_broker import KafkaBroker

FOLDER = Path(__file__).resolve().parent.parent / "tests/golden/metadata"
_KEPT = (".log", ".index", ".timeindex", ".checkpoint")
_SNAPSHOTS = "metadata.log.max.snapshot.interval.ms=2000\n"


def main() -> None:
    """Start a broker, change its metadata, stop it, and copy the folder."""
    with KafkaBroker(more_properties=_SNAPSHOTS) as broker:
        broker.create_topic("orders", 2, {"cleanup.policy": "compact", "retention.ms": "1234"})
        broker.create_topic("gone", 1, {"retention.ms": "1"})
        admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
        _alter(admin, ConfigResourceType.BROKER, "1", {"log.retention.ms": "5000"})
        time.sleep(5)
        admin.delete_topics(["gone"])
        broker.create_topic("clicks", 1)
        _alter(admin, ConfigResourceType.BROKER, "1", {"log.cleaner.backoff.ms": "7"})
        _alter(admin, ConfigResourceType.TOPIC, "orders", {"cleanup.policy": "compact,delete"})
        admin.close()
        broker.stop()
        metadata = broker.data / "__cluster_metadata-0"
        shutil.rmtree(FOLDER, ignore_errors=True)
        (FOLDER / metadata.name).mkdir(parents=True)
        for file in metadata.iterdir():
            if file.suffix in _KEPT:
                shutil.copyfile(file, FOLDER / metadata.name / file.name)


def _alter(admin: KafkaAdminClient, kind: ConfigResourceType, name: str, configs: dict[str, str]) -> None:
    admin.alter_configs([ConfigResource(kind, name, configs)])


if __name__ == "__main__":
    main()
