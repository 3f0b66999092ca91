"""Rows that become dead letters, because they do not fit the schema or an expression fails. The ingest
continues."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipeline.ingest.ingesting import IngestError
from storage_engine.clock import SystemClock
from storage_engine.errors import ConfigError
from tests.pipeline.ingest.ingest_runs import append_values, dead_letters_of, records_of, run_ingest, topics_of

LINES = """
root: unused
topics: {{events: {{partitions: 1}}}}
ingest:
  topic: events
  source: {{format: {format}, path: {path}, schema: "{schema}", options: {{{options}}}}}
  key: k
  value: to_json(struct(*))
"""


class Lines:
    """A folder of text files as the source of the topic `events`."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.root = folder / "root"
        self.folder = folder
        self.schema = "k STRING, n INT, t TIMESTAMP"
        self.options = ""
        (folder / "source").mkdir()

    def ingest(self, kind: str, text: str | bytes, *overrides: str) -> dict[str, int]:
        """Refused rows by reason."""
        conf = self.folder / "lines.yaml"
        source = self.folder / "source"
        conf.write_text(LINES.format(format=kind, path=source, schema=self.schema, options=self.options))
        (source / f"{len(list(source.iterdir()))}.{kind}").write_bytes(
            text if isinstance(text, bytes) else text.encode()
        )
        return dict(run_ingest(self.spark, conf, self.root, *overrides).dead_letters)

    def values(self) -> list[str | None]:
        return [value.decode() if (value := record["value"]) is not None else None for record in self.records()]

    def records(self) -> list[dict[str, Any]]:
        return records_of(self.root, "events")

    def letters(self) -> list[dict[str, Any]]:
        return dead_letters_of(self.root, "events")


@pytest.fixture
def lines(spark: SparkSession, tmp_path: Path) -> Lines:
    return Lines(spark, tmp_path)


def test_json_lines_that_do_not_fit_are_kept_as_they_stand(lines: Lines) -> None:
    bad = [
        '{"k": "b", "n": ',
        '{"k": "c", "n": "three"}',
        '{"k": "d", "t": "soon"}',
        "[1]",
        b'\xff{"k"'.decode("latin-1"),
    ]
    good = ['{"k": "a", "n": 1}', '{"k": "e"}', '{"k": "f", "more": true}']
    text = b"\n".join(line.encode("latin-1") for line in (good[0], *bad, *good[1:])) + b"\n"

    assert lines.ingest("json", text) == {"malformed": 5}

    assert lines.values() == ['{"k":"a","n":1}', '{"k":"e"}', '{"k":"f"}']
    assert [(letter["row"], letter["value"]) for letter in lines.letters()] == [
        (number, line.encode("latin-1")) for number, line in enumerate(bad, start=1)
    ]
    assert all(letter["source"].endswith("/source/0.json") for letter in lines.letters())
    assert lines.letters()[0]["detail"] == "the row does not fit ingest.source.schema"


def test_csv_lines_of_a_wrong_type_or_length_are_kept_as_they_stand(lines: Lines) -> None:
    lines.options = "header: true"
    bad = ["b,two,", "c", "d,4,,more"]

    assert lines.ingest("csv", "\n".join(["k,n,t", "a,1,2026-01-01", *bad, "e,,", ""]), "ingest.value=k") == {
        "malformed": 3
    }

    assert lines.values() == ["a", "e"]
    assert [letter["value"].decode() for letter in lines.letters()] == bad


def test_a_column_of_any_name_is_the_users_own(lines: Lines) -> None:
    lines.options = "MODE: permissive"  # as it is without
    lines.schema = "_lakelog_malformed STRING, k STRING, value STRING, n INT"
    text = '{"k": "a", "value": "v", "_lakelog_malformed": "mine"}\n{"k": "b", "n": "x"}\n'
    assert lines.ingest("json", text) == {"malformed": 1}
    assert lines.values() == ['{"_lakelog_malformed":"mine","k":"a","value":"v"}']


def test_what_the_settings_say_of_malformed_lines_is_done(lines: Lines) -> None:
    lines.options = "mode: DROPMALFORMED"
    assert lines.ingest("json", '{"k": "a"}\n{"k": \n') == {}
    assert lines.values() == ['{"k":"a"}']
    lines.options = "columnNameOfCorruptRecord: broken"
    with pytest.raises(ConfigError, match="broken, which is not a column of ingest"):
        lines.ingest("json", "{\n")
    lines.schema = "k STRING, broken STRING"
    assert lines.ingest("json", "{\n") == {}
    assert lines.values()[1:] == ['{"broken":"{"}'] * 2


