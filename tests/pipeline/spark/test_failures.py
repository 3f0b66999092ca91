"""Tests that an error of Spark becomes one line with the cause and without data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from pipeline.spark.failures import SparkFailedError, spark_failures
from storage_engine.errors import CorruptionError


def test_an_error_of_ours_in_a_task_is_reported_in_its_own_words(spark: SparkSession) -> None:
    def fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise CorruptionError("data/x/0/1.log", 61, "magic 2", "7", "Restore it.")

    with pytest.raises(SparkFailedError) as caught, spark_failures("export of topic t"):
        spark.range(1).mapInArrow(fail, "id bigint").collect()
    assert str(caught.value) == (
        "export of topic t: data/x/0/1.log at position 61: expected magic 2, found 7. Restore it."
        " Nothing that was committed is lost."
    )


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT CAST(concat('secret', id) AS INT) AS n FROM range(1)", "CAST_INVALID_INPUT"),
        (
            "SELECT from_json(concat('secret', id), 'n INT', map('mode', 'FAILFAST')) AS n FROM range(1)",
            "MALFORMED_RECORD_IN_PARSING",
        ),
        ("SELECT nothing FROM range(1)", "[UNRESOLVED_COLUMN"),
    ],
)
def test_spark_is_quoted_without_values_of_records(spark: SparkSession, sql: str, expected: str) -> None:
    with pytest.raises(SparkFailedError) as caught, spark_failures("ingest of topic t"):
        spark.sql(sql).collect()
    assert expected in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_path_that_hadoop_refuses_is_its_innermost_cause(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SparkFailedError, match="file") as caught, spark_failures("export of topic t"):
        spark.range(1).write.parquet(f"{tmp_path}/file/table")
    assert "Py4J" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_python_that_executors_do_not_have_is_named(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "python-of-nobody")
    with pytest.raises(SparkFailedError) as caught, spark_failures("export of topic t"):
        spark.range(1).mapInArrow(lambda batches: batches, "id bigint").collect()
    assert str(caught.value) == (
        "export of topic t: the executors cannot start Python with Lakelog's packages: there is no program"
        " python-of-nobody. Run ./spark-submit.sh --ship, which sends the packages to the executors, or install"
        " the packages on every host (docs/CLUSTER.md). Nothing that was committed is lost."
    )
