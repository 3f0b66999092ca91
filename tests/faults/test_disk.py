"""The simulated disk: what a power cut leaves of bytes, names and renames, with and without an fsync."""

from __future__ import annotations

from tests.faults.disk import LOSSES, Disk, Event


def outcomes(*events: Event, cuts: int = 60) -> set[tuple[tuple[str, bytes], ...]]:
    """The files that power cuts behind these calls leave, all of them that come up."""
    disk = Disk([])
    for event in events:
        disk.apply(event)
    return {
        tuple((each.path, each.data) for each in disk.after_power_cut(loss, seed))
        for loss in LOSSES.values()
        for seed in range(cuts)
    }


CREATED = Event("create", "a", handle=1)
WRITTEN = Event("write", handle=1, data=b"abcd")
SYNCED = Event("sync", handle=1)
FOLDER = Event("open", "", handle=0)
NAMES_SYNCED = Event("sync", handle=0)


def test_what_is_synced_stays_and_a_name_needs_its_folder_synced() -> None:
    assert outcomes(CREATED, WRITTEN, SYNCED) == {(), (("a", b"abcd"),)}
    assert outcomes(CREATED, WRITTEN, SYNCED, FOLDER, NAMES_SYNCED) == {(("a", b"abcd"),)}


def test_an_unsynced_write_is_kept_torn_zeros_or_lost() -> None:
    left = {data for ((_, data),) in outcomes(CREATED, FOLDER, NAMES_SYNCED, WRITTEN)}
    assert {b"", b"a", b"abcd"} <= left
    assert any(set(data) == {0} for data in left)


def test_a_later_write_may_survive_without_an_earlier_one() -> None:
    later = Event("write", handle=1, position=4, data=b"ef")
    left = {data for ((_, data),) in outcomes(CREATED, FOLDER, NAMES_SYNCED, WRITTEN, later)}
    assert b"\0\0\0\0ef" in left


def test_a_later_rename_may_survive_without_an_earlier_one() -> None:
    second = Event("create", "b", handle=2)
    made = CREATED, second, FOLDER, NAMES_SYNCED
    left = outcomes(*made, Event("rename", "a", "c"), Event("rename", "b", "d"))
    assert {tuple(path for path, _ in each) for each in left} == {("a", "b"), ("b", "c"), ("a", "d"), ("c", "d")}


def test_bytes_that_a_failed_sync_was_to_save_are_gone_though_the_next_sync_succeeds() -> None:
    failed = Event("failed sync", handle=1)
    assert outcomes(CREATED, FOLDER, NAMES_SYNCED, WRITTEN, failed, SYNCED) == {(("a", b""),)}
