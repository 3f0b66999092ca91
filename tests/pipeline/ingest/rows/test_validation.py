"""Ingest.validate: a value that does not fit the topic's model becomes a dead letter, and never a record of the
topic."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from storage_engine.errors import ConfigError
from tests.pipeline.ingest.ingest_runs import dead_letters_of, records_of, run_ingest
from tests.stores import is_untouched, storage_at

SETTINGS = """
root: unused
topics:
  flights: {{partitions: 1, cleanup.policy: compact, schema: flight}}
  copies: {{partitions: 1}}
ingest:
  topic: flights
  source: {{format: json, path: {source}, schema: "k STRING, flight STRING"}}
  key: k
  value: flight
  validate: true
"""
FLIGHT = {
    "year": 2013, "month": 1, "day": 1, "sched_dep_time": 515, "sched_arr_time": 819, "carrier": "UA", "flight": 1545,
    "tailnum": "N14228", "origin": "EWR", "dest": "IAH", "distance": 1400, "hour": 5, "minute": 15,
    "time_hour": "2013-01-01T10:00:00Z",
}  # fmt: skip


def test_values_that_the_model_does_not_take_are_dead_letters_with_its_reason(
    spark: SparkSession, tmp_path: Path
) -> None:
    source, conf, root = tmp_path / "source", tmp_path / "settings.yaml", tmp_path / "root"
    source.mkdir()
    good, secret = json.dumps(FLIGHT), json.dumps(FLIGHT | {"hour": "a secret"})
    values = {
        "a": good, "b": secret, "tombstone": None, "c": "no JSON", "d": json.dumps({}), "e": good,
        "f": json.dumps(FLIGHT | {"distance": 2**70}),
    }  # fmt: skip
    rows = [{"k": key, "flight": value} for key, value in values.items()] + [{"flight": secret}]
    (source / "1.json").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    conf.write_text(SETTINGS.format(source=source))

    result = run_ingest(spark, conf, root)

    assert dict(result.dead_letters) == {"invalid": 4, "no_key": 1}
    found = [(record["key"], record["value"]) for record in records_of(root, "flights")]
    assert found == [(b"a", good.encode()), (b"tombstone", None), (b"e", good.encode())]
    letters = dead_letters_of(root, "flights")
    assert [(letter["key"], letter["detail"]) for letter in letters] == [
        (b"b", "int_type at hour, by the schema flight"),
        (b"c", "json_invalid, by the schema flight"),
        (b"d", "missing at year and 12 more, by the schema flight"),
        (b"f", "out_of_range at distance, by the schema flight"),
        (None, "the topic is compacted and the record has no key"),
    ]
    assert all("secret" not in letter["detail"] for letter in letters)
    assert letters[0]["value"] == secret.encode()
    assert {letter["source"].rpartition("/")[2] for letter in letters} == {"1.json"}


@pytest.mark.parametrize(
    ("override", "place", "message"),
    [
        (
            "ingest.topic=copies",
            "line 11, ingest.validate",
            "topic copies needs a schema, but topics.copies.schema is not given. Set topics.copies.schema to a model",
        ),
        ("topics.flights.schema=fligth", "topics.flights.schema", "there is no model 'fligth' in schemas/"),
    ],
)
def test_a_topic_without_a_model_cannot_be_validated(
    spark: SparkSession, tmp_path: Path, override: str, place: str, message: str
) -> None:
    conf = tmp_path / "settings.yaml"
    conf.write_text(SETTINGS.format(source=tmp_path))
    with pytest.raises(ConfigError, match=message) as refused:
        run_ingest(spark, conf, tmp_path / "root", override)
    assert refused.value.place.endswith(place)
    assert is_untouched(storage_at(tmp_path / "root"))
