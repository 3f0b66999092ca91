"""`lakelog append`, `lakelog read` and `lakelog offsets` together."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakelog.cli.records import json_lines, read
from storage_engine.record.batch import scan_batches
from storage_engine.record.compression import Codec
from storage_engine.record.decoding import decode_batches
from storage_engine.record.encoding import encode_records
from storage_engine.storage import StoredFile
from tests.lakelog.cli.conftest import line, text
from tests.storage_engine.record_tables import Row, row_lists, to_table
from tests.stores import storage_at

T = 1_700_000_000_000
LATE = ("--config", f"message.timestamp.after.max.ms={2**63 - 1}")


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=row_lists)
def test_every_record_comes_back_as_it_went_in(lakelog, rows: list[Row]) -> None:
    if "t\n" in lakelog("topics", "list").out:
        lakelog("topics", "delete", "t")
    lakelog("topics", "create", "t", *LATE)
    lines = [
        line(row.key, row.value, headers=[[name, text(value)] for name, value in row.headers], timestamp=row.timestamp)
        for row in rows
    ]
    appended = lakelog("append", "--topic", "t", stdin=lines)
    assert appended.out == (
        f"partition 0: {len(rows)} records, offsets 0 to {len(rows) - 1}\nappended {len(rows)} records to topic t\n"
    )
    assert lakelog("read", "--topic", "t").records == [
        {
            "topic": "t", "partition": 0, "offset": offset, "timestamp": row.timestamp, "timestampType": "CreateTime",
            "key": text(row.key), "value": text(row.value),
            "headers": [[name, text(value)] for name, value in row.headers], "leaderEpoch": 0,
        }
        for offset, row in enumerate(rows)
    ]  # fmt: skip


def test_a_line_has_its_fields_in_kafkas_order_and_no_spaces(lakelog) -> None:
    lakelog("topics", "create", "t")
    lakelog("append", "--topic", "t", stdin=[line(b"k0", None, headers=[["é\n", "AA=="], ["", None]], timestamp=T)])
    assert lakelog("read", "--topic", "t").out == (
        '{"topic":"t","partition":0,"offset":0,"timestamp":1700000000000,"timestampType":"CreateTime","key":"azA=",'
        '"value":null,"headers":[["é\\n","AA=="],["",null]],"leaderEpoch":0}\n'
    )


def test_no_header_breaks_a_line(lakelog) -> None:
    lakelog("topics", "create", "t")
    name = "".join(map(chr, (*range(0x20), 0x85, 0x2028, 0x2029)))
    lakelog("append", "--topic", "t", stdin=[line(b"k", b"v", headers=[[name, None]])])
    (record,) = lakelog("read", "--topic", "t").records
    assert record["headers"] == [[name, None]]


def test_what_read_prints_can_be_appended(lakelog) -> None:
    lakelog("topics", "create", "from", "--partitions", "3")
    lakelog("topics", "create", "to")
    lakelog("append", "--topic", "from", stdin=[line(b"%d" % n, b"v", timestamp=T + n) for n in range(20)])
    printed = lakelog("read", "--topic", "from")
    assert [record["partition"] for record in printed.records] == sorted(r["partition"] for r in printed.records)
    assert lakelog("append", "--topic", "to", stdin=printed.out.encode()).status == 0
    fields = ("key", "value", "headers", "timestamp")
    copied = lakelog("read", "--topic", "to").records
    assert [[record[name] for name in fields] for record in copied] == [
        [record[name] for name in fields] for record in printed.records
    ]


def test_the_clock_gives_the_time_where_a_line_has_none(lakelog) -> None:
    lakelog("topics", "create", "t")
    lakelog(
        "append",
        "--topic",
        "t",
        stdin=[line(b"k", b"v"), line(b"k", b"v", timestamp=None), line(b"k", b"", timestamp=-1)],
    )
    times = [record["timestamp"] for record in lakelog("read", "--topic", "t").records]
    assert times[0] == times[1] > T
    assert times[2] == -1


def test_a_partition_may_be_chosen_and_else_the_key_decides(lakelog) -> None:
    lakelog("topics", "create", "t", "--partitions", "3")
    assert (
        "partition 2: 2 records, offsets 0 to 1\n"
        in lakelog("append", "--topic", "t", "--partition", "2", stdin=[line(b"k", b"v"), line(None, b"v")]).out
    )
    # Kafka's murmur2("foobar") & 0x7fffffff is 1357151166, which is 0 modulo 3.
    assert "partition 0: 1 records" in lakelog("append", "--topic", "t", stdin=[line(b"foobar", b"v")]).out
    keyless = lakelog("append", "--topic", "t", stdin=[line(None, b"v")] * 50)
    assert keyless.out.count("partition ") == 1


def test_values_of_a_mebibyte_are_taken_where_the_topic_allows_and_refused_at_the_default(lakelog) -> None:
    large = base64.b64encode(bytes(2**20)).decode()
    lines = [line(b"k", b"v"), f'{{"key":null,"value":"{large}"}}']
    lakelog("topics", "create", "small")
    refused = lakelog("append", "--topic", "small", stdin=lines)
    assert refused.status == 1
    assert refused.err.startswith("lakelog: standard input, line 2: needs a batch of more than 1048588 bytes.")
    assert lakelog("offsets", "--topic", "small").out == "small:0:0\n"
    lakelog("topics", "create", "large", "--config", "max.message.bytes=2000000")
    assert lakelog("append", "--topic", "large", stdin=lines).status == 0
    assert lakelog("read", "--topic", "large").records[1]["value"] == large


def test_large_records_are_printed_in_pieces(lakelog, monkeypatch) -> None:
    lakelog("topics", "create", "t")
    sizes = (3, 2_001, 0, 900, 900, 900, 10)
    lines = [line(None, b"v" * size) for size in sizes]
    lines += [line(b"k", None), line(b"k", b"v", headers=[["a", None]] * 200), line(None, None)]
    lakelog("append", "--topic", "t", stdin=lines)
    printed = lakelog("read", "--topic", "t").out.encode()
    monkeypatch.setattr(read, "_BYTES_AT_ONCE", 2_000)
    monkeypatch.setattr(json_lines, "_BASE64_AT_ONCE", 1_500)
    monkeypatch.setattr(json_lines, "_HEADERS_AT_ONCE", 50)
    pieces: list[bytes] = []
    monkeypatch.setattr(read, "write", pieces.append)

    assert lakelog("read", "--topic", "t").status == 0

    assert b"".join(pieces) == printed
    assert max(map(len, pieces)) < 3 * 2_000 < len(printed)


@given(row_lists)
def test_the_pieces_of_a_line_are_the_line(rows: list[Row]) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(json_lines, "_BASE64_AT_ONCE", 6)
        patched.setattr(json_lines, "_HEADERS_AT_ONCE", 2)
        data = np.frombuffer(encode_records(to_table(rows), 0, Codec.NONE).data.tobytes(), np.uint8)
        table = decode_batches(data, scan_batches(data, "f"), "f")
        for number in range(len(rows)):
            record = table.slice(number, 1)
            pieces = b"".join(json_lines.line_pieces("t", 3, record))
            assert pieces == json_lines.format_lines("t", 3, record)


def versions(tmp_path: Path) -> list[StoredFile]:
    return [file for file in storage_at(tmp_path / "root").list("meta/t/") if file.key.endswith(".json")]


def test_many_lines_are_one_commit(lakelog, tmp_path) -> None:
    lakelog("topics", "create", "t", "--partitions", "2")
    value = bytes(300)
    lines = [line(b"%d" % number, value, timestamp=T) for number in range(40_000)]  # several chunks of input
    assert lakelog("append", "--topic", "t", stdin=lines).out.endswith("appended 40000 records to topic t\n")
    assert len(versions(tmp_path)) == 2
    assert list(storage_at(tmp_path / "root").list("staging/")) == []
    keys = sorted(int(base64.b64decode(record["key"])) for record in lakelog("read", "--topic", "t").records)
    assert keys == list(range(40_000))


def test_no_lines_are_no_commit(lakelog, tmp_path) -> None:
    lakelog("topics", "create", "t")
    for nothing in (b"", b"\n  \n"):
        assert lakelog("append", "--topic", "t", stdin=nothing).out == "appended 0 records to topic t\n"
    assert len(versions(tmp_path)) == 1


SECRET = "c2VjcmV0IGtleQ=="


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        (f'{{"key":"{SECRET}","value":null', "is not JSON at column"),
        (f'{{"key":"{SECRET}","value":null,"key":null}}', "expected each field once, found a field twice"),
        (f'{{"value":"{SECRET}","key":null,"\\u0076alue": null}}', "expected each field once, found a field twice"),
        (f'["{SECRET}"]', "expected a JSON object, found a list"),
        (f'"{SECRET}"', "expected a JSON object, found text"),
        ("null", "expected a JSON object, found null"),
        (f'{{"key":"{SECRET}"}}', "the field value is missing; expected base64 or null"),
        (f'{{"value":"{SECRET}"}}', "the field key is missing; expected base64 or null"),
        (f'{{"key":"{SECRET}!","value":null}}', "the field key must be base64, found text that is not base64"),
        (f'{{"key":"{SECRET[:-1]}","value":null}}', "the field key must be base64, found text that is not base64"),
        ('{"key":null,"value":"c2VjcmV0\\n"}', "the field value must be base64, found text that is not base64"),
        ('{"key":null,"value":42}', "the field value must be base64 text or null, found a number"),
        ('{"key":null,"value":null,"timestamp":"today"}', "for no timestamp, found text"),
        ('{"key":null,"value":null,"timestamp":1.5}', "for no timestamp, found another number"),
        ('{"key":null,"value":null,"timestamp":true}', "for no timestamp, found true or false"),
        ('{"key":null,"value":null,"timestamp":9223372036854775808}', "for no timestamp, found another number"),
        ('{"key":null,"value":null,"timestamp":1' + "0" * 5000 + "}", "a number with too many digits"),
        ('{"key":null,"value":null,"headers":{"a":"b"}}', "the field headers must be a list, found an object"),
        ('{"key":null,"value":null,"headers":[["a"]]}', "each header must be [name, base64 or null]"),
        ('{"key":null,"value":null,"headers":[[null,null]]}', "each header must be [name, base64 or null]"),
        ('{"key":null,"value":null,"headers":[["a","?"]]}', "a header's value must be base64"),
        ('{"key":null,"value":null,"headers":[["\\ud800",null]]}', "half of a surrogate pair"),
        (f'{{"key":null,"value":null,"timestmap":"{SECRET}"}}', "found another field; it looks like timestamp"),
        ("[" * 100_000, "nested too deeply"),
    ],
)  # fmt: skip
def test_a_bad_line_is_named_and_nothing_is_appended(lakelog, bad, expected) -> None:
    lakelog("topics", "create", "t")
    ended = lakelog("append", "--topic", "t", stdin=[line(b"k", b"v"), "", bad, line(b"k", b"v")])
    assert (ended.status, ended.out) == (1, "")
    assert ended.err.startswith("lakelog: standard input, line 3: ")
    assert expected in ended.err
    assert ended.err.count("\n") == 1
    assert "c2VjcmV0" not in ended.err
    assert lakelog("offsets", "--topic", "t").out == "t:0:0\n"


def test_bytes_that_are_no_text_are_refused(lakelog) -> None:
    lakelog("topics", "create", "t")
    ended = lakelog("append", "--topic", "t", stdin=b'{"key":null,"value":"\xff"}')
    assert ended.status == 1
    assert "line 1: is not UTF-8 text at byte 22" in ended.err


def test_a_record_that_the_topic_refuses_is_named_by_its_line(lakelog) -> None:
    lakelog("topics", "create", "t", "--config", "cleanup.policy=compact")
    ended = lakelog("append", "--topic", "t", stdin=["", line(b"k", b"v"), "", line(None, b"secret")])
    assert ended.status == 1
    assert "standard input, line 4: has no key, but the topic is compacted" in ended.err


@pytest.fixture
def filled(lakelog):
    """Topic t: ten records in partition 0, a second apart, three in partition 1."""
    lakelog("topics", "create", "t", "--partitions", "2", "--config", "index.interval.bytes=0")
    for number in range(10):
        lakelog(
            "append",
            "--topic",
            "t",
            "--partition",
            "0",
            stdin=[line(b"k", b"%d" % number, timestamp=T + 1000 * number)],
        )
    lakelog("append", "--topic", "t", "--partition", "1", stdin=[line(None, b"x", timestamp=T + 4000)] * 3)
    return lakelog


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], [(0, n) for n in range(10)] + [(1, n) for n in range(3)]),
        (["--from", "earliest", "--partition", "1"], [(1, 0), (1, 1), (1, 2)]),
        (["--from", "latest"], []),
        (["--partition", "0", "--from", "7"], [(0, 7), (0, 8), (0, 9)]),
        (["--partition", "0", "--from", "10"], []),
        (["--from", "3", "--max", "2"], [(0, 3), (0, 4)]),
        (["--from", "2", "--max", "9"], [(0, n) for n in range(2, 10)] + [(1, 2)]),
        (["--max", "0"], []),
        (["--max", "11"], [(0, n) for n in range(10)] + [(1, 0)]),
        (["--from-timestamp", str(T + 7500)], [(0, 8), (0, 9)]),
        (["--from-timestamp", str(T + 4000), "--max", "7"], [(0, n) for n in range(4, 10)] + [(1, 0)]),
        (["--from-timestamp", str(T + 99_000)], []),
        (["--from-timestamp", "0", "--isolation", "read_committed", "--max", "1"], [(0, 0)]),
        (["--isolation", "read_uncommitted", "--partition", "1"], [(1, 0), (1, 1), (1, 2)]),
    ],
)  # fmt: skip
def test_reading_starts_and_stops_where_it_is_told(filled, arguments, expected) -> None:
    ended = filled("read", "--topic", "t", *arguments)
    assert ended.status == 0
    assert [(record["partition"], record["offset"]) for record in ended.records] == expected


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--from", "4"], 1, "topic t, partition 1: expected an offset from 0 to 3, found 4"),
        (["--from", "first"], 2, "--from: expected an offset, earliest or latest; found 'first'"),
        (["--from", "-1"], 2, "--from: expected an offset"),
        (["--from", "0", "--from-timestamp", "0"], 2, "--from is given, too"),
    ],
)
def test_a_start_that_cannot_be_ends_the_command_before_it_prints(filled, arguments, status, message) -> None:
    ended = filled("read", "--topic", "t", *arguments)
    assert (ended.status, ended.out) == (status, "")
    assert message in ended.err


@pytest.mark.parametrize(
    ("time", "expected"),
    [
        (None, "t:0:10\nt:1:3\n"),
        ("-1", "t:0:10\nt:1:3\n"),
        ("latest", "t:0:10\nt:1:3\n"),
        ("-2", "t:0:0\nt:1:0\n"),
        ("earliest", "t:0:0\nt:1:0\n"),
        ("-3", "t:0:9\nt:1:0\n"),
        ("max-timestamp", "t:0:9\nt:1:0\n"),
        (str(T + 1), "t:0:1\nt:1:0\n"),
        (str(T + 4001), "t:0:5\n"),
        (str(T + 9001), ""),
    ],
)
def test_offsets_are_printed_as_kafka_get_offsets_does(filled, time, expected) -> None:
    ended = filled("offsets", "--topic", "t", *(() if time is None else ("--time", time)))
    assert (ended.status, ended.out) == (0, expected)


def test_offsets_of_one_partition(filled) -> None:
    assert filled("offsets", "--topic", "t", "--partition", "1", "--time", "-1").out == "t:1:3\n"
    assert filled("offsets", "--topic", "t", "--partition", "2").status == 1
    for wrong in ("-7", "now", str(2**63)):
        ended = filled("offsets", "--topic", "t", "--time", wrong)
        assert (ended.status, ended.out) == (2, "")
        assert "--time: found" in ended.err


def test_an_empty_partition_has_no_largest_timestamp_and_no_line(lakelog) -> None:
    lakelog("topics", "create", "t", "--partitions", "11")
    assert lakelog("offsets", "--topic", "t", "--time", "-3").out == ""
    assert lakelog("offsets", "--topic", "t").out.splitlines()[:4] == ["t:0:0", "t:1:0", "t:10:0", "t:2:0"]


def test_a_table_shows_text_and_counts_bytes(lakelog) -> None:
    lakelog("topics", "create", "t")
    lines = [
        line("ключ".encode(), b"long " * 40, timestamp=T, headers=[["h", text(b"1")]]),
        line(b"\xff\xfe\xfd\xfc", b"\x1b[31mred\x1b[0m [bold]", timestamp=-1),
        line(None, b"", timestamp=T),
    ]
    lakelog("append", "--topic", "t", stdin=lines)
    shown = lakelog("read", "--topic", "t", "--format", "table").out
    for expected in ("t, partition 0", "ключ", "long long", "(200 bytes)", "2023-11-14 22:13:20.000Z", "h=1"):
        assert expected in shown
    for expected in ("(4 bytes)", "[bold]", "none", "null", "(empty)"):
        assert expected in shown
    assert "\x1b" not in shown


@given(data=st.binary(max_size=300))
def test_a_table_never_shows_what_a_terminal_would_act_on(data) -> None:
    from lakelog.cli.records.read import printable

    shown = printable(data)
    assert shown.isprintable()
    assert len(shown) < 100


def test_append_time_is_shown_as_such(lakelog) -> None:
    lakelog("topics", "create", "t", "--config", "message.timestamp.type=LogAppendTime")
    lakelog("append", "--topic", "t", stdin=[line(b"k", b"v", timestamp=5)])
    (record,) = lakelog("read", "--topic", "t").records
    assert record["timestampType"] == "LogAppendTime"
    assert record["timestamp"] > T
    assert list(record) == [
        "topic", "partition", "offset", "timestamp", "timestampType", "key", "value", "headers", "leaderEpoch",
    ]  # fmt: skip
    assert json.dumps(record)
