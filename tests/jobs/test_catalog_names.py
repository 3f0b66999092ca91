"""Exports with `export.catalog.table`: Spark finds the table by its name in a real Hive metastore."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import lakelog
from jobs.export import export
from pipeline.export.export_request import add_export_options
from pipeline.job import run_job
from pipeline.settings.settings_loading import load_settings
from storage_engine.errors import ConfigError
from tests.java_options import JAVA_OPTIONS
from tests.roots.delta_tables import open_table
from tests.stores import root_at, storage_at

SETTINGS = """
topics:
  orders: {partitions: 1, cleanup.policy: compact, schema: "id STRING COMMENT 'who ordered', amount BIGINT"}
export: {topic: orders, catalog.table: sales.orders}
"""
EXPECTED = [{"id": "ann", "amount": 7}, {"id": "bob", "amount": 2}]


class Shop:
    """A root with the topic orders, the settings of its export, and an empty Hive metastore in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.conf = folder / "conf.yaml"
        self.conf.write_text(SETTINGS)
        self.root = root_at(folder / "root")
        self.errors = folder / "errors"
        self.topic = lakelog.open(self.root, create=True).create_topic(
            "orders", partitions=1, config={"cleanup.policy": "compact"}
        )

    def order(self, name: str, amount: int) -> None:
        value = json.dumps({"id": name, "amount": amount}).encode()
        self.topic.append([{"key": name.encode(), "value": value}])

    def arguments(self, *more: str) -> list[str]:
        return ["--conf", str(self.conf), "--root", self.root, *more]

    @contextmanager
    def spark_user(self) -> Iterator[Callable[..., list[Any]]]:
        """A function that runs steps of `catalog_user` in one process with the metastore, and returns their results."""
        settings = {
            "spark.sql.catalogImplementation": "hive",
            "spark.sql.warehouse.dir": str(self.folder / "warehouse"),
            "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={self.folder}/metastore;create=true",
            "spark.hadoop.datanucleus.schema.autoCreateAll": "true",
            "spark.hadoop.hive.metastore.schema.verification": "false",
            "spark.driver.extraJavaOptions": "-Dderby.stream.error.file=/dev/null",
        }
        submit = " ".join(f"--conf '{name}={value}'" for name, value in settings.items())
        with self.errors.open("w") as stderr, subprocess.Popen(
            [sys.executable, "-m", "tests.jobs.catalog_user"],
            env=os.environ | JAVA_OPTIONS | {"PYSPARK_SUBMIT_ARGS": f"{submit} pyspark-shell"},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True,
        ) as process:  # fmt: skip
            assert process.stdin is not None
            assert process.stdout is not None
            steps, lines = process.stdin, process.stdout

            def run(*given: dict[str, Any]) -> list[Any]:
                steps.writelines(json.dumps(step) + "\n" for step in given)
                steps.flush()
                results = (line[5:] for line in lines if line.startswith("STEP "))
                return [json.loads(result) for result in islice(results, len(given))]

            yield run
            steps.close()
        assert process.returncode == 0

    def told(self) -> list[str]:
        """What the process has printed on standard error, without the notes of Java and the export's report."""
        lines = self.errors.read_text().splitlines()
        return [line for line in lines if not line.startswith(("NOTE: Picked up", "export orders: "))]

    def without_java(self, *more: str) -> subprocess.CompletedProcess[str]:
        """Run the export in a process that cannot start Spark."""
        environment = os.environ | {"JAVA_HOME": str(self.folder), "PATH": str(self.folder)}
        command = [sys.executable, "-m", "jobs.export", *self.arguments(*more)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    def history(self) -> list[str]:
        return [
            commit["operation"]
            for commit in reversed(open_table(storage_at(self.folder / "root"), "tables/orders").history())
        ]


def run_export(*arguments: str) -> int:
    return run_job("export", "", export, add_export_options, list(arguments), {})


@pytest.mark.slow
@pytest.mark.posix("moves the table's folder")
def test_a_table_is_found_by_its_name_in_a_metastore(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.order("ann", 1)
    rows = {"sql": "SELECT id, amount FROM sales.orders ORDER BY id"}
    run: dict[str, Any] = {"export": shop.arguments()}
    with shop.spark_user() as user:
        # Without the schema, and with another table under the name, nothing is exported.
        assert user(run, {"sql": "CREATE SCHEMA sales"}, {"sql": "CREATE TABLE sales.orders (a INT) USING parquet"}) == [
            1, [], [],
        ]  # fmt: skip
        assert user(run, {"sql": "DROP TABLE sales.orders"}, run) == [1, [], 0]
        first, second = shop.told()
        assert "the table cannot be registered as sales.orders, because there is no schema spark_catalog.sales" in first
        assert first.endswith("Create it in Spark: CREATE SCHEMA spark_catalog.sales")
        place = f"file:{tmp_path}/warehouse/sales.db/orders"
        assert f"the name sales.orders stands for a table of the format parquet in {place}" in second
        (columns,) = user({"sql": "DESCRIBE TABLE sales.orders"})
        assert {"col_name": "id", "data_type": "string", "comment": "who ordered"} in columns
        assert shop.history() == ["CREATE TABLE", "WRITE", "CHANGE COLUMNS", "SET TBLPROPERTIES"], (
            "the refused runs wrote nothing"
        )

        # The table notes its name, so the next export needs no Spark, and changes nothing in the catalog.
        before = shop.history()
        shop.order("ann", 7)
        shop.order("bob", 2)
        found = shop.without_java()
        assert (found.returncode, found.stderr) == (0, ""), found.stderr
        assert shop.history() == [*before, "WRITE"]
        assert user(rows) == [EXPECTED]
        # A name that is gone comes back with an export by Spark. A table that was moved gets its name again.
        moved = {"sql": "ALTER TABLE sales.orders RENAME TO sales.old_orders"}
        count = {"sql": "SELECT count(*) AS n FROM sales.old_orders"}
        assert user(moved, {"export": shop.arguments("--rebuild")}, rows, count) == [[], 0, EXPECTED, [{"n": 2}]]

        shutil.move(tmp_path / "root", tmp_path / "moved")
        shop.root = str(tmp_path / "moved")
        assert "Spark" in shop.without_java().stderr, "only Spark can register the table in its new folder"


@pytest.mark.slow
def test_a_column_whose_name_spark_would_not_give_a_new_table_can_be_in_a_named_table(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.conf.write_text(
        SETTINGS.replace("amount BIGINT", "`the amount` BIGINT, `a,b;{}()=` STRING, s STRUCT<`x y`: BIGINT>")
    )
    rows = {"sql": "SELECT id, `the amount`, `a,b;{}()=` FROM sales.orders ORDER BY id"}
    export = {"export": shop.arguments()}

    def add(name: str) -> None:
        value = {"id": name, "the amount": 1, "a,b;{}()=": name, "s": {"x y": 1}}
        shop.topic.append([{"key": name, "value": json.dumps(value)}])

    expected = [{"id": name, "the amount": 1, "a,b;{}()=": name} for name in ("ann", "bob")]
    with shop.spark_user() as user:
        add("ann")
        assert user({"sql": "CREATE SCHEMA sales"}, export, rows) == [[], 0, expected[:1]]
        history = ["CREATE TABLE", "WRITE", "CHANGE COLUMNS", "SET TBLPROPERTIES"]
        assert shop.history() == history
        table = open_table(storage_at(tmp_path / "root"), "tables/orders")
        assert table.metadata().configuration["lakelog.catalog.table"] == f"sales.orders at {shop.root}/tables/orders"
        add("bob")
        found = shop.without_java()
        assert (found.returncode, found.stderr) == (0, "")
        assert shop.history() == [*history, "WRITE"]
        assert user(rows, export) == [expected, 0]
        assert shop.history() == [*history, "WRITE"]
    assert shop.told() == []


@pytest.mark.usefixtures("spark")
def test_a_catalog_in_memory_is_refused_before_anything_is_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = Shop(tmp_path)
    shop.order("ann", 1)
    assert run_export(*shop.arguments()) == 1
    said = capsys.readouterr().err
    assert (
        "the name sales.orders would be gone after the job, because spark_catalog is only in the memory of Spark"
        in said
    )
    assert "hive.metastore.uris" in said
    assert not any(file.key.startswith("tables/") for file in storage_at(tmp_path / "root").list("tables/"))


@pytest.mark.parametrize(
    "name", ["orders", "a.b.c.d", "sales.", "sales.or`ders", "sales.or-ders", "säles.orders", ".orders"]
)
def test_a_name_that_is_no_name_of_a_table_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "conf.yaml").write_text(SETTINGS)
    with pytest.raises(ConfigError, match=r"Write schema.table or catalog.schema.table"):
        load_settings(tmp_path / "conf.yaml", [f"export.catalog.table={name}"], str(tmp_path), {})


def test_two_tables_with_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "conf.yaml").write_text("""
        topics: {orders: {partitions: 1}, items: {partitions: 1}}
        exports:
          first: {topic: orders, catalog.table: sales.all}
          second: {topic: items, catalog.table: Sales.All}
    """)
    with pytest.raises(ConfigError, match=r"the exports first and second have the same catalog.table, sales.all"):
        load_settings(tmp_path / "conf.yaml", (), str(tmp_path), {})
