"""Writes sample orders for each kind of source that the files in conf/ read, for tests and for `make sources`.

Each call adds orders with new numbers, like new input before a later run of an ingest.
"""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
from deltalake import write_deltalake
from kafka import KafkaProducer

FILES = ("json", "csv", "parquet", "delta")
KAFKA_TOPIC = "orders"


def orders(first: int, count: int) -> pa.Table:
    """Columns id, customer, amount and at; the numbers from `first` on."""
    start = datetime(2026, 1, 1, tzinfo=UTC)
    numbers = range(first, first + count)
    return pa.table(
        {
            "id": [f"order-{number:06}" for number in numbers],
            "customer": [f"customer-{number % 7}" for number in numbers],
            "amount": [number / 4 for number in numbers],
            "at": pa.array([start + timedelta(minutes=number) for number in numbers], pa.timestamp("us", "UTC")),
        }
    )


def random_order(chance: random.Random) -> tuple[bytes, int | str | None, bytes | None]:
    """The key, the amount and the value of a record with one of 40 keys. An amount of None means a tombstone, and a text
    means a value that cannot be decoded."""
    key = b"k%d" % chance.randrange(40)
    amount: int | str | None = chance.choices([chance.randrange(1000), None, "much"], [7, 1, 2])[0]
    return key, amount, None if amount is None else json.dumps({"id": key.decode(), "amount": amount}).encode()


def as_json(table: pa.Table) -> list[str]:
    """One object for each order."""
    return [json.dumps(row | {"at": row["at"].isoformat()}) for row in table.to_pylist()]


def write_files(source: Path, first: int, count: int) -> None:
    """Add a file of orders to each of source/json, source/csv and source/parquet, and a commit to source/delta."""
    table = orders(first, count)
    for kind in FILES:
        (source / kind).mkdir(parents=True, exist_ok=True)
    (source / "json" / f"{first}.json").write_text("".join(f"{line}\n" for line in as_json(table)))
    text = table.set_column(3, "at", pa.array([at.isoformat() for at in table["at"].to_pylist()]))
    csv.write_csv(text, source / "csv" / f"{first}.csv")
    pq.write_table(table, source / "parquet" / f"{first}.parquet")
    write_deltalake(source / "delta", table, mode="append")


def send_orders(bootstrap_servers: str, first: int, count: int) -> None:
    """Add orders to KAFKA_TOPIC of a Kafka cluster, with a header each."""
    producer = KafkaProducer(bootstrap_servers=bootstrap_servers)
    table = orders(first, count)
    for customer, value in zip(table["customer"].to_pylist(), as_json(table), strict=True):
        producer.send(KAFKA_TOPIC, value.encode(), key=customer.encode(), headers=[("from", b"sample")])
    producer.close()
