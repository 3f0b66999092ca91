"""The settings of the Spark session, and what PySpark prints for an error that it raises."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, SparkSession

from pipeline.spark.session import local_settings, umask_setting
from tests.java_options import JAVA_OPTIONS
from tests.jobs.noise import printed

PROJECT = Path(__file__).resolve().parents[3]

ALONE = {"spark.executor.heartbeatInterval": "1d", "spark.network.timeout": "7d"}


@pytest.mark.parametrize(("given", "expected"), [
    ({"spark.master": "local"}, ALONE),
    ({"spark.master": "local[*]"}, ALONE),
    ({"spark.master": "local[2,4]"}, ALONE),
    ({"spark.master": "local-cluster[2,1,1024]"}, {}),
    ({"spark.master": "spark://there:7077"}, {}),
    ({"spark.master": "yarn"}, {}),
    ({}, {}),
    ({"spark.master": "local[*]", "spark.network.timeout": "240s"}, {}),  # a pair: the interval has to be the shorter one
    ({"spark.master": "local[*]", "spark.executor.heartbeatInterval": "5s"}, {}),
])  # fmt: skip
def test_only_a_driver_that_is_its_own_executor_does_not_wait_for_its_own_heartbeats(
    given: dict[str, str], expected: dict[str, str]
) -> None:
    assert local_settings(given) == expected


def test_hadoop_gets_the_umask_of_the_process_unless_the_user_sets_another() -> None:
    before = os.umask(0o027)
    try:
        assert umask_setting({}) == {"spark.hadoop.fs.permissions.umask-mode": "027"}
        assert umask_setting({"spark.hadoop.fs.permissions.umask-mode": "007"}) == {}
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)


def test_a_session_has_these_settings(spark: SparkSession) -> None:
    settings = spark.sparkContext.getConf()

    assert {name: settings.get(name) for name in ALONE} == ALONE


def test_c2_compiles_later_than_by_default_and_c1_does_not(spark: SparkSession) -> None:
    assert spark.sparkContext._jvm
    java = spark.sparkContext._jvm.java
    kind = java.lang.Class.forName("com.sun.management.HotSpotDiagnosticMXBean")
    machine = java.lang.management.ManagementFactory.getPlatformMXBean(kind)
    defaults = {"Invocation": 5_000, "MinInvocation": 600, "Compile": 15_000, "BackEdge": 40_000}  # of Java 17 and 21

    later = {name: machine.getVMOption(f"Tier4{name}Threshold").getValue() for name in defaults}

    assert later == {name: str(20 * default) for name, default in defaults.items()}
    assert machine.getVMOption("Tier3InvocationThreshold").getValue() == "200"


def test_python_that_works_on_after_the_end_of_the_jvm_prints_nothing() -> None:
    program = """
import time
from pipeline.spark.session import end_session, spark_session

spark = spark_session("ending")
counted = spark.range(10).mapInArrow(lambda batches: batches, "id bigint").count()
gateway = spark.sparkContext._gateway
end_session(spark)
print(counted, gateway.proc.wait())
time.sleep(2)  # PySpark's threads notice the end of the JVM within a second
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=PROJECT,
        env=os.environ | JAVA_OPTIONS,
    )  # fmt: skip

    assert (ended.returncode, ended.stdout, printed(ended.stderr)) == (0, "10 0\n", [])


def test_java_has_no_module_that_it_warns_of(spark: SparkSession) -> None:
    assert spark.sparkContext._jvm
    modules = spark.sparkContext._jvm.java.lang.ModuleLayer.boot()

    assert modules.findModule("java.base").isPresent()
    assert not modules.findModule("jdk.incubator.vector").isPresent()


