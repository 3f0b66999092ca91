"""`_line`, the unchanged line of a file, and the count of fields that are dropped if no expression names
`_line`."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from pipeline.ingest.ingesting import Ingest
from pipeline.ingest.micro_batch import IngestResult
from pipeline.ingest.rows import dropped_fields
from pipeline.ingest.rows.dropped_fields import DroppedFields
from pipeline.settings import load_settings
from storage_engine.errors import ConfigError, StorageUnavailableError
from tests.pipeline.ingest.ingest_runs import dead_letters_of, records_of, topics_of
from tests.stores import root_at

KEY_OF_FOLDERS = "to_json(named_struct('k', k, 'hour', hour, 'store', store, 'day', day))"
HEADER = "array(named_struct('key', 'line', 'value', binary(_line)))"


class Lines:
    """Files of lines, and ingests of them into a topic `events`."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.root = folder / "root"
        self.source = folder / "source"
        self.conf = folder / "settings.yaml"
        self.said: list[str] = []

    def ingest(self, kind: str, files: dict[str, bytes], schema: str, **settings: Any) -> IngestResult:
        """options: of the source; other settings: of the section ingest."""
        for name, content in files.items():
            file = self.source / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        source = {
            "format": kind, "path": str(self.source), "schema": schema, "options": settings.pop("options", {}),
        }  # fmt: skip
        ingest = {"topic": "events", "source": source} | settings
        topics = {"events": {"partitions": 1}}
        self.conf.write_text(yaml.safe_dump({"root": "unused", "topics": topics, "ingest": ingest}, width=10_000))
        loaded = load_settings(self.conf, [], root_at(self.root))
        return Ingest(self.spark, loaded, topics_of(self.root), self.said.append).run()

    def records(self) -> list[tuple[bytes | None, bytes | None, dict[str, bytes]]]:
        return [
            (record["key"], record["value"], {pair["key"]: pair["value"] for pair in record["headers"]})
            for record in records_of(self.root, "events")
        ]

    def letters(self) -> list[tuple[str, bytes]]:
        return [(letter["reason"], letter["value"]) for letter in dead_letters_of(self.root, "events")]


@pytest.fixture
def lines(spark: SparkSession, tmp_path: Path) -> Lines:
    return Lines(spark, tmp_path)


def test_a_line_of_json_is_a_record_byte_for_byte(lines: Lines) -> None:
    good = {
        b'{"k":"a", "n" : 1.0, "more": [1, 2.50]}': b'{"k":"a","n":1.0,"day":"2026-01-02","p":7}',
        b'{"k":"\xff","n":2} and more': '{"k":"\ufffd","n":2.0,"day":"2026-01-02","p":7}'.encode(),
        b'{"n":3,"_line":"mine","day":"no date"}': b'{"n":3.0,"day":"2026-01-02","p":7}',
    }
    bad = [b'{"k": "b", "n": "x"}', b'[{"k":"c"}]', b"null", b"{"]
    text = b"\r\n".join([*good, b"", b" \t", *bad])

    result = lines.ingest(
        "json", {"day=2026-01-02/p=7/1.json": text}, "k STRING, n DOUBLE, day DATE",
        value="_line", key="to_json(struct(*))", headers=HEADER, timestamp="to_timestamp(day)",
    )  # fmt: skip

    assert lines.records() == [(columns, line, {"line": line}) for line, columns in good.items()]
    assert lines.letters() == [("malformed", line) for line in bad]
    assert result.dropped_fields is None
    assert lines.said[0].startswith("batch 0: 3 records")


