"""Tests that docs/CONFIGURATION.md has the same texts as the declarations of the settings."""

from __future__ import annotations

from docs.configuration_page import PAGE, render
from pipeline.settings.model import SECTIONS
from pipeline.settings.overlays import known_paths
from storage_engine.config import KAFKA_KEYS_WITHOUT_USE, describe_keys
from storage_engine.config.settings_document import Document


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
