"""Symbolic links in a root. A user's link to another disk works like a directory, and deletions never follow a
link.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bad_input.conftest import Lakelog, RunJob, said
from tests.lakelog.cli.conftest import line

pytestmark = pytest.mark.posix("makes links")

OLD = 1_700_000_000_000


@pytest.mark.parametrize("linked", [".", "meta", "data", "log", "staging"])
def test_a_directory_may_be_a_link_to_another_disk(
    lakelog: Lakelog, job: RunJob, root: Path, tmp_path: Path, linked: str
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    if linked != ".":
        root.mkdir()
    (root / linked).symlink_to(elsewhere)
    lakelog("topics", "create", "t", "--config", "retention.ms=1000", "--config", "file.delete.delay.ms=0")
    assert lakelog("append", "--topic", "t", stdin=[line(b"k", b"v", timestamp=OLD)] * 3).status == 0
    assert len(lakelog("read", "--topic", "t").records) == 3
    assert (root / "log/t-0/00000000000000000000.log").stat().st_size
    assert job("maintenance").status == 0
    assert lakelog("read", "--topic", "t") == (0, "", "")
    assert not list(root.glob("data/*/0/*.log"))
    assert lakelog("topics", "delete", "t").status == 0
    assert not (root / "log/t-0").exists()
    assert (root / linked).is_symlink()


@pytest.mark.parametrize("link", ["log/t-0", "log/t-0/00000000000000000000.log", "log/stray"])
def test_settling_puts_its_own_in_the_place_of_a_link_and_touches_nothing_behind_it(
    lakelog: Lakelog, root: Path, tmp_path: Path, link: str
) -> None:
    lakelog("topics", "create", "t")
    lakelog("append", "--topic", "t", stdin=[line(b"k", b"v")])
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "letter").write_text("dear")
    path = root / link
    if path.is_dir():
        for file in path.iterdir():
            file.unlink()
        path.rmdir()
    path.unlink(missing_ok=True)
    path.symlink_to(mine)
    assert lakelog("topics", "settle").status == 0
    assert not path.is_symlink()
    assert [file.read_text() for file in mine.iterdir()] == ["dear"]
    assert (root / "log/t-0/00000000000000000000.log").stat().st_size


def test_a_link_that_leads_nowhere_or_to_itself_is_named(lakelog: Lakelog, root: Path) -> None:
    root.symlink_to(root)
    said(lakelog("topics", "create", "t"), str(root))
    root.unlink()
    root.symlink_to(root.parent / "nowhere")
    said(lakelog("topics", "create", "t"), str(root))
    assert not (root.parent / "nowhere").exists()
