"""`lakelog dump` with the decoders for Kafka's internal topics. The output is compared with the output of Kafka 4.3.1's
own tool.

tests/golden/groups has the topic __consumer_offsets of a broker 4.3.1, with groups of every kind. The topic every-type
in the same folder has damaged records, and random records of every type in every version. scripts/make_golden_groups.py
makes the folder.
"""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import replace

import pyarrow as pa
import pytest

from lakelog import cli
from lakelog.dump import DumpOptions, TopicDecoder
from lakelog.dump.decoded_contents import json_contents, text_contents
from storage_engine.record.coordinator.coordinator_schemas import RECORD_TYPES
from tests.in_process import run_in_process
from tests.lakelog.dump.dumping import BASE, GOLDEN, dumped

GROUPS = GOLDEN / "groups"
FROM_BROKER, EVERY_TYPE = (f"{topic}-0/{BASE}.log" for topic in ("__consumer_offsets", "every-type"))
DECODED = DumpOptions(records=True, contents=True, decoder=TopicDecoder.OFFSETS)


def test_decoded_records_are_what_kafkas_tool_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(GROUPS)
    printed = gzip.decompress((GROUPS / "offsets_decoder.txt.gz").read_bytes()).decode()
    of_broker, of_every_type = (
        {int(number) for number in re.findall(r'key: \{"type":"(\d+)"', part)}
        for part in printed.split(f"Dumping {EVERY_TYPE}")
    )
    assert of_every_type == RECORD_TYPES.keys()
    assert of_broker == RECORD_TYPES.keys() - {0, 4}  # these two only in logs of older brokers
    ended = run_in_process(cli.main, ["lakelog", "dump", "--offsets-decoder", FROM_BROKER, EVERY_TYPE])
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.splitlines() == printed.splitlines()


def test_lines_of_json_have_the_same_keys_and_values_and_name_damage_without_contents() -> None:
    path = GROUPS / EVERY_TYPE
    pattern = re.compile(r'\| offset: (\d+) .* key: (\{"type".*\}) payload: (.*)')
    text = {
        int(found[1]): (json.loads(found[2]), None if found[3] == "<DELETE>" else json.loads(found[3]))
        for line in dumped(path, DECODED)[0].splitlines()
        if (found := pattern.fullmatch(line))
    }
    lines = [json.loads(line) for line in dumped(path, replace(DECODED, jsonl=True))[0].splitlines()]
    assert {line["offset"]: (line["key"], line["value"]) for line in lines if "error" not in line} == text
    assert len(text) > 100
    assert [line["error"] for line in lines if "error" in line] == [
        "unknown record type 99",
        "unknown record type 9",
        "unknown record type -1",
        "the key: expected 2 more bytes, found 0",
        "the key: expected 9 more bytes, found 1",
        "the value: expected 2 more bytes, found 0",
        "version 9 of record type 3; the known versions are 0 to 0",
        "the value: expected 4 more bytes, found 1",
        "the key: the field groupId is null",
        "the value: the field topics element is null",
        "the value: the field topics has 8 elements in 1 bytes",
        "the value: the field topics is null",
        "the value: the field topics element has 32768 bytes",
        "the value: a varint is longer than 5 bytes",
    ]


def test_a_record_without_a_key_stops_no_dump() -> None:
    """Kafka's tool ends at this record."""
    key, value = pa.array([None], pa.binary()), pa.array([b"v"])
    assert text_contents(key, value, [7], DECODED) == [" key: Error at offset 7, skipping. message had a missing key"]
    assert json_contents(None, b"v", [], DECODED) == {
        "key": None, "value": "dg==", "headers": [], "error": "the record has no key",
    }  # fmt: skip


def test_messages_of_old_logs_are_decoded_too() -> None:
    """Such a log is not from __consumer_offsets, so its keys have unknown types."""
    path = min(GOLDEN.glob(f"legacy/data/*-0/{BASE}.log"))
    records = [line for line in dumped(path, DECODED)[0].splitlines() if line.startswith("| ")]
    assert records
    assert all(re.search(r" key: (Unknown record type \d+|Error) at offset \d+, skipping\.", line) for line in records)