@pytest.mark.parametrize("kind", ["json", "csv"])
@pytest.mark.parametrize("value", ["_line", "to_json(struct(k))"])
def test_a_folder_is_what_the_schema_says_whichever_other_folders_exist(lines: Lines, kind: str, value: str) -> None:
    line = b'{"k":"a"}' if kind == "json" else b"a"
    of_folders = {
        "hour=08/store=007/day=2026-01-02": '{"k":"a","hour":"08","store":"007","day":"2026-01-02"}',
        "hour=10/store=1.10/day=2026-01-02": '{"k":"a","hour":"10","store":"1.10","day":"2026-01-02"}',
        "hour=1e5/store=__HIVE_DEFAULT_PARTITION__/day=__HIVE_DEFAULT_PARTITION__": '{"k":"a","hour":"1e5"}',
    }
    later = {"hour=late/store=x/day=2026-01-03": '{"k":"a","hour":"late","store":"x","day":"2026-01-03"}'}
    schema, settings = "k STRING, Hour STRING, store STRING, day DATE", {"value": value, "key": KEY_OF_FOLDERS}
    lines.ingest(kind, {f"{folder}/1.txt": line for folder in of_folders}, schema, **settings)
    assert sorted(key.decode() for key, _, _ in lines.records() if key) == sorted(of_folders.values())

    again = {f"{folder}/2.txt": line for folder in of_folders | later}
    lines.ingest(kind, again, schema, **settings)

    expected = sorted([*of_folders.values(), *of_folders.values(), *later.values()])
    assert sorted(key.decode() for key, _, _ in lines.records() if key) == expected


def test_a_line_of_csv_is_a_record_as_it_stands(lines: Lines) -> None:
    good = {
        b' "a b" ,1,x': (' "a b" ', "x"),
        b'"q,u",2,"  y "': ("q,u", "  y "),
        b"\x01a,3,b\x01c": ("\x01a", "b\x01c"),
        b"\x00z,4,nul": None,  # what Spark's parser makes of such a line is its own
        b"'s,5,": ("'s", None),
        b"#c,6,\\": ("#c", "\\"),
    }
    bad = [b"bad,two,", b"short,1", b"long,1,,"]
    text = b"\n".join([b"k,n,t", *good, b"", b"  ", *bad])

    lines.ingest(
        "csv", {"1.csv": text, "2.csv": b"k,n,t\n"}, "k STRING, n INT, t STRING",
        options={"header": "true"}, value="_line", key="to_json(struct(*))",
    )  # fmt: skip

    found = lines.records()
    assert [value for _, value, _ in found] == list(good)
    columns = [json.loads(key or b"") for key, _, _ in found]
    for row, (line, expected) in zip(columns, good.items(), strict=True):
        assert row["n"] == int(line.split(b",")[-2])
        assert expected is None or (row["k"], row.get("t")) == expected
    assert lines.letters() == [("malformed", line) for line in bad]


@pytest.mark.parametrize(
    ("kind", "value", "options", "message"),
    [
        (
            "json",
            "_line",
            {"multiLine": "true"},
            "names _line, which this source does not have: the option multiLine is true",
        ),
        ("csv", "_line", {"enforceSchema": "false"}, "the option enforceSchema is false"),
        ("csv", "_line", {"mode": "DROPMALFORMED"}, "does not set the options mode and columnNameOfCorruptRecord"),
        ("parquet", "_line", {}, "a source of format parquet has no lines of JSON or CSV"),
        (
            "json",
            "concat(_line, to_json(struct(*)))",
            {},
            r"has _line and \*, but \* does not include _line: name the columns instead",
        ),
    ],
)
def test_where_there_is_no_line_the_settings_are_refused(
    lines: Lines, kind: str, value: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        lines.ingest(kind, {"1.txt": b"{}\n"}, "k STRING", options=options, value=value)
    assert refused.value.place.endswith("ingest.value")


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("k VARCHAR(3)", "UNSUPPORTED_CHAR_OR_VARCHAR_AS_STRING"),
        ("k STRING, K STRING", "AMBIGUOUS_REFERENCE_TO_FIELDS"),
    ],
)
def test_a_schema_that_spark_refuses_is_an_error_of_the_settings(lines: Lines, schema: str, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"Spark cannot read the source: \[{message}") as refused:
        lines.ingest("json", {"1.json": b"{}\n"}, schema, value="_line")
    assert refused.value.place.endswith("ingest.source")


def test_a_column_that_is_called_so_is_the_sources_own(lines: Lines) -> None:
    text = b'{"k":"a","_line":"mine"}\n[{"k":"b"},{"k":"c","_line":"too"}]\n'
    lines.ingest("json", {"1.json": text}, "k STRING, _line STRING", value="_line", key="to_json(struct(*))")
    assert [(key, value) for key, value, _ in lines.records()] == [
        (b'{"k":"a","_line":"mine"}', b"mine"), (b'{"k":"b"}', None), (b'{"k":"c","_line":"too"}', b"too"),
    ]  # fmt: skip


