"""Tests that the encoder writes the bytes of the worked example in docs/FORMAT.md."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa

from storage_engine.record.encoding import encode_records
from storage_engine.record.record_columns import HEADERS, TO_APPEND
from storage_engine.record.stamping import stamp_batches

PAGE = Path(__file__).resolve().parents[2] / "docs" / "FORMAT.md"


def test_the_example_batch_has_the_bytes_that_the_page_shows() -> None:
    shown = re.findall(r"^((?:[0-9a-f]{2} )+) +\S", PAGE.read_text(), re.MULTILINE)
    record = pa.RecordBatch.from_arrays(
        [
            pa.array([b"k"]),
            pa.array([b"v"]),
            pa.array([[{"key": "h", "value": None}]], HEADERS),
            pa.array([1_700_000_000_000]),
        ],
        schema=TO_APPEND,
    )
    run = encode_records(record, batch_bytes=1000)
    stamp_batches(run.data, run.sizes, base_offset=0, leader_epoch=1)
    assert bytes.fromhex("".join(shown)) == run.data.tobytes()
