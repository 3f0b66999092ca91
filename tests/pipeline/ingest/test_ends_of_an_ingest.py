"""The error of an ingest that Spark ended: it names the source and the cause, and does not promise that a restart
helps."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
import yaml
from pyspark.sql import SparkSession

from pipeline.ingest.ingesting import Ingest, IngestError
from pipeline.settings import load_settings
from storage_engine.errors import ConfigError
from tests.pipeline.ingest.ingest_runs import append_values, dead_letters_of, run_ingest, topics_of
from tests.roots.checkpoints import completed_batches
from tests.stores import root_at, storage_at


def settings(folder: Path, schema: str | None = None, **source: object) -> Path:
    conf = folder / "settings.yaml"
    topic = {"partitions": 1} | ({"schema": schema} if schema else {})
    ingest = {"topic": "t", "source": source, "value": source.pop("value", "value")}
    conf.write_text(yaml.safe_dump({"root": "unused", "topics": {"t": topic}, "ingest": ingest}, width=10_000))
    return conf


def test_a_stream_that_cannot_start_names_its_topics_and_promises_nothing(spark: SparkSession, tmp_path: Path) -> None:
    topics_of(tmp_path / "root").create("events", 1, {})
    append_values(tmp_path / "root", "events", "a")
    conf = settings(tmp_path, format="lakelog", options={"subscribe": "events", "endingOffsets": "latest"})
    for _ in range(2):
        with pytest.raises(IngestError, match=r"option endingOffsets: is given for a stream") as ended:
            run_ingest(spark, conf, tmp_path / "root")
        assert ended.value.place == f"ingest of t from lakelog, subscribe events, at {root_at(tmp_path / 'root')}"
        assert ended.value.remedy.startswith(
            "Nothing that was committed is lost. Fix the cause, and start the ingest again"
        )


@pytest.mark.parametrize(
    ("login", "reason"),
    [
        ("PlainLoginModule s3cret password=s3cret;", "Invalid login module control flag ... in JAAS config"),
        ('PlainLoginModule "s3cr\'et" password=s3cret;', "Invalid login module control flag ... in JAAS config"),
        ('PlainLoginModule required "s3cr\'et";', "Value not specified for key ... in JAAS config"),
        ("PlainLoginModule required password=s3cret", "JAAS config entry not terminated by semi-colon"),
        ("s3cret", "Login module control flag not specified in JAAS config"),
        (
            "PlainLoginModule required password=s3cret; PlainLoginModule required password=s3cret;",
            "JAAS config property contains 2 login modules, should be 1 module",
        ),
    ],
)
def test_a_login_that_kafka_does_not_understand_is_reported_without_any_part_of_it(
    spark: SparkSession, tmp_path: Path, login: str, reason: str
) -> None:
    options = {
        "kafka.bootstrap.servers": "127.0.0.1:9", "subscribe": "orders", "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "PLAIN", "kafka.SASL.jaas.config": login,
    }  # fmt: skip
    conf = settings(tmp_path, format="kafka", options=options)
    with pytest.raises(ConfigError) as ended:
        run_ingest(spark, conf, tmp_path / "root")
    assert str(ended.value).startswith(f"{conf}, line ")
    assert ended.value.problem == (
        f"Kafka does not understand the login: {reason}. The value is not shown, because it contains a password"
    )
    assert "s3cr" not in str(ended.value)
    assert ended.value.__cause__ is None
    assert not (tmp_path / "root").exists(), "the ingest has not begun"


def test_executors_without_the_packages_are_told_so(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source/1.json").write_text('{"value": "a"}\n{"value": "b"}\n')
    conf = settings(tmp_path, format="json", path=str(tmp_path / "source"), schema_="")
    conf.write_text(conf.read_text().replace("schema_: ''", "schema: value STRING"))
    of_spark = spark._jvm.org.apache.spark.SparkEnv.get().conf()  # type: ignore[union-attr]
    module = of_spark.get("spark.python.daemon.module")
    of_spark.set("spark.python.daemon.module", "not_installed.python_daemon")
    try:
        with pytest.raises(IngestError) as ended:
            run_ingest(spark, conf, tmp_path / "root")
    finally:
        of_spark.set("spark.python.daemon.module", module)
    assert "the executors cannot start Python with Lakelog's packages: it has no module not_installed" in str(
        ended.value
    )
    assert "schema" not in str(ended.value)
    assert run_ingest(spark, conf, tmp_path / "root").records == 2


def test_a_schema_is_named_by_the_setting_that_it_comes_from(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "1.json").write_text('{"hour": "x"}\n')
    conf = settings(tmp_path, "fligth", format="json", path=str(source), value="carrier")
    with pytest.raises(ConfigError, match="there is no model 'fligth' in schemas/") as refused:
        run_ingest(spark, conf, tmp_path / "root")
    assert refused.value.place.endswith("topics.t.schema")
    conf = settings(tmp_path, "flight", format="json", path=str(source), value="carrier")

    run_ingest(spark, conf, tmp_path / "root")

    (letter,) = dead_letters_of(tmp_path / "root", "t")
    assert (letter["detail"], json.loads(letter["value"])) == ("the row does not fit topics.t.schema", {"hour": "x"})


def test_an_ingest_that_was_asked_to_stop_ends_after_its_stream(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark records the last micro-batch as done after the request to stop. In this test, it does so later than
    usual."""

    def ask(line: str) -> None:
        if "batch 0: " in line:
            os.kill(os.getpid(), signal.SIGTERM)

    def stop_and_dawdle(ingest: Ingest) -> None:
        stop(ingest)
        time.sleep(3)

    stop = Ingest._stop_after_this
    monkeypatch.setattr(Ingest, "_stop_after_this", stop_and_dawdle)
    conf = settings(tmp_path, format="rate", value="cast(value as string)")
    wanted = load_settings(conf, ["ingest.trigger=1 second"], root_at(tmp_path / "root"))

    result = Ingest(spark, wanted, topics_of(tmp_path / "root"), ask).run()

    assert spark._jvm
    threads = [thread.getName() for thread in spark._jvm.Thread.getAllStackTraces().keySet()]
    assert [name for name in threads if name.startswith("stream execution thread for ingest t ")] == []
    noted = completed_batches(storage_at(tmp_path / "root"), "checkpoints/ingest/t")
    assert noted == set(range(result.batches))
