"""One peer of the codec benchmark: `python -m bench.peers.codec lakelog|aiokafka|kafka-python`.

A case names the operation (encode or decode), the codec, the size of a value, and the size of a batch. The answer is
the speed of one thread, in million records per second. Each peer works as in a real program: Lakelog converts whole
Arrow columns to batches and back, and the other peers convert one record at a time. Encoding includes the CRC, and
decoding checks it. All peers encode the same records and decode the same bytes, which Lakelog encoded. The fourth peer,
KafkaCodecPeer.java, reads the records and the bytes from files (write_inputs).
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from aiokafka.record.default_records import DefaultRecordBatch as AioBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from bench.turns import answer
from storage_engine.record.batch import ByteArray, scan_batches
from storage_engine.record.compression import Codec
from storage_engine.record.decoding import decode_batches
from storage_engine.record.encoding import encode_records
from storage_engine.record.record_columns import TO_APPEND, no_headers

RECORDS = {100: 100_000, 1024: 20_000}
SLOW_RECORDS = {100: 10_000, 1024: 5_000}  # for kafka-python, which is pure Python
CHUNK_BYTES = 8 * 1024**2  # bytes that Lakelog's reader has in memory at the same time; an ingest encodes about as many
LONG_ENOUGH = 0.3  # seconds for which the same work is repeated
START_MS = 1_760_000_000_000
_WORDS = ["sensor", "temperature", "pressure", "warehouse", "berlin", "ok", "delayed", "customer", "order", "paid"]


@cache
def values(value_bytes: int) -> list[bytes]:
    """Text of words and digits that compresses to about a third of its size, as events do. The text is the same in
    every process."""
    source = random.Random(1)
    found = []
    for _ in range(RECORDS[value_bytes]):
        text = ""
        while len(text) < value_bytes:
            text += f'"{source.choice(_WORDS)}":{source.randrange(10**9)},'
        found.append(text[:value_bytes].encode())
    return found


KEYS = [b"key-%06d" % (i % 5000) for i in range(max(RECORDS.values()))]


def write_inputs(folder: Path, codec: str, value_bytes: int, batch_bytes: int) -> dict[str, Any]:
    """Write the files for a peer that is not a Python program: the records, and the batches to decode. Returns the
    fields with their paths, which are added to the peer's case."""
    records, log = folder / f"records-{value_bytes}", folder / f"{codec}-{value_bytes}-{batch_bytes}.log"
    if not records.exists():
        records.write_bytes(b"".join(key + value for key, value in zip(KEYS, values(value_bytes), strict=False)))
    if not log.exists():
        log.write_bytes(b"".join(data.tobytes() for data, _ in encoded(codec, value_bytes, batch_bytes)))
    return {"records": str(records), "log": str(log), "key_bytes": len(KEYS[0]), "start_ms": START_MS}


@cache
def chunks(value_bytes: int) -> list[pa.RecordBatch]:
    """The records as columns, some megabytes at a time."""
    count = RECORDS[value_bytes]
    table = pa.Table.from_arrays(
        [
            pa.array(KEYS[:count], pa.binary()),
            pa.array(values(value_bytes), pa.binary()),
            no_headers(count),
            pa.array(np.arange(count) + START_MS),
        ],
        schema=TO_APPEND,
    )
    batches: list[pa.RecordBatch] = table.to_batches(max_chunksize=CHUNK_BYTES // (value_bytes + 20))
    return batches


def encoded(codec: str, value_bytes: int, batch_bytes: int) -> list[tuple[ByteArray, list[bytes]]]:
    """Each chunk, encoded: as the bytes of a log, and as separate batches."""
    found = []
    for records in chunks(value_bytes):
        run = encode_records(records, batch_bytes, Codec.of(codec))
        ends = np.cumsum(run.sizes).tolist()
        data = run.data.tobytes()
        batches = [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]
        found.append((np.frombuffer(data, np.uint8), batches))
    return found


logs = cache(encoded)


def encode_columns(codec: str, value_bytes: int, batch_bytes: int) -> int:
    for records in chunks(value_bytes):
        encode_records(records, batch_bytes, Codec.of(codec))
    return RECORDS[value_bytes]


def decode_columns(codec: str, value_bytes: int, batch_bytes: int) -> int:
    return sum(
        decode_batches(log, scan_batches(log, "log"), "log").num_rows
        for log, _ in logs(codec, value_bytes, batch_bytes)
    )


def encode_each(builder: Any, counts: dict[int, int]) -> Callable[[str, int, int], int]:
    def encode(codec: str, value_bytes: int, batch_bytes: int) -> int:
        arguments = {"magic": 2, "compression_type": int(Codec.of(codec)), "is_transactional": 0, "producer_id": -1,
                     "producer_epoch": -1, "base_sequence": -1, "batch_size": batch_bytes}  # fmt: skip
        records, count = values(value_bytes), counts[value_bytes]
        batch, position = builder(**arguments), 0
        for i in range(count):
            if batch.append(position, START_MS + i, KEYS[i], records[i], []) is None:
                batch.build()
                batch, position = builder(**arguments), 0
                batch.append(position, START_MS + i, KEYS[i], records[i], [])
            position += 1
        batch.build()
        return count

    return encode


def decode_each(batch_type: Any, counts: dict[int, int]) -> Callable[[str, int, int], int]:
    def decode(codec: str, value_bytes: int, batch_bytes: int) -> int:
        count = 0
        for _, batches in logs(codec, value_bytes, batch_bytes):
            for data in batches:
                batch = batch_type(data)
                assert batch.validate_crc()
                for record in batch:
                    record.value  # noqa: B018
                    count += 1
                if count >= counts[value_bytes]:
                    return count
        return count

    return decode


PEERS: dict[str, dict[str, Callable[[str, int, int], int]]] = {
    "lakelog": {"encode": encode_columns, "decode": decode_columns},
    "aiokafka": {"encode": encode_each(AioBuilder, RECORDS), "decode": decode_each(AioBatch, RECORDS)},
    "kafka-python": {
        "encode": encode_each(DefaultRecordBatchBuilder, SLOW_RECORDS),
        "decode": decode_each(DefaultRecordBatch, SLOW_RECORDS),
    },
}


def measure(case: dict[str, Any]) -> float:
    run = PEERS[sys.argv[1]][case["what"]]
    arguments = case["codec"], case["value_bytes"], case["batch_bytes"]
    logs(*arguments)  # made before the measured time
    records = 0
    started = time.perf_counter()
    while (seconds := time.perf_counter() - started) < LONG_ENOUGH:
        records += run(*arguments)
    return records / seconds / 1e6


if __name__ == "__main__":
    answer(measure)