def test_an_expression_that_fails_refuses_its_row_and_never_becomes_null(lines: Lines) -> None:
    lines.schema = "k STRING, v STRING, t STRING, p STRING"
    rows = [
        {"k": "1", "v": "10"},
        {"k": "x", "v": "11"},
        {"k": "3", "v": "many"},
        {"k": "4", "v": "14", "t": "2026-02-30"},
        {"k": "5", "v": "15", "p": "99999999999"},
        {"k": "6", "v": "2147483647"},
        {"k": "7"},
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)

    refused = lines.ingest(
        "json", text, "ingest.key=string(int(k))", "ingest.value=string(int(v) + int(k))", "ingest.timestamp=date(t)",
        "ingest.partition=int(p) * 0", "ingest.headers=array(named_struct('key', 'k', 'value', binary(k)))",
    )  # fmt: skip

    assert refused == {"expression_failed": 5}
    assert [(letter["row"], letter["detail"], json.loads(letter["value"])) for letter in lines.letters()] == [
        (1, "ingest.key cannot be evaluated on the row", rows[1]),
        (2, "ingest.value cannot be evaluated on the row", rows[2]),
        (3, "ingest.timestamp cannot be evaluated on the row", rows[3]),
        (4, "ingest.partition cannot be evaluated on the row", rows[4]),
        (5, "ingest.value cannot be evaluated on the row", rows[5]),
    ]
    assert [(record["key"], record["value"]) for record in lines.records()] == [(b"1", b"11"), (b"7", None)]


def test_a_header_without_a_key_and_a_partition_beyond_all_numbers_refuse_their_rows(lines: Lines) -> None:
    lines.schema = "k STRING, h STRING, p BIGINT"
    rows = [
        {"k": "a", "h": "h"}, {"k": "b"}, {"k": "none", "h": "h"}, {"k": "c", "h": "h", "p": 3_000_000_000},
        {"k": "d", "h": "h", "p": 0},
    ]  # fmt: skip
    text = "".join(json.dumps(row) + "\n" for row in rows)

    refused = lines.ingest(
        "json", text, "ingest.partition=p", "ingest.value=binary(k)",
        "ingest.headers=if(k = 'none', array(null), array(named_struct('key', h, 'value', binary(k))))",
    )  # fmt: skip

    assert refused == {"expression_failed": 2, "bad_partition": 1}
    assert [(letter["value"], letter["detail"]) for letter in lines.letters()] == [
        (b'{"k":"b"}', "ingest.headers cannot be evaluated on the row"),
        (b'{"k":"none","h":"h"}', "ingest.headers cannot be evaluated on the row"),
        (b"c", "the topic has no partition with this number"),
    ]
    assert [(record["key"], record["headers"]) for record in lines.records()] == [
        (b"a", [{"key": "h", "value": b"a"}]), (b"d", [{"key": "h", "value": b"d"}]),
    ]  # fmt: skip


def test_each_refused_row_has_its_file_whatever_the_reason(lines: Lines) -> None:
    day_ms, now_ms = 86_400_000, SystemClock().now_ms()
    topics_of(lines.root).create("events", 2, {
        "max.message.bytes": "20000", "message.timestamp.before.max.ms": str(day_ms),
        "message.timestamp.after.max.ms": str(day_ms),
    })  # fmt: skip
    lines.schema = "k STRING, v STRING, t BIGINT, p INT, h STRING"
    rows: list[tuple[dict[str, Any], str | None]] = [
        ({"k": "good", "v": "v", "p": 1, "t": now_ms, "h": "h"}, None),
        ({"k": "beyond", "p": 2}, "bad_partition"),
        ({"k": "below", "p": -1}, "bad_partition"),
        ({"k": "old", "t": now_ms - day_ms - 1}, "bad_timestamp"),
        ({"k": "negative", "t": -5}, "bad_timestamp"),
        ({"k": "early", "t": now_ms + 2 * day_ms}, "bad_timestamp"),
        ({"k": "header", "h": "h" * 20_000}, "too_large"),
        ({"k": "value", "v": "v" * 20_000}, "too_large"),
        ({"k": "binary", "v": "w", "h": "raw"}, "expression_failed"),
        ({"k": "keyless", "v": "v", "h": "none"}, "expression_failed"),
    ]
    text = [json.dumps(row, separators=(",", ":")) for row, _ in rows] + ["{"]

    lines.ingest(
        "json", "".join(f"{line}\n" for line in text), "ingest.value=coalesce(v, k)", "ingest.partition=p",
        "ingest.timestamp=t", "ingest.headers=if(h is null, array(), array(named_struct('key', if(h = 'raw',"
        " string(X'FF'), nullif(h, 'none')), 'value', binary(k))))",
    )  # fmt: skip

    of_expressions = [(row.get("v", row["k"]), reason) for row, reason in rows[1:-1]]
    letters = lines.letters()
    assert [(letter["value"].decode(), letter["reason"]) for letter in letters] == [
        *of_expressions, (text[-2], "expression_failed"), ("{", "malformed"),
    ]  # fmt: skip
    assert {letter["source"].rpartition("/")[2] for letter in letters} == {"0.json"}
    assert lines.values() == ["v"]


