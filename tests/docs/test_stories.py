"""Follows the pages as a new user does: copies their settings and commands into an empty folder, and runs them.

There are two changes. Absolute paths are replaced. A stream that would run forever ends here at the current end of its
source.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from pipeline.ingest.rows.record_rows import record_rows
from pipeline.ingest.rows.source_rows import source_rows
from pipeline.settings import load_settings
from storage_engine.config import topic_config
from tests.deploy.schedules import cron_entries, exec_start, manifests
from tests.docs.commands import Machine, run_job
from tests.docs.pages import PROJECT, Block, blocks, commands, text_of
from tests.java_options import JAVA_OPTIONS
from tests.sample_orders import as_json, orders

CLI, CONFIGURATION = "docs/CLI.md", "docs/CONFIGURATION.md"
OPERATIONS, SOURCES = "docs/OPERATIONS.md", "docs/SOURCES.md"
ORDERS = 500
ELSEWHERE = {
    "./spark-submit.sh demo": "tests/jobs/test_demo.py runs it, twice",
    "make test": "it runs what you are reading",
    "lakelog ui --root R": "it serves until Ctrl-C; tests/lakelog/ui runs the commands of docs/UI.md",
    "lakelog doctor --root /mnt/shared/lakelog --peer /mnt/shared/doctor": "tests/lakelog/doctor has two hosts",
}
"""Commands that are not run here, and why."""
AS_A_WHOLE = ("cd ", "lakelog topics export /mnt/handover")
"""The beginnings of the blocks whose lines one shell must run together."""


@pytest.fixture(scope="module")
def machine(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """After README's example was run on some orders: its root is mnt/shared/lakelog."""
    made = Machine(tmp_path_factory.mktemp("user"))
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(made.folder)
        (settings,) = blocks("README.md", "yaml")
        for place in (made.folder, made.folder / "etc/lakelog"):
            place.mkdir(parents=True, exist_ok=True)
            (place / "orders.yaml").write_text(made.local(settings.text))
        landing = made.folder / "mnt/landing/orders"
        landing.mkdir(parents=True)
        (landing / "1.json").write_text("".join(f"{line}\n" for line in as_json(orders(0, ORDERS))))
        (story,) = [block for block in blocks("README.md", "sh") if "orders.yaml" in block.text]
        for command in commands(story):
            assert made.run(command).status == 0, command
        yield made


def run_all(machine: Machine, block: Block) -> None:
    """Every command of a block ends with 0, and those of `lakelog` say nothing of anything wrong."""
    if block.text.startswith(AS_A_WHOLE):
        ended = machine.run_script(block.text)
        assert (ended.status, ended.err) == (0, ""), block
        return
    for command in commands(block):
        if command in ELSEWHERE:
            continue
        ended = machine.run(command)
        assert ended.status == 0, (command, ended)
        assert "spark-submit.sh" in command or ended.err == "", (command, ended)


def test_the_example_of_your_own_stream_ends_in_a_table_with_every_order(machine: Machine) -> None:
    table = DeltaTable(str(machine.folder / "mnt/shared/lakelog/tables/orders")).to_pyarrow_table()
    found = sorted(table.select(["id", "amount", "at"]).to_pylist(), key=lambda row: str(row["id"]))
    assert found == orders(0, ORDERS).select(["id", "amount", "at"]).to_pylist()
    assert not (machine.folder / "mnt/shared/lakelog/tables/dead_letters").exists()


def test_a_command_of_the_example_runs_as_a_process_of_its_own(machine: Machine) -> None:
    (line,) = re.findall(r"^\./spark-submit\.sh (maintenance .*)$", text_of("README.md"), re.MULTILINE)
    done = subprocess.run(
        [PROJECT / "spark-submit.sh", *line.split(), "--json"], cwd=machine.folder, capture_output=True, text=True,
        check=True, env=os.environ | JAVA_OPTIONS,
    )  # fmt: skip
    result = json.loads(done.stdout)
    assert (result["job"], result["exit_status"], result["failures"]) == ("maintenance", 0, [])


@pytest.mark.parametrize(("page", "model"), [("README.md", "order"), (SOURCES, "basket")])
def test_the_model_that_is_shown_is_the_one_that_is_there(page: str, model: str) -> None:
    (shown,) = [block for block in blocks(page, "python") if "EventModel" in block.text]
    source = (PROJECT / f"schemas/{model}.py").read_text()
    assert fields_of(shown.text) == fields_of(source)


def fields_of(source: str) -> list[str]:
    return [ast.unparse(each) for each in ast.walk(ast.parse(source)) if isinstance(each, ast.AnnAssign)]


def test_the_commands_of_lakelog_run_one_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    machine = Machine(tmp_path)
    readmes = [block for block in blocks("README.md", "sh") if "orders.yaml" not in block.text]
    found = [*readmes, *blocks(CLI, "sh")]
    assert [len(list(commands(block))) for block in found] == [2, 24]
    for block in found:
        run_all(machine, block)


