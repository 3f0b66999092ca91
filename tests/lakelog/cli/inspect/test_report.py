"""`lakelog report`: the file, the printed summary, and mistakes in the options."""

from __future__ import annotations

import os
import re
import resource
import signal
import sys
import time
from collections.abc import Callable
from subprocess import PIPE, Popen

import pytest

from tests.lakelog.cli.conftest import line
from tests.lakelog.report.html_tables import tables
from tests.stores import storage_at


@pytest.fixture
def clicks(lakelog) -> None:
    lakelog("topics", "create", "clicks", "--partitions", "2")
    lines = [line(b"k", b"secret value", timestamp=1_700_000_000_000 + number) for number in range(1500)]
    lakelog("append", "--topic", "clicks", "--partition", "1", stdin=lines)


@pytest.mark.usefixtures("clicks")
def test_a_report_says_what_was_appended_and_shows_no_record(lakelog, tmp_path) -> None:
    lakelog("topics", "create", "other")
    out = tmp_path / "report.html"
    ended = lakelog("report", "--out", str(out))
    assert (ended.status, ended.err) == (0, "")
    assert re.fullmatch(
        rf"wrote {re.escape(str(out))}: 2 topics, 1,500 records appended, [0-9.]+ kB in the log, 0 warnings\n",
        ended.out,
    )
    page = out.read_text("utf-8")
    assert [row["topic"] for row in tables(page)["Topics"]] == ["clicks", "other"]
    assert tables(page)["Topics"][0]["records appended"] == "1,500"
    assert tables(page)["Changes, the newest first"][0]["change"] == "append of 1500 records"
    assert "secret" not in page


@pytest.mark.usefixtures("clicks")
def test_topics_can_be_chosen_and_the_time_set(lakelog, tmp_path) -> None:
    lakelog("topics", "create", "other")
    out = tmp_path / "report.html"
    lakelog("report", "--out", str(out), "--topic", "clicks", "--now", "1700000061499")
    told = tables(out.read_text("utf-8"))
    assert [row["topic"] for row in told["Topics"]] == ["clicks"]
    assert told["Partitions"][1]["age"] == "1 min old"


@pytest.mark.usefixtures("clicks")
def test_an_unreadable_topic_ends_with_partial_and_is_named(lakelog, tmp_path) -> None:
    lakelog("topics", "create", "bad")
    storage_at(tmp_path / "root").replace("meta/bad/00000000000000000000.json", b"no state")
    out = tmp_path / "report.html"
    ended = lakelog("report", "--out", str(out))
    assert ended.status == 4
    assert ended.out.endswith(", 1 warning\n")
    assert ended.err.startswith("lakelog: meta/bad/00000000000000000000.json at position 0: expected a topic's state")
    assert [row["topic"] for row in tables(out.read_text("utf-8"))["Topics"]] == ["clicks", "bad"]


@pytest.mark.posix("lists the folder of the root")
@pytest.mark.usefixtures("clicks")
def test_a_page_that_cannot_be_written_is_a_mistake_that_leaves_the_old_one(lakelog, tmp_path) -> None:
    ended = lakelog("report", "--out", str(tmp_path / "missing/report.html"))
    assert (ended.status, ended.out) == (1, "")
    assert f"found no directory {tmp_path}/missing" in ended.err
    assert not (tmp_path / "missing").exists()
    for place in (str(tmp_path / "root"), os.devnull):
        ended = lakelog("report", "--out", place)
        assert (ended.status, ended.out) == (1, "")
        assert f"--out {place}: exists and is not a regular file" in ended.err
    out = tmp_path / "report.html"
    out.write_text("before")
    assert lakelog("report", "--out", str(out), "--topic", "missing").status == 1
    assert out.read_text() == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "root"]


@pytest.mark.posix("lists the folder of the root")
@pytest.mark.usefixtures("clicks")
def test_storage_that_takes_no_more_is_reported_and_leaves_the_old_page(lakelog, tmp_path) -> None:
    out = tmp_path / "report.html"
    out.write_text("before")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        ended = lakelog("report", "--out", str(out))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (ended.status, ended.out) == (1, "")
    assert f"{out}: File too large. Raise the limit on file sizes" in ended.err
    assert out.read_text() == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "root"]


def wait_until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.browser
@pytest.mark.usefixtures("clicks")
def test_a_watched_page_stays_current_in_an_open_browser_and_after_errors(lakelog, tmp_path, chromium) -> None:
    out, errors = tmp_path / "report.html", tmp_path / "errors"
    command = [sys.executable, "-m", "lakelog.cli", "report", "--out", str(out), "--watch", "1"]
    with errors.open("wb") as stderr, Popen(command, stdout=PIPE, stderr=stderr, text=True) as process:
        assert process.stdout
        assert process.stdout.readline().startswith(f"wrote {out}: 1 topic, 1,500 records appended, ")
        page = chromium.open(out.as_uri())
        shown = "document.querySelector('#topic-clicks')?.textContent ?? ''"
        assert "append of 1500 records" in page.ask(shown)
        lakelog("append", "--topic", "clicks", stdin=[line(b"k", b"v")] * 4)
        wait_until(lambda: "append of 4 records" in page.ask(shown))
        assert page.complaints == []

        storage = storage_at(tmp_path / "root")
        storage.replace("meta/bad/00000000000000000000.json", b"no state")
        wait_until(lambda: errors.read_text().endswith("\n"))
        told = errors.read_text()
        lakelog("append", "--topic", "clicks", stdin=[line(b"k", b"v")] * 7)
        wait_until(lambda: "append of 7 records" in page.ask(shown))
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert errors.read_text() == told
    assert told.startswith("lakelog: meta/bad/00000000000000000000.json at position 0: expected a topic's state")
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [["report", "--out", "x", "--watch", "1", "--now", "5"], ["report"], ["report", "--out", "x", "--now", "-1"]],
)
def test_a_wrong_command_line_is_status_2(lakelog, arguments) -> None:
    assert lakelog(*arguments).status == 2
