"""Tests that docs/CLI.md has the same texts as the --help of the commands."""

from __future__ import annotations

from docs.cli_page import PAGE, render
from lakelog import cli
from tests.in_process import run_in_process


def test_the_page_is_what_the_commands_make() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "run `python -m docs.generate` and commit the page"


def test_the_page_has_every_group_and_command_that_the_tool_lists() -> None:
    listed = run_in_process(cli.main, ["lakelog", "--help"], b"").out.split("Commands:\n")[1]
    names = [line.split()[0] for line in listed.splitlines() if line.startswith("  ") and line[2] != " "]
    assert len(names) > 10
    headings = [line.replace("`", "").lstrip("# ") for line in render().splitlines() if line.startswith("##")]
    assert {name for name in names if f"lakelog {name}" not in headings} == set()