def test_operations_from_schedules_to_a_handover(machine: Machine) -> None:
    for entry in cron_entries():
        if "--json" in entry.command:
            assert machine.run(entry.command).status == 0, entry
    runs = [json.loads(line) for line in (machine.folder / "var/log/lakelog/jobs.jsonl").read_text().splitlines()]
    assert [(run["job"], run["exit_status"], run.get("dead letters")) for run in runs] == [
        ("maintenance", 0, None),
        ("export", 0, 0),
    ]
    (machine.folder / "jobs.jsonl").symlink_to(machine.folder / "var/log/lakelog/jobs.jsonl")
    (machine.folder / "backup").mkdir()
    for number in range(8):  # as a broker has them that was stopped
        there = machine.folder / f"orders-{number}"
        there.mkdir()
        (there / "partition.metadata").write_text("the broker's own")
        (there / "00000000000000000000.log").write_text("of the broker")
    for block in blocks(OPERATIONS, "sh"):
        run_all(machine, block)

    assert described(machine, "backup") == described(machine, "mnt/shared/lakelog")
    units = re.findall(r"lakelog-(\w+)@orders(\.timer)?", (machine.folder / "systemctl.log").read_text())
    assert {name for name, _ in units} == {"ingest", "maintenance", "export"}
    for number in range(8):
        there, handed = machine.folder / f"orders-{number}", machine.folder / f"mnt/handover/orders-{number}"
        assert (there / "partition.metadata").read_text() == "the broker's own"
        logs = sorted(path.name for path in handed.glob("*.log"))
        assert [(there / name).read_bytes() for name in logs] == [(handed / name).read_bytes() for name in logs]


def described(machine: Machine, root: str) -> object:
    ended = machine.run(f"lakelog topics describe orders --root {machine.folder / root} --format json")
    document = json.loads(ended.out)
    return {key: document[key] for key in ("topic", "partitions", "writer")}


def test_the_ingest_of_systemd_prints_what_the_page_shows(machine: Machine) -> None:
    ended = machine.run(f"{exec_start('lakelog-ingest@.service', 'orders')} --json")
    assert ended.status == 0, ended
    printed = json.loads(ended.out)
    (shown,) = blocks(OPERATIONS, "json")
    example = json.loads(shown.text)
    assert [(key, type(value)) for key, value in printed.items()] == [
        (key, type(value)) for key, value in example.items()
    ]
    assert sum(example["dead letters by reason"].values()) == example["dead letters"]


def test_the_ingest_of_kubernetes_reads_its_settings_and_prints_lines_of_json(machine: Machine) -> None:
    (deployment,) = manifests("ingest.yaml")
    (config_map,) = manifests("settings.yaml")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    settings = config_map["data"]["orders.yaml"].replace("/mnt/shared", str(machine.folder / "kubernetes"))
    (machine.folder / "kubernetes.yaml").write_text(settings)
    landing = machine.folder / "kubernetes/landing/orders"
    landing.mkdir(parents=True)
    (landing / "1.json").write_text("".join(f"{line}\n" for line in as_json(orders(0, ORDERS))))
    words = ["kubernetes.yaml" if word == "/etc/lakelog/orders.yaml" else word for word in container["args"]]
    ended = run_job(*words)
    result = json.loads(ended.out)
    assert (ended.status, result["topic"], result["records"]) == (0, "orders", ORDERS)
    (line,) = [json.loads(line) for line in ended.err.splitlines()]
    assert (line["job"], line["name"], line["level"]) == ("ingest", "orders", "info")
    assert line["message"].startswith("batch 0: 500 records in ")


def test_the_settings_of_several_topics_are_what_spark_can_run(spark: SparkSession, machine: Machine) -> None:
    (block, _) = blocks(OPERATIONS, "yaml")
    file = machine.folder / "router.yaml"
    file.write_text(machine.local(block.text))
    settings = load_settings(file)
    fed = settings.required_ingest().ingest_topics
    assert {name: settings.topic_definition(name).partitions for name in fed} == {"clicks": 4, "orders": 2}
    configs = [topic_config(settings.broker, settings.topic_definition(name).overrides, name) for name in fed]
    rows = record_rows(source_rows(spark, settings), settings, configs)
    assert rows.isStreaming
    assert rows.columns == ["key", "value", "refused", "source", "topic"]


def test_several_exports_make_their_tables(machine: Machine) -> None:
    (_, block) = blocks(OPERATIONS, "yaml")
    (machine.folder / "exports.yaml").write_text(machine.local(block.text))
    ended = machine.run(
        "./spark-submit.sh export --conf exports.yaml --set exports.order-history.trigger=available-now --json"
    )
    assert ended.status == 0
    assert [row["export"] for row in json.loads(ended.out)["rows"]] == ["orders", "order-history"]
    columns = ["id", "amount", "at"]
    tables = (machine.folder / "mnt/shared/lakelog/tables" / name for name in ("orders", "order_history"))
    newest, history = (DeltaTable(table).to_pyarrow_table().select(columns).to_pylist() for table in tables)
    expected = orders(0, ORDERS).select(columns).to_pylist()
    assert sorted(history, key=lambda row: str(row["id"])) == expected
    assert sorted(newest, key=lambda row: str(row["id"])) == expected


