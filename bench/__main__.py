"""Encode and decode of uncompressed record batches, beside aiokafka's C extension and kafka-python.

The same records, one thread, one process, peers in turn within each round; the median of the rounds counts. Each peer
is asked for what a user of it would ask for: Lakelog turns Arrow columns into batches and back, the others take and
give records one by one. Encoding includes the CRC, decoding checks it.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa
from aiokafka.record.default_records import DefaultRecordBatch as AioBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from storage_engine.record.batch import scan_batches
from storage_engine.record.columns import TO_APPEND, no_headers
from storage_engine.record.decoding import decode_batches
from storage_engine.record.encoding import encode_records

RECORDS = 100_000
SLOW_RECORDS = 20_000  # for kafka-python, which is pure Python; rates are per record
ROUNDS = 5
VALUE_BYTES = (100, 1024)
BATCH_BYTES = (16 * 1024, 1024 * 1024)
START_MS = 1_760_000_000_000


def main() -> None:
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, median of {ROUNDS} rounds"
    )
    print(f"{'million records/s':28}{'lakelog':>10}{'aiokafka':>10}{'ratio':>7}{'kafka-python':>14}{'ratio':>7}")
    for value_bytes in VALUE_BYTES:
        for batch_bytes in BATCH_BYTES:
            compare(value_bytes, batch_bytes)


def compare(value_bytes: int, batch_bytes: int) -> None:
    payload = os.urandom(RECORDS * value_bytes)
    values = [payload[i * value_bytes : (i + 1) * value_bytes] for i in range(RECORDS)]
    keys = [b"key-%06d" % (i % 5000) for i in range(RECORDS)]
    table = pa.RecordBatch.from_arrays(
        [
            pa.array(keys, pa.binary()),
            pa.array(values, pa.binary()),
            no_headers(RECORDS),
            pa.array(np.arange(RECORDS) + START_MS),
        ],
        schema=TO_APPEND,
    )
    log = encode_records(table, batch_bytes).data
    ends = np.cumsum(encode_records(table, batch_bytes).sizes).tolist()
    batches = [log[start:end].tobytes() for start, end in zip([0, *ends], ends, strict=False)]
    few = [batch for batch, end in zip(batches, ends, strict=True) if end <= ends[-1] * SLOW_RECORDS // RECORDS]
    few_records = sum(len(list(DefaultRecordBatch(batch))) for batch in few)

    def encode_with(builder: Callable[[], object], count: int) -> Callable[[], None]:
        def run() -> None:
            current, position = builder(), 0
            for i in range(count):
                if current.append(position, START_MS + i, keys[i], values[i], []) is None:
                    current.build()
                    current, position = builder(), 0
                    current.append(position, START_MS + i, keys[i], values[i], [])
                position += 1
            current.build()

        return run

    def decode_with(batch_type: type, of: list[bytes]) -> Callable[[], None]:
        def run() -> None:
            for data in of:
                batch = batch_type(data)
                assert batch.validate_crc()
                for record in batch:
                    record.value  # noqa: B018

        return run

    arguments = {"magic": 2, "compression_type": 0, "is_transactional": 0, "producer_id": -1, "producer_epoch": -1,
                 "base_sequence": -1, "batch_size": batch_bytes}  # fmt: skip
    encoders = {
        "lakelog": (lambda: encode_records(table, batch_bytes), RECORDS),
        "aiokafka": (encode_with(lambda: AioBuilder(**arguments), RECORDS), RECORDS),
        "kafka-python": (encode_with(lambda: DefaultRecordBatchBuilder(**arguments), SLOW_RECORDS), SLOW_RECORDS),
    }
    decoders = {
        "lakelog": (lambda: decode_batches(log, scan_batches(log, "log"), "log"), RECORDS),
        "aiokafka": (decode_with(AioBatch, batches), RECORDS),
        "kafka-python": (decode_with(DefaultRecordBatch, few), few_records),
    }
    shape = f"{value_bytes} B, batches of {batch_bytes // 1024} KiB"
    show(f"encode {shape}", encoders)
    show(f"decode {shape}", decoders)


def show(name: str, peers: dict[str, tuple[Callable[[], object], int]]) -> None:
    rates: dict[str, list[float]] = {peer: [] for peer in peers}
    for _ in range(ROUNDS):
        for peer, (run, records) in peers.items():
            started = time.perf_counter()
            run()
            rates[peer].append(records / (time.perf_counter() - started) / 1e6)
    ours, aio, pure = (statistics.median(rates[peer]) for peer in ("lakelog", "aiokafka", "kafka-python"))
    print(f"{name:28}{ours:10.2f}{aio:10.2f}{ours / aio:7.1f}{pure:14.2f}{ours / pure:7.1f}", flush=True)


if __name__ == "__main__":
    main()
