"""Runs programs that were written for Kafka, and the same programs with format("lakelog") instead of format("kafka").

Nothing else in a program is changed. The root comes from the session's spark.lakelog.root.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import lakelog
from tests.lakelog.spark.twins import BIG, FORMATS, KAFKA, Twins, rows_of
from tests.stores import root_at

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

PROGRAMS = Path(__file__).with_name("programs")


@pytest.fixture
def root(twins: Twins, spark: SparkSession) -> Iterator[None]:
    spark.conf.set("spark.lakelog.root", twins.topics.storage.uri)
    lakelog.register(spark)
    yield
    spark.conf.unset("spark.lakelog.root")
    lakelog.register(spark)


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize(("program", "rows"), [("batch_read.py", 21), ("word_count.py", 97)])
def test_a_program_that_reads_gives_the_same_rows(
    twins: Twins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, rows: int
) -> None:
    found = {}
    for kind in FORMATS:
        run(program, kind, monkeypatch, twins.broker.bootstrap_servers, BIG, str(tmp_path / kind))
        found[kind] = lines_of(tmp_path / kind)
    assert found["lakelog"] == found["kafka"]
    assert len(found["kafka"]) == rows


@pytest.mark.usefixtures("root")
def test_a_program_that_copies_makes_the_same_topic(
    twins: Twins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = twins.create(twins.name("migrated"), 0, 0, 0)
    found = {}
    for kind in FORMATS:
        run("copy.py", kind, monkeypatch, twins.broker.bootstrap_servers, BIG, target, root_at(tmp_path / kind))
        rows = rows_of(twins.frame(kind, {"subscribe": target, "includeHeaders": "true"}))
        found[kind] = [{name: row[name] for name in row if name != "timestamp"} for row in rows]
    assert found["lakelog"] == found["kafka"]
    assert len(found["kafka"]) == sum(
        record["key"] is not None for record in rows_of(twins.frame(KAFKA, {"subscribe": BIG}))
    )


def run(program: str, kind: str, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    file = PROGRAMS / program
    text = file.read_text()
    assert 'format("kafka")' in text
    monkeypatch.setattr(sys, "argv", [str(file), *arguments])
    exec(compile(text.replace('format("kafka")', f'format("{kind}")'), file, "exec"), {"__name__": "__main__"})


def lines_of(folder: Path) -> list[dict[str, Any]]:
    """The JSON lines of the files that Spark wrote, sorted."""
    lines = [line for file in folder.glob("*.json") for line in file.read_text().splitlines()]
    return sorted(map(json.loads, lines), key=str)
