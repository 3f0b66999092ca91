"""The page docs/JDBC.md: both examples are run against real servers, block by block."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import lakelog
from jobs.export import export
from pipeline.export.export_request import add_export_options
from pipeline.job import run_job
from pipeline.settings import load_settings
from pipeline.settings.jdbc_settings import DatabaseKind
from tests.docs.pages import blocks, commands
from tests.pipeline.jdbc.shop import sql
from tests.servers.sql.databases import Databases

PAGE = "docs/JDBC.md"


@pytest.mark.parametrize("kind", DatabaseKind, ids=str)
def test_example_is_what_a_reader_can_do(databases: Databases, kind: DatabaseKind, tmp_path: Path) -> None:
    """The example of MariaDB is also that of MySQL, with the two changes that the page names."""
    number = 0 if kind is DatabaseKind.POSTGRESQL else 1
    rights, query = blocks(PAGE, "sql")[2 * number : 2 * number + 2]
    settings = blocks(PAGE, "yaml")[number]
    [exporting] = blocks(PAGE, "sh")
    variable, run = commands(exporting)
    target = databases.administrator(kind)
    for statement in rights.text.split(";\n"):
        if statement.strip():
            sql(target, statement)

    conf = tmp_path / "orders.yaml"
    text = settings.text.replace("/mnt/shared/lakelog", str(tmp_path / "root"))
    host = load_settings_url(settings.text, tmp_path)
    text = text.replace(host, f"{target.host}:{target.port}")
    if kind is DatabaseKind.MYSQL:
        text = text.replace("jdbc:mariadb:", "jdbc:mysql:").replace("user: lakelog", "user: lakelog, tls: on")
    conf.write_text(text)
    topic = lakelog.open(tmp_path / "root", create=True).create_topic("orders", config={"cleanup.policy": "compact"})
    order = json.dumps({"id": "1", "amount": 2.5, "at": "2026-01-31T12:00:00Z"}).encode()
    topic.append([{"key": b"1", "value": order}, {"key": b"2", "value": None}])

    name, _, value = variable.removeprefix("export ").partition("=")
    assert run == "./spark-submit.sh export --conf orders.yaml"
    assert run_job("export", "", export, add_export_options, ["--conf", str(conf)], {name: value}) == 0
    assert sql(target, query.text) == [("1", 2.5)]


def load_settings_url(text: str, folder: Path) -> str:
    """The host and the port in the settings of the page."""
    conf = folder / "page.yaml"
    conf.write_text(text)
    jdbc = load_settings(conf).required_export().jdbc
    assert jdbc is not None
    return f"{jdbc.target().host}:{jdbc.target().port}"
