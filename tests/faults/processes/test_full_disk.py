"""An ingest in a separate process whose disk becomes full: the ingest ends and damages no committed data. The next
ingest continues when there is space. `make test` tests the same with the ingest in the process of the tests
(tests/bad_input/test_full_disks.py).
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from storage_engine.errors import ExitStatus
from tests.faults.processes.programs import World, at_work
from tests.faults.processes.source import Source
from tests.small_disks import small_disk

MIB = 1024**2


@pytest.mark.spark
@pytest.mark.soak
def test_an_ingest_on_a_full_disk_ends_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    source = Source(tmp_path, rows=1000, padding=1000, segment_bytes=4 * MIB)
    source.reach(12)
    source.conf.write_text(f"{source.conf.read_text()}  storage.retry.timeout.ms: 3000\n")
    with small_disk(tmp_path / "disk", 16 * MIB) as disk, at_work(World(tmp_path, source, disk / "root")) as world:
        driver, following = world.driver(), world.driver()
        driver.ready().go()
        status, result = driver.result()
        assert status == ExitStatus.ERROR, driver.said
        assert "No space left on device" in result["error"]
        assert 0 < world.files < source.written

        subprocess.run(["mount", "-o", f"remount,size={64 * MIB}", disk], check=True)
        following.ready().go()
        status, result = following.result()
        assert status == ExitStatus.DONE, following.said
        assert world.files == source.written