def test_a_model_of_ones_own_from_a_file_to_a_table(spark: SparkSession, machine: Machine) -> None:
    (settings,), (line,), (query,) = (blocks(SOURCES, language) for language in ("yaml", "json", "sql"))
    (machine.folder / "baskets.yaml").write_text(machine.local(settings.text))
    landing = machine.folder / "mnt/landing/baskets"
    landing.mkdir()
    (landing / "1.json").write_text(line.text)
    for block in blocks(SOURCES, "sh"):
        run_all(machine, block)
    assert [tuple(row) for row in spark.sql(machine.local(query.text)).collect()] == [
        ("b1", Decimal("7.90"), "tea", "web")
    ]
    topic = f"lakelog read --topic baskets --root {machine.folder}/mnt/shared/lakelog"
    (record,) = machine.run(topic).records
    assert record["headers"] == [["origin", "d2Vi"]]
    found = spark.read.format("delta").load(f"{machine.folder}/mnt/shared/lakelog/tables/baskets").schema
    types = {field.name: field.dataType.simpleString() for field in found.fields if not field.name.startswith("_")}
    rows = re.findall(r"^\| `([^`]+)` +\|.*\| `([^`]+)` +\|$", text_of(SOURCES), re.MULTILINE)
    (model,) = [
        each for each in ast.parse((PROJECT / "schemas/basket.py").read_text()).body if "Basket" in ast.dump(each)
    ]
    shown = {"product": "str", "count": "int"}
    for field in ast.walk(model):
        if isinstance(field, ast.AnnAssign):
            shown[ast.unparse(field.target)] = ast.unparse(field.annotation).removesuffix(" | None")
    assert set(shown.values()) == {annotation for annotation, _ in rows}, "the model has a field of each type"
    assert types == {name: dict(rows)[shown[name]] for name in types}


def test_a_time_range_is_read_by_spark_as_the_page_says(spark: SparkSession, machine: Machine) -> None:
    _, block, _ = [block for block in blocks(SOURCES, "python") if "EventModel" not in block.text]
    numbers, read = ast.parse(machine.local(block.text)).body
    everything = spark.read.format("lakelog").load(root=f"{machine.folder}/mnt/shared/lakelog", subscribe="orders")
    times = [row[0] for row in everything.selectExpr("unix_millis(timestamp)").collect()]
    first_ms, end_ms = min(times) + 1, max(times)
    names = {"spark": spark, "first_ms": first_ms, "end_ms": end_ms, "late_ms": 0}
    exec(ast.unparse(read), names)
    assert ast.unparse(numbers).startswith("first_ms, end_ms, late_ms = ")
    assert names["orders_of_a_day"].count() == sum(first_ms <= time < end_ms for time in times)


def test_a_topic_is_read_and_written_by_spark_as_the_page_says(spark: SparkSession, machine: Machine) -> None:
    reads, _, writes = [block for block in blocks(SOURCES, "python") if "EventModel" not in block.text]
    batch, stream, write, write_stream = (
        ast.unparse(statement) for block in (reads, writes) for statement in ast.parse(machine.local(block.text)).body
    )
    topic = {"spark": spark}
    rows = eval(batch, topic)
    orders = rows.selectExpr("string(key)").distinct().where("key LIKE 'order-%'")
    assert orders.count() == ORDERS
    streamed = eval(stream, topic)
    assert streamed.isStreaming

    one = rows.where("key LIKE 'order-%'").select("key", "value").limit(1)
    written = [(bytes(row.key), bytes(row.value)) for row in one.collect()]
    before = rows.count()
    eval(write, {"rows": spark.createDataFrame(written, "key binary, value binary")})
    query = eval(write_stream, {"rows": streamed.select("key", "value")})
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    newest = eval(batch, topic).orderBy("timestamp", ascending=False).first()
    assert eval(batch, topic).count() == before + len(written) == before + 1
    assert [(bytes(newest.key), bytes(newest.value))] == written


def test_the_settings_page_s_command_and_topics(machine: Machine) -> None:
    (topics,) = blocks(CONFIGURATION, "yaml")
    (machine.folder / "topics.yaml").write_text(topics.text)
    settings = load_settings(machine.folder / "topics.yaml", root=str(machine.folder / "nothing"))
    definition = settings.topic_definition("flights")
    assert (definition.partitions, definition.overrides, definition.schema) == (
        2,
        {"cleanup.policy": "compact"},
        "flight",
    )

    (machine.folder / "conf").mkdir()
    shutil.copy(PROJECT / "conf/flights.yaml", machine.folder / "conf")
    source = machine.folder / "lakelog-demo/source"
    source.mkdir(parents=True)
    (source / "1.json").write_text(json.dumps({"tailnum": "N1", "time_hour": "2013-01-01T10:00:00Z"}))
    (block,) = blocks(CONFIGURATION, "sh")
    run_all(machine, block)
    ended = machine.run("lakelog read --topic flights --root /data/lakelog")
    assert [record["key"] for record in ended.records] == ["TjE="]
