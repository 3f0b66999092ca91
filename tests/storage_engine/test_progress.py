"""Reports about the progress of work: the text of a report, plain lines with a manual clock, and a live line on a
pseudo-terminal.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator

import pytest

from lakelog.terminal.progress_display import LiveDisplay, PlainDisplay
from storage_engine.clock import ManualClock
from storage_engine.progress import Meter
from tests.lakelog.terminal import COLOUR, Terminal, assert_clean


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_700_000_000_000)


def test_a_line_has_records_bytes_rates_and_the_time_left(clock: ManualClock) -> None:
    meter = Meter("append to t", clock)
    meter.expect(size=10_000_000)
    clock.advance(4_000)
    meter.advance(50_000, 4_000_000)
    meter.note("batch 3")
    assert meter.line == (
        "append to t: 50,000 records, 4.0 MB of 10.0 MB, 12,500 records/s, 1.0 MB/s, 6.0 s left, batch 3"
    )
    assert meter.share == 0.4


def test_what_is_not_known_is_left_out(clock: ManualClock) -> None:
    meter = Meter("read t", clock)
    assert (meter.line, meter.share) == ("read t: begun", None)
    meter.advance(records=7)
    assert meter.line == "read t: 7 records"
    clock.advance(2_000)
    assert meter.line == "read t: 7 records, 4 records/s"


def test_work_that_turns_out_to_be_less_is_done_when_nothing_is_left(clock: ManualClock) -> None:
    meter = Meter("read t", clock)
    meter.expect(1000)
    meter.advance(10)
    meter.expect(90)
    assert meter.line == "read t: 10 of 100 records"
    meter.advance(90)
    assert meter.share == 1.0


def test_more_than_was_expected_is_no_more_than_all(clock: ManualClock) -> None:
    meter = Meter("compact", clock)
    meter.expect(size=100)
    clock.advance(1_000)
    meter.advance(size=120)
    assert meter.share == 1.0
    assert "left" not in meter.line


def test_the_rate_is_that_of_the_last_minute(clock: ManualClock) -> None:
    meter = Meter("ingest t", clock)
    for _ in range(600):
        clock.advance(1_000)
        meter.advance(100)
    for _ in range(60):
        clock.advance(1_000)
        meter.advance(10)
    assert meter.line == "ingest t: 60,600 records, 10 records/s"


def test_the_rate_of_rare_pieces_spans_one_of_them(clock: ManualClock) -> None:
    meter = Meter("compact", clock)
    meter.expect(size=4_000_000)
    for _ in range(3):
        clock.advance(1_000_000)
        meter.advance(size=1_000_000)
    assert meter.line == "compact: 3.0 MB of 4.0 MB, 1.0 kB/s, 16 min 40 s left"


def test_work_goes_on_where_its_lines_cannot_be_written(clock: ManualClock) -> None:
    stream = io.TextIOWrapper(io.FileIO("/dev/full", "w"))
    with PlainDisplay(stream, clock).work("read t") as meter:
        clock.advance(20_000)
        meter.advance(1000)
    assert meter.records == 1000
    with contextlib.suppress(OSError):  # what could not be written is tried once more
        stream.close()


def test_plain_lines_wait_until_there_is_something_to_say(clock: ManualClock) -> None:
    stream = io.StringIO()
    with PlainDisplay(stream, clock).work("export t") as meter:
        clock.advance(20_000)
        meter.advance()
        meter.expect(size=1000)
        meter.advance()
    assert stream.getvalue() == "export t: 0 B of 1.0 kB\n"


def test_plain_lines_come_every_ten_seconds_and_not_for_short_work(clock: ManualClock) -> None:
    stream = io.StringIO()
    display = PlainDisplay(stream, clock)
    with display.work("append to t") as meter:
        clock.advance(9_999)
        meter.advance(1000, 10_000)
    assert stream.getvalue() == ""

    with display.work("read t") as meter:
        for _ in range(25):
            clock.advance(1_000)
            meter.advance(1000, 10_000)
    assert stream.getvalue().splitlines() == [
        "read t: 10,000 records, 100.0 kB, 1,000 records/s, 10.0 kB/s",
        "read t: 20,000 records, 200.0 kB, 1,000 records/s, 10.0 kB/s",
    ]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal = Terminal()
    yield terminal
    if not terminal.stream.closed:
        terminal.close()


@pytest.mark.parametrize("no_color", [False, True])
def test_a_terminal_shows_records_bytes_rates_and_the_time_left(
    terminal: Terminal, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, no_color: bool
) -> None:
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    with LiveDisplay(terminal.stream, clock).work("append to t") as meter:
        meter.expect(size=10_000_000)
        clock.advance(4_000)
        meter.advance(50_000, 4_000_000)
        terminal.see("50,000 records, 4.0 MB of 10.0 MB, 12,500 records/s, 1.0 MB/s, 6.0 s left")
    assert bool(COLOUR.search(terminal.close())) is not no_color


def test_what_is_said_meanwhile_stays_and_the_live_line_goes(
    terminal: Terminal, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", terminal.stream)
    with LiveDisplay(terminal.stream, clock).work("ingest t") as meter:
        meter.advance(5)
        terminal.see("ingest t: 5 records")
        print("batch 0: 5 records", file=sys.stderr)
        terminal.see("batch 0: 5 records")
    assert sys.stderr is terminal.stream
    assert_clean(terminal.close(), "ingest t: ")


def test_an_interrupted_terminal_is_clean(terminal: Terminal, clock: ManualClock) -> None:
    def interrupted() -> None:
        with LiveDisplay(terminal.stream, clock).work("ingest t"):
            terminal.see("ingest t: begun")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert_clean(terminal.close(), "ingest t: ")