def test_fields_that_the_schema_does_not_name_are_reported_once_each(
    lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dropped_fields, "SAMPLED_BYTES", 40_000)
    monkeypatch.setattr(dropped_fields, "_CHUNK", 10_000)
    rows: list[dict[str, Any]] = [{"k": "a", "n": number, "K": "another"} for number in range(2000)]
    rows[0]["first"] = rows[-1]["last"] = True
    files = {
        "1.json": "".join(f"{json.dumps(row)}\n" for row in rows).encode(),
        "2 %.json.gz": gzip.compress(b'{"k":"b","first":{"inner":1}}\nno JSON\n[{"packed":1}]\n'),
    }

    result = lines.ingest(
        "json", files, "k STRING, n INT", value="to_json(struct(*))", options={"maxFilesPerTrigger": "1"}
    )

    warnings = [line for line in lines.said if line.startswith("warning")]
    assert sorted(warnings) == [
        f'warning: the source has the field "{name}", which is not in the source\'s schema: the field is dropped.'
        " `value: _line` stores each line unchanged"
        for name in ("K", "first", "last", "packed")
    ]
    found = result.dropped_fields
    assert found is not None
    assert {name: found.rows[name] for name in ("first", "last", "packed")} == {"first": 2, "last": 1, "packed": 1}
    assert found.rows["K"] == found.looked_at - 3
    assert f'"packed" in 1 of {found.looked_at:,} examined rows' in found.summary
    assert 900 < found.looked_at < 1100
    assert result.records == 2002


def test_where_names_are_data_few_are_reported_and_the_rest_is_a_number(
    lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dropped_fields, "MOST_FIELDS", 2)
    rows = [b'{"k":"a","all":1,"id%d":2}\n' % number for number in range(500)]
    rows += [b'{"k":"b","all":1}\n', b'{"k":"c"}\n', b'{"more":1,"most":2}\n']
    result = lines.ingest("json", {"1.json": b"".join(rows)}, "k STRING", value="to_json(struct(*))")
    warnings = [line for line in lines.said if line.startswith("warning")]
    assert warnings == [
        *(
            f'warning: the source has the field "{name}", which is not in the source\'s schema: the field is dropped.'
            " `value: _line` stores each line unchanged"
            for name in ("all", "id0")
        ),
        "warning: the ingest drops further fields, too",
    ]
    assert result.dropped_fields is not None
    assert result.dropped_fields.summary == (
        '"all" in 501 of 503 examined rows, "id0" in 1 of 503 examined rows, further fields in 500 of 503 examined rows'
    )


def test_a_look_that_failed_and_is_repeated_counts_each_row_once(
    lines: Lines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = dropped_fields._opened
    files = [tmp_path / "1.json", tmp_path / "2.json"]
    for file in files:
        file.write_bytes(b'{"more":1}\n')
    monkeypatch.setattr(dropped_fields, "source_files", lambda *_: [file.as_uri() for file in files])
    fields = DroppedFields(frozenset({"k"}))
    storage = topics_of(lines.root).storage

    def open_first(spark: SparkSession, uri: str) -> Any:
        if uri == files[1].as_uri():
            raise StorageUnavailableError(uri, "is away", "Wait.")
        return opened(spark, uri)

    with monkeypatch.context() as patch:
        patch.setattr(dropped_fields, "_opened", open_first)
        with pytest.raises(StorageUnavailableError):
            fields.look(lines.spark, storage, "checkpoint", 0)
    [warning] = fields.look(lines.spark, storage, "checkpoint", 0)
    assert '"more"' in warning
    assert fields.summary == '"more" in 2 of 2 examined rows'


def test_no_file_or_decompressor_stays_open(spark: SparkSession, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.json.gz", tmp_path / "bad.json.zst"
    good.write_bytes(gzip.compress(b'{"k":"a"}\n'))
    bad.write_bytes(b"what only a native library can read, and Spark comes without one")
    assert list(dropped_fields._sampled_lines(spark, good.as_uri(), 100)) == [b'{"k":"a"}']
    with pytest.raises(Py4JError):
        list(dropped_fields._sampled_lines(spark, bad.as_uri(), 100))
    jvm = spark._jvm
    assert jvm is not None
    descriptors = Path(f"/proc/{jvm.java.lang.ProcessHandle.current().pid()}/fd")
    assert not {str(each.readlink()) for each in descriptors.iterdir() if each.is_symlink()} & {str(good), str(bad)}