@pytest.mark.parametrize("value", ["count(*)", "explode(array(k))", "max(k) over ()"])
def test_an_expression_of_many_rows_is_refused_before_anything_is_read(lines: Lines, value: str) -> None:
    with pytest.raises(ConfigError, match=r"does not return exactly one value for each row|cannot be evaluated"):
        lines.ingest("json", '{"k": "a"}\n', f"ingest.value={value}")


def test_a_parquet_file_that_cannot_be_read_ends_the_ingest_and_is_named(lines: Lines) -> None:
    lines.spark.sql("SELECT 'a secret' AS n, 'a' AS k").write.parquet(str(lines.folder / "other"))
    (other,) = (lines.folder / "other").glob("*.parquet")
    lines.schema = "n INT, k STRING"
    with pytest.raises(
        IngestError, match=r"FAILED_READ_FILE\.PARQUET_COLUMN.* in file://.*/source/0.parquet.*schema"
    ) as ended:
        lines.ingest("parquet", other.read_bytes())
    assert "secret" not in str(ended.value)
    assert lines.records() == []


MESSAGES = """
root: unused
topics: {copy: {partitions: 1}}
ingest:
  topic: copy
  source: {format: lakelog, schema: "k STRING, n INT", options: {subscribe: events}}
  key: event.k
  value: if(value is null, null, to_json(struct(event.n, offset)))
"""


def test_messages_that_are_not_their_json_are_kept_with_their_offsets(spark: SparkSession, tmp_path: Path) -> None:
    root, conf = tmp_path / "root", tmp_path / "copy.yaml"
    conf.write_text(MESSAGES)
    topics_of(root).create("events", 1, {})
    append_values(root, "events", '{"k": "a", "n": 1}', "no JSON", '{"n": "two"}', "null", '[{"n": 1}]', "", '{"n": 3}')
    append_values(root, "events", '\0\0\0\0\7{"n": 4}', f'\1{"g" * 16}{{"n": 5}}')  # with the id or GUID of a schema

    result = run_ingest(spark, conf, root)

    assert dict(result.dead_letters) == {"malformed": 5}
    assert [record["value"] for record in records_of(root, "copy")] == [
        b'{"n":1,"offset":0}', b'{"n":3,"offset":6}', b'{"n":4,"offset":7}', b'{"n":5,"offset":8}',
    ]  # fmt: skip
    letters = dead_letters_of(root, "copy")
    assert [(letter["source"], letter["value"]) for letter in letters] == [
        ("events-0@1", b"no JSON"), ("events-0@2", b'{"n": "two"}'), ("events-0@3", b"null"),
        ("events-0@4", b'[{"n": 1}]'), ("events-0@5", b""),
    ]  # fmt: skip
    assert letters[0]["key"] == b"n"


def test_tombstones_pass_a_schema_and_refused_records_have_coordinates(spark: SparkSession, tmp_path: Path) -> None:
    root, conf = tmp_path / "root", tmp_path / "copy.yaml"
    conf.write_text(MESSAGES)
    topics_of(root).create("events", 1, {})
    append_values(root, "events", '{"k": "a", "n": 1}', '{"n": 2}')
    append_values(root, "events", None)
    topics_of(root).create("copy", 1, {"cleanup.policy": "compact"})

    result = run_ingest(spark, conf, root, "ingest.key=if(value is null, string(key), event.k)")

    assert dict(result.dead_letters) == {"no_key": 1}
    found = [(record["key"], record["value"]) for record in records_of(root, "copy")]
    assert found == [(b"a", b'{"n":1,"offset":0}'), (b"a", None)]
    (letter,) = dead_letters_of(root, "copy")
    assert (letter["source"], letter["value"]) == ("events-0@1", b'{"n":2,"offset":1}')
