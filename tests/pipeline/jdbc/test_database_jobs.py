"""The job `export` with a table of a database: its report, its options, secrets, and the tasks of Spark."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from jobs.export import export
from lakelog.opening import open_topics
from pipeline.export.export_request import add_export_options
from pipeline.export.export_to_database import fill_with_spark
from pipeline.export.proof_run import add_proof_options, prove_exports
from pipeline.job import run_job
from pipeline.settings.jdbc_settings import DatabaseKind
from storage_engine.topic.readers.consumer_files import exported_table, read_consumers
from tests.pipeline.jdbc.sales import Sales
from tests.pipeline.jdbc.shop import Shop
from tests.servers.sql.databases import Databases

Run = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture(params=[DatabaseKind.POSTGRESQL, DatabaseKind.MARIADB], ids=str)
def sales(request: pytest.FixtureRequest, databases: Databases, tmp_path: Path) -> Sales:
    target = replace(databases.administrator(request.param), table=f"sales_{uuid4().hex[:12]}")
    sales = Sales(tmp_path, target)
    sales.sell(200, random.Random(1))
    return sales


@pytest.fixture
def run(sales: Sales, capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs the job in this process: exit status, what --json printed, and standard error."""

    def run(*arguments: str, **environ: str) -> tuple[int, dict[str, Any], str]:
        capfd.readouterr()
        argv = ["--conf", str(sales.conf), "--json", *arguments]
        status = run_job("export", "", export, add_export_options, argv, {**sales.environment, **environ})
        said = capfd.readouterr()
        return status, json.loads(said.out) if said.out else {}, said.err

    return run


def test_job_reports_what_it_did(sales: Sales, run: Run) -> None:
    status, result, told = run()
    assert status == 0
    assert sales.problems() == []
    shown = f"{sales.target.server} {'public.' if sales.target.kind == 'postgresql' else ''}{sales.target.table}"
    assert (result["topic"], result["table"], result["table version"], result["records"]) == ("sales", shown, 0, 200)
    assert f"dead letters in {sales.target.table}_dead_letters; its column reason says why" in told
    assert run()[1]["records"] == 0
    topics = open_topics(str(sales.root), None, print)
    [consumer] = read_consumers(topics.storage, topics.state("sales")).known
    assert (consumer.name, consumer.kind) == (f"export {shown}", "database export")
    assert sum(consumer.positions.values()) == 200
    assert exported_table(consumer) is None


def test_errors_do_not_show_the_password(sales: Sales, run: Run) -> None:
    status, _, told = run(LAKELOG_EXPORT_JDBC_PASSWORD="another-secret")
    assert status == 1
    assert f"{sales.target.server}: the user or the password is wrong" in told
    assert "another-secret" not in told


def test_options_that_need_a_delta_table_are_refused(sales: Sales, run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    for option in ("--replay", "--rebuild"):
        status, _, told = run(option)
        assert status == 2
        assert f"{option}: is only for Delta tables" in told
    arguments = ["--conf", str(sales.conf)]
    assert run_job("prove", "", prove_exports, add_proof_options, arguments, sales.environment) == 1
    assert "prove compares Delta tables only" in capfd.readouterr().err


def test_rows_are_exported_again_from_an_offset(sales: Sales, run: Run) -> None:
    assert run()[0] == 0
    status, result, _ = run("--from-offset", "0:0", "--from-offset", "1:10")
    assert (status, result["rows deleted"]) == (0, 0)
    assert sales.problems() == []


def test_tasks_of_spark_fill_the_same_table(spark: SparkSession, shop: Shop) -> None:
    for number in range(40):
        shop.log.add(b"%d" % (number % 7), number if number % 5 else b"{}", partition=number % 3)
    shop.log.spark = spark
    plans: list[str] = []

    def with_spark(plan: Any, staging: Any) -> Any:
        rows = shop.log.read(plan.to_read[0], plan.to_read[1], {}).repartition(2)
        collect = type(rows).collect

        def collected(frame: Any) -> Any:
            plans.append(frame._jdf.queryExecution().toString())
            return collect(frame)

        with patch.object(type(rows), "collect", collected):
            return fill_with_spark(rows, shop.export, staging)

    done = shop.run(fill_tables=with_spark)
    [plan] = plans
    assert "MapInArrow" in plan
    assert shop.target.password not in plan
    found, letters = shop.rows(), shop.letters()
    other = Shop(replace(shop.target, table=f"{shop.target.table}_2"))
    other.log = shop.log
    expected = other.run()
    assert replace(done, plan=expected.plan) == expected
    assert (found, letters) == (other.rows(), other.letters())
    assert len(letters) == 8


def test_error_of_a_task_is_the_error_of_the_export(spark: SparkSession, shop: Shop) -> None:
    shop.log.add(b"a", 1)
    shop.log.spark = spark

    def with_a_wrong_password(plan: Any, staging: Any) -> Any:
        wrong = replace(staging, target=replace(staging.target, password="wrong-secret"))
        return fill_with_spark(shop.log.read(plan.to_read[0], plan.to_read[1], {}), shop.export, wrong)

    with pytest.raises(Exception, match="the user or the password is wrong") as raised:
        shop.run(fill_tables=with_a_wrong_password)
    assert type(raised.value).__name__ == "DatabaseAccessError"
    assert shop.staging_tables() == []
