"""An ingest from a Kafka broker that requires TLS and a password. No output and no file contains a secret."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from kafka import KafkaProducer

from jobs.ingest import add_ingest_options, ingest
from pipeline.job import run_job
from tests.kafka_broker import PASSWORD, PATIENCE_SECONDS, STORE_PASSWORD, USER, KafkaBroker
from tests.pipeline.ingest.ingest_runs import records_of
from tests.stores import files_below, root_at, storage_at

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("spark")]
WRONG = "wrong-pass-word"
NOW_MS = 1_767_225_600_000


def ingest_from(broker: KafkaBroker, folder: Path, name: str, password: str = PASSWORD, **changed: str) -> int:
    """Run the job with settings in a file, as users write them; returns its exit status."""
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    options = {
        "kafka.bootstrap.servers": f"127.0.0.1:{broker.secure_port}",
        "subscribe": "encrypted",
        "startingOffsets": "earliest",
        "includeHeaders": True,
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": f'{module} required username="{USER}" password="{password}";',
        "kafka.ssl.truststore.location": str(broker.truststore),
        "kafka.ssl.truststore.password": STORE_PASSWORD,
        **changed,
    }
    settings = {
        "root": root_at(folder / name),
        "topics": {"copy": {"partitions": 1}},
        "ingest": {
            "topic": "copy",
            "source": {"format": "kafka", "options": options},
            **{name: name for name in ("key", "value", "headers", "timestamp")},
        },
    }
    conf = folder / f"{name}.yaml"
    conf.write_text(yaml.safe_dump(settings))
    argv = ["--conf", str(conf), "--progress-json", str(folder / f"{name}.jsonl")]
    return run_job("ingest", "", ingest, add_ingest_options, argv, {}, makes_topics=True)


def test_records_arrive_over_tls_and_errors_hide_the_passwords(
    kafka_broker: KafkaBroker, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    kafka_broker.create_topic("encrypted")
    producer = KafkaProducer(bootstrap_servers=kafka_broker.bootstrap_servers)
    for number in range(3):
        producer.send("encrypted", b"v%d" % number, b"k", [("h", b"x")], timestamp_ms=NOW_MS + number)
    producer.flush(PATIENCE_SECONDS)
    producer.close()

    assert ingest_from(kafka_broker, tmp_path, "right") == 0
    found = [
        (each["key"], each["value"], each["headers"], each["timestamp"])
        for each in records_of(tmp_path / "right", "copy")
    ]
    assert found == [(b"k", b"v%d" % number, [{"key": "h", "value": b"x"}], NOW_MS + number) for number in range(3)]
    output = capfd.readouterr()

    assert ingest_from(kafka_broker, tmp_path, "wrong", WRONG) == 1
    refused = capfd.readouterr()
    assert "Authentication failed: Invalid username or password" in refused.err
    assert ingest_from(kafka_broker, tmp_path, "plain", **{"kafka.ssl.truststore.password": WRONG}) == 1
    unopened = capfd.readouterr()
    store = f"Failed to load SSL keystore {kafka_broker.truststore} of type JKS: keystore password was incorrect"
    assert f"Spark ended the stream: Failed to create new KafkaAdminClient: {store}." in unopened.err

    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".yaml"]
    written = [path.read_bytes().decode(errors="replace") for path in files]
    right = storage_at(tmp_path / "right")
    stored = [key for folder in ("data/", "meta/", "checkpoints/") for key in files_below(right, folder)]
    assert stored != []
    written += [right.read(key).decode(errors="replace") for key in stored]
    everything = "".join([*output, *refused, *unopened, *written])
    for secret in (PASSWORD, STORE_PASSWORD, WRONG):
        assert secret not in everything
