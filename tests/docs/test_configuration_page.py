"""Tests that docs/CONFIGURATION.md has the same texts as the declarations of the settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.configuration_page import PAGE, render
from pipeline.settings.model import SECTIONS
from pipeline.settings.overlays import known_paths
from pipeline.settings.settings_loading import load_settings
from storage_engine.config import KAFKA_KEYS_WITHOUT_USE, describe_keys
from storage_engine.config.settings_document import Document
from storage_engine.errors import ExitStatus, UsageError
from tests.docs.pages import text_of

_DATABASE = '{topic: orders, jdbc: {url: "jdbc:postgresql://h:1/d", table: orders, user: u}}'
_KAFKA = "format: kafka, options: {kafka.bootstrap.servers: b:9092, subscribe: orders"
_INGEST = f"ingest: {{topic: orders, value: value, source: {{{_KAFKA}%s}}}}}}"
_JAAS = "kafka.sasl.jaas.config: from-environment"


def test_the_page_is_what_the_declarations_make() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "run `python -m docs.generate` and commit the page"


def test_the_page_has_every_key_and_every_setting() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for key in describe_keys():
        assert f"| `{key.key}` | {key.kind}" in page
    for path in known_paths(Document("none")):
        if path[0] in SECTIONS:
            assert f"| `{'.'.join(path)}` |" in page
    for unused in KAFKA_KEYS_WITHOUT_USE:
        assert f"| `{unused}` |" in page


def test_every_row_of_a_table_has_as_many_cells_as_its_head() -> None:
    cells = 0
    for line in render().splitlines():
        row = line.replace("\\|", "").count("|")
        cells = 0 if not row else cells or row
        assert row == cells, line


@pytest.mark.parametrize(
    ("variable", "section", "without"),
    [
        ("LAKELOG_EXPORT_JDBC_PASSWORD", f"export: {_DATABASE}", f"exports: {{orders: {_DATABASE}}}"),
        ("LAKELOG_EXPORTS_ORDERS_JDBC_PASSWORD", f"exports: {{orders: {_DATABASE}}}", f"export: {_DATABASE}"),
        ("LAKELOG_INGEST_SOURCE_OPTIONS_KAFKA_SASL_JAAS_CONFIG", _INGEST % f", {_JAAS}", _INGEST % ""),
    ],
)
def test_a_secret_in_a_variable_needs_the_settings_that_the_pages_name(
    variable: str, section: str, without: str, tmp_path: Path
) -> None:
    assert variable in text_of("docs/SECURITY.md")
    assert _JAAS in text_of("docs/SECURITY.md")
    if "JDBC" in variable:
        assert variable in text_of("docs/JDBC.md")
        assert variable in PAGE.read_text(encoding="utf-8")
    file, secret = tmp_path / "orders.yaml", {variable: "swordfish"}
    file.write_text(f"root: r\ntopics: {{orders: {{}}}}\n{section}\n")
    settings = load_settings(file, environ=secret)
    if settings.ingest is not None:
        assert settings.ingest.source.options["kafka.sasl.jaas.config"] == "swordfish"
    else:
        jdbc = (settings.with_export("orders") if settings.exports else settings).required_export().jdbc
        assert jdbc is not None
        assert jdbc.password == "swordfish"
    file.write_text(f"root: r\ntopics: {{orders: {{}}}}\n{without}\n")
    with pytest.raises(UsageError) as refused:
        load_settings(file, environ=secret)
    assert refused.value.exit_status is ExitStatus.USAGE
    assert "swordfish" not in str(refused.value)
