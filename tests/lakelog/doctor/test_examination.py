"""The findings about a good file system, and about file systems that deliberately break one of their guarantees."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import Any

import pytest

from lakelog.doctor.actions import Actor
from lakelog.doctor.check_report import CheckReport, Outcome
from lakelog.doctor.examination import ALONE, TOGETHER, examine, examine_with, has_problems
from lakelog.doctor.partner import ProcessPartner
from lakelog.doctor.workspace import FOLDER, PartnerGoneError, temporary_folder
from storage_engine.errors import UnsupportedError
from storage_engine.storage.posix import PosixStorage
from storage_engine.storage.storage_opening import open_storage
from tests.lakelog.doctor.breaking.sitecustomize import BREAKS
from tests.lakelog.doctor.breaking.sitecustomize import __file__ as breaking
from tests.servers.object_server import ObjectServer
from tests.storage_engine.topic.wrapped_storage import PlainStorage

CHECKS = {check.name: check for check in (*ALONE, *TOGETHER)}


@pytest.fixture
def storage(tmp_path) -> PosixStorage:
    return PosixStorage(tmp_path / "some/root")


def files(storage: PosixStorage) -> list[Path]:
    return list(storage.root.rglob("*"))


def test_a_good_file_system_keeps_all_promises_and_is_left_as_it_was(storage) -> None:
    told: list[CheckReport] = []
    findings = examine(storage, told.append)
    assert findings == told
    assert [finding.check for finding in findings] == list(CHECKS)
    problems = [str(finding) for finding in findings if finding.outcome is Outcome.PROBLEM]
    assert not problems
    assert not has_problems(findings)
    assert not storage.root.parent.exists(), "what was made on the way to the root is gone, too"
    found = {finding.check: finding.found for finding in findings}
    race = re.search(r"this side created (\d+) of the names, the other side (\d+)", found["put-if-absent"])
    assert race
    assert int(race[1]) + int(race[2]) == 30
    assert re.search(r"fsync after 4 kB \d+\.\d\d ms", found["speed"])
    assert {finding.meaning for finding in findings if finding.outcome is Outcome.OK} == {""}


def test_what_is_in_the_root_is_not_touched(storage) -> None:
    storage.put_new("meta/t/00000000000000000000.json", b"{}")
    before = files(storage)
    examine(storage, lambda finding: None)
    assert files(storage) == before


def test_what_a_killed_examination_left_goes_when_it_is_old(storage) -> None:
    for name in ("old", "new"):
        storage.put_new(f"{FOLDER}{name}/token", b"x")
    hour_ago = (storage.root / f"{FOLDER}new").stat().st_mtime - 3700
    os.utime(storage.root / f"{FOLDER}old", (hour_ago, hour_ago))
    with temporary_folder(storage):
        pass
    assert [path.name for path in storage.root.iterdir()] == [f"{FOLDER}new"], "another host may be working there"


def test_what_a_killed_examination_left_in_an_object_store_goes_when_it_is_old(
    s3: ObjectServer, s3_bucket: str, s3_root: str
) -> None:
    storage = open_storage(s3_root)
    assert s3.folder is not None
    root = s3.folder / s3_bucket / "some/root"
    for name in ("old", "new"):
        for file in ("token", "names/a"):
            storage.put_new(f"{FOLDER}{name}/{file}", b"x")
    for key in (f"{FOLDER}old/token", f"{FOLDER}old/names/a", f"{FOLDER}new/token"):
        hour_ago = (root / key).stat().st_mtime - 3700
        os.utime(root / key, (hour_ago, hour_ago))
    with temporary_folder(storage):
        pass
    assert [file.key for name in storage.folder_names("") for file in storage.list(f"{name}/")] == [
        f"{FOLDER}new/names/a", f"{FOLDER}new/token",
    ], "another host may be working there"  # fmt: skip


@pytest.fixture
def broken(request: pytest.FixtureRequest, storage: PosixStorage, monkeypatch: pytest.MonkeyPatch) -> str:
    """One call of the operating system does something else, in this process and in the partner."""
    storage.make_folder("")
    monkeypatch.setenv("PYTHONPATH", str(Path(breaking).parent))
    monkeypatch.setenv("BREAK", request.param)
    monkeypatch.setattr(*BREAKS[request.param])
    return str(request.param)


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        ("link overwrites", {"put-if-absent": r"8 threads tried to create each of 30 names\. Each name must have one winner, but",
                             "links": "a link replaced a file that already had the name"}),
        ("replace copies", {"replacing": r"of [\d,]+ reads during .* were torn"}),
        ("fsync is refused", {"fsync": "Invalid argument", "put-if-absent": "Invalid argument"}),
        ("writes append", {"positioned writes": "the bytes read at a position are not the bytes written there"}),
        ("locks are granted to all", {"locks": "an exclusive lock is granted here while another process has"}),
        ("the clock is ahead", {"storage clock": r"times of new files: (99,9\d\d|100,\d\d\d) ms behind this host's clock"}),
    ],
    indirect=["broken"],
)  # fmt: skip
def test_a_broken_promise_is_a_problem_that_says_what_it_costs(broken, expected, storage) -> None:
    checks = [CHECKS[name] for name in expected]
    with ProcessPartner(storage.uri) as partner:
        findings = examine_with(storage, "work", partner, checks, lambda finding: None)
    assert has_problems(findings)
    for finding in findings:
        assert finding.outcome is Outcome.PROBLEM, finding
        assert re.search(expected[finding.check], finding.found), finding
        assert finding.meaning == CHECKS[finding.check].otherwise
        assert finding.meaning


def test_a_growing_file_is_found_although_missing_folders_stay_in_a_cache(storage, monkeypatch) -> None:
    storage.make_folder("")
    missing: set[Path] = set()
    scan, make, open_ = os.scandir, os.mkdir, os.open

    def check(folder: Path) -> None:
        if not folder.is_dir():
            missing.add(folder)
        if folder in missing:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))

    def scandir(path: Any) -> Any:
        check(Path(path))
        return scan(path)

    def opened(path: Any, *arguments: Any) -> int:
        check(Path(path).parent)
        return open_(path, *arguments)

    def mkdir(path: Any, *arguments: Any) -> None:
        missing.discard(Path(path))
        make(path, *arguments)

    with ProcessPartner(storage.uri) as partner:
        monkeypatch.setattr(os, "scandir", scandir)
        monkeypatch.setattr(os, "open", opened)
        monkeypatch.setattr(os, "mkdir", mkdir)
        (finding,) = examine_with(storage, "work", partner, [CHECKS["growing file"]], lambda finding: None)
    assert finding.outcome is Outcome.OK, finding


def test_what_a_storage_has_no_capability_for_is_not_available(storage) -> None:
    storage.make_folder("")
    with ProcessPartner(storage.uri) as partner:
        findings = examine_with(PlainStorage(storage), "work", partner, list(CHECKS.values()), lambda finding: None)
    assert not has_problems(findings)
    missing = {finding.check: finding.found for finding in findings if finding.outcome is Outcome.NOT_AVAILABLE}
    whole_files = "the storage can only store whole files"
    assert missing == {
        "mount": "it is not known how this storage is mounted",
        "free space": "the storage does not report its free space",
        "free inodes": "the storage has no limit on the number of files, or does not report it",
        "fsync": whole_files, "positioned writes": whole_files, "growing file": whole_files,
        "links": "a file cannot have a second name on this storage",
        "file times": "times of files cannot be set here",
        "locks": "the storage has no locks",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("action", "arguments", "operation"),
    [("extend", {"folder": "work/", "chunks": 1}, "letting a file grow"),
     ("hold", {"key": "k", "exclusive": True}, "locking a file")],
)  # fmt: skip
def test_a_side_with_another_kind_of_storage_says_so(storage, action, arguments, operation) -> None:
    with pytest.raises(UnsupportedError) as refused:
        Actor(PlainStorage(storage)).act(action, arguments)
    assert str(refused.value) == (
        f"root {storage.uri}: {operation} is not possible on this kind of storage."
        " The other side can do this. Give both sides the same root."
    )


@pytest.mark.parametrize("broken", ["there are no locks"], indirect=True)
def test_a_storage_without_locks_has_no_problem(broken, storage) -> None:
    with ProcessPartner(storage.uri) as partner:
        (finding,) = examine_with(storage, "work", partner, [CHECKS["locks"]], lambda finding: None)
    assert finding.outcome is Outcome.NOT_AVAILABLE
    assert "No locks available" in finding.found
    assert "Topics need no lock" in finding.meaning
    assert not has_problems([finding])


def test_folders_that_this_user_may_not_write_to_are_named(storage, monkeypatch) -> None:
    for name in ("meta", "data"):
        storage.make_folder(name)
    may = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "data" and may(path, mode))
    with ProcessPartner(storage.uri) as partner:
        (finding,) = examine_with(storage, "work", partner, [CHECKS["permissions"]], lambda finding: None)
    assert finding.outcome is Outcome.PROBLEM
    assert "cannot write in data/" in finding.found


def test_a_partner_that_dies_ends_the_examination(storage) -> None:
    storage.make_folder("")
    with ProcessPartner(storage.uri) as partner:
        partner._process.kill()
        partner._process.wait()
        with pytest.raises(PartnerGoneError, match="another process: has ended with status -9"):
            examine_with(storage, "work", partner, [CHECKS["replacing"]], lambda finding: None)