@pytest.mark.parametrize(("logger", "wrong"), [
    ("SQLQueryContextLogger", lambda spark: spark.sql("SELECT nothing FROM range(1)")),
    ("DataFrameQueryContextLogger", lambda spark: spark.range(1).select("nothing")),
])  # fmt: skip
def test_an_error_that_is_raised_is_not_printed_as_well(
    spark: SparkSession,
    logger: str,
    wrong: Callable[[SparkSession], DataFrame],
    capsys: pytest.CaptureFixture[str],
) -> None:
    for handler in PySparkLogger.getLogger(logger).handlers:  # an earlier test's standard error is closed
        if type(handler) is logging.StreamHandler:  # not one of pytest's
            handler.setStream(sys.stderr)

    with pytest.raises(AnalysisException, match="nothing"):
        wrong(spark)

    assert capsys.readouterr().err == ""


def test_the_session_of_a_job_lacks_what_programs_of_users_need_until_it_is_completed() -> None:
    program = """
import os
from pyspark.errors import AnalysisException
from pyspark.ml.functions import array_to_vector
from pyspark.sql import functions as F
from pipeline.spark.session import spark_session

def shown(show):
    try:
        print(show())
    except AnalysisException as error:
        print(error.getCondition())

def variables(batches):
    for batch in batches:
        names = ("LAKELOG_ROOT", "MALLOC_TRIM_THRESHOLD_")
        yield batch.from_pylist([{"value": os.environ.get(name)} for name in names])

for complete in (False, True):
    spark = spark_session("sessions", complete=complete)
    shown(lambda: [value for value, in spark.range(0, 1, 1, 1).mapInArrow(variables, "value string").collect()])
    shown(lambda: spark.range(1).select(array_to_vector(F.array(F.lit(1.5)))).first()[0])
    shown(lambda: spark.read.format("lakelog").load(subscribe="t").columns[:3])
    print(spark._jvm.java.lang.Thread.currentThread().getContextClassLoader().getClass().getName())
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=PROJECT,
        env=os.environ | JAVA_OPTIONS | {"LAKELOG_ROOT": "file:///nowhere"},
    )  # fmt: skip

    assert (ended.returncode, printed(ended.stderr)) == (0, [])
    workers, loader = "['file:///nowhere', '134217728']", "org.apache.spark.util.MutableURLClassLoader"
    assert ended.stdout.splitlines() == [
        workers, "UNRESOLVED_ROUTINE", "DATA_SOURCE_NOT_EXIST", loader,
        workers, "[1.5]", "['key', 'value', 'topic']", loader,
    ]  # fmt: skip


def test_only_the_extension_of_mllib_is_hidden(spark: SparkSession, tmp_path: Path) -> None:
    name = "META-INF/services/org.apache.spark.sql.SparkSessionExtensionsProvider"
    for folder in ("spark-mllib_2.13-4.2.0.jar", "other"):
        (tmp_path / folder / name).parent.mkdir(parents=True)
        (tmp_path / folder / name).write_text("some.Extension")
    assert spark.sparkContext._gateway
    java = spark.sparkContext._gateway.jvm
    urls = spark.sparkContext._gateway.new_array(java.java.net.URL, 2)
    for number, folder in enumerate(("spark-mllib_2.13-4.2.0.jar", "other")):
        urls[number] = java.java.io.File(str(tmp_path / folder)).toURI().toURL()
    spark_loader = java.java.lang.Thread.currentThread().getContextClassLoader()
    every = java.java.net.URLClassLoader(urls, spark_loader)

    def found(loader: Any, resource: str) -> list[str]:
        return [url.getPath() for url in java.java.util.Collections.list(loader.getResources(resource))]

    (mllib,) = found(spark_loader, name)
    assert "/spark-mllib_" in mllib
    assert found(every, name) == [mllib, *found(java.lakelog.WithoutMllib(every), name)]
    assert len(found(java.lakelog.WithoutMllib(every), name)) == 2
    of_spark = "META-INF/services/org.apache.spark.sql.sources.DataSourceRegister"
    assert found(java.lakelog.WithoutMllib(every), of_spark) == found(every, of_spark)
    assert len(found(every, of_spark)) > 3
