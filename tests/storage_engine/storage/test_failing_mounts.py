"""PosixStorage on a mount that fails briefly or permanently: which calls are retried, and the final error.

The calls of the operating system are patched to fail as on network mounts, before or after the real call.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from storage_engine.clock import ManualClock
from storage_engine.config import BrokerConfig
from storage_engine.errors import (
    AlreadyExistsError,
    AmbiguousPutError,
    NotFoundError,
    StorageFullError,
    StorageUnavailableError,
    UnknownTopicError,
)
from storage_engine.storage import posix, posix_directories, posix_errors, posix_files
from storage_engine.storage.posix import PosixStorage
from storage_engine.topic.chain.state_chain import StateChain
from storage_engine.topic.topics import Topics

CLOCK = ManualClock(1_700_000_000_000)


class Mount:
    """A directory whose next calls fail. waits: the requested pauses, which do not delay the test."""

    def __init__(self, storage: PosixStorage, patch: pytest.MonkeyPatch) -> None:
        self.storage = storage
        self.waits: list[float] = []
        self.calls = 0
        self._patch = patch
        patch.setattr(posix_errors, "time", SimpleNamespace(sleep=self.waits.append))

    def fail(self, call: str, code: int, times: int, *, late: bool = False, module: Any = os) -> None:
        """Let a call fail this number of times. late: the real call is made first, as with a lost reply."""
        real = getattr(module, call, None) or open
        self.calls = 0

        def failing(*arguments: Any, **named: Any) -> Any:
            self.calls += 1
            if self.calls > times:
                return real(*arguments, **named)
            if late:
                real(*arguments, **named)
            raise OSError(code, os.strerror(code))

        self._patch.setattr(module, call, failing, raising=False)

    def leftovers(self) -> list[str]:
        return [path.name for path in self.storage.root.rglob(".tmp-*")]


@pytest.fixture
def mount(tmp_path, monkeypatch) -> Mount:
    storage = PosixStorage(tmp_path / "root")
    storage.put_new("folder/there", b"here")
    return Mount(storage, monkeypatch)


CALLS: dict[str, tuple[str, Any, Callable[[PosixStorage], object], object]] = {
    "read": ("open", posix, lambda storage: storage.read("folder/there"), b"here"),
    "list": ("scandir", os, lambda storage: [file.key for file in storage.list("folder/")], ["folder/there"]),
    "entries": ("scandir", os, lambda storage: [entry.name for entry in storage.entries("folder")], ["there"]),
    "delete": ("unlink", os, lambda storage: storage.delete("folder/there"), None),
    "sync_names": ("fsync", os, lambda storage: storage.sync_names("folder"), None),
    "make_folder": ("mkdir", os, lambda storage: storage.make_folder("other"), None),
    "replace": ("replace", os, lambda storage: storage.replace("folder/there", b"new"), None),
    "put_new, its bytes": ("fsync", os, lambda storage: storage.put_new("folder/new", b"new"), None),
    "put_new, its name": ("link", os, lambda storage: storage.put_new("folder/new", b"new"), None),
}
PASSING = [errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.ENOTCONN, errno.EAGAIN, errno.EINTR]


@pytest.mark.parametrize("code", PASSING, ids=errno.errorcode.get)
@pytest.mark.parametrize("verb", CALLS)
def test_what_may_be_done_twice_is_tried_again(mount, verb, code) -> None:
    call, module, act, expected = CALLS[verb]
    mount.fail(call, code, 3, module=module)
    assert act(mount.storage) == expected
    assert mount.calls >= 4
    assert mount.waits == sorted(mount.waits)
    assert 0.5 < sum(mount.waits) < 2
    assert not mount.leftovers()


def test_a_file_that_another_host_has_replaced_is_closed_before_it_is_opened_again(mount) -> None:
    """An NFS client may open the old file, whose fstat fails. It opens the old file again while this file is open."""
    before = sorted(os.listdir("/dev/fd"))  # noqa: PTH208
    mount.fail("fstat", errno.ESTALE, 3)
    assert mount.storage.read("folder/there") == b"here"
    assert mount.calls == 4
    assert sorted(os.listdir("/dev/fd")) == before  # noqa: PTH208


@pytest.mark.parametrize("verb", CALLS)
def test_a_mount_that_stays_away_is_said_to_be_away(mount, verb) -> None:
    call, module, act, _ = CALLS[verb]
    mount.fail(call, errno.EIO, 1000, module=module)
    with pytest.raises(StorageUnavailableError) as caught:
        act(mount.storage)
    assert str(mount.storage.root) in caught.value.place
    assert mount.calls == 4 or call == "unlink", "put_new's own temporary file is not waited for"


@pytest.mark.parametrize(
    ("code", "kind"),
    [(errno.ENOSPC, StorageFullError), (errno.EDQUOT, StorageFullError), (errno.ENOENT, NotFoundError)],
)
def test_what_waiting_for_a_second_does_not_mend_is_said_at_once(mount, code, kind) -> None:
    mount.fail("link", code, 1)
    with pytest.raises(kind):
        mount.storage.put_new("folder/new", b"new")
    assert (mount.calls, mount.waits) == (1, [])


def test_a_failed_fsync_of_a_file_is_never_repeated(mount) -> None:
    file = mount.storage.create("folder/log")
    file.write_at(0, [b"batch"])
    mount.fail("fsync", errno.EIO, 1)
    with pytest.raises(StorageUnavailableError):
        file.sync()
    assert (mount.calls, mount.waits) == (1, [])
    file.close()


def test_a_failed_fsync_of_another_process_s_file_is_never_repeated(mount) -> None:
    mount.fail("fsync", errno.EIO, 1)
    with pytest.raises(StorageUnavailableError, match="folder/there"):
        mount.storage.sync_file("folder/there")
    assert (mount.calls, mount.waits) == (1, [])


def test_a_failed_write_is_never_repeated(mount) -> None:
    file = mount.storage.create("folder/log")
    mount.fail("pwritev", errno.ETIMEDOUT, 1)
    with pytest.raises(StorageUnavailableError):
        file.write_at(0, [b"batch"])
    assert (mount.calls, mount.waits) == (1, [])
    file.close()


def test_a_file_whose_fsync_failed_is_not_put_but_a_new_one_is(mount, monkeypatch) -> None:
    synced: list[str] = []
    sync = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        if len(synced) == 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    mount.storage.put_new("folder/new", b"new")
    assert len(set(synced)) == len(synced) == 3, "the first file, the second one, and the folder, once each"


def test_a_lost_reply_is_told_by_the_link_count(mount) -> None:
    mount.fail("link", errno.ETIMEDOUT, 1, late=True)
    mount.storage.put_new("folder/new", b"new")
    assert (mount.calls, mount.waits) == (1, [])
    with pytest.raises(AlreadyExistsError):
        mount.storage.put_new("folder/new", b"other")
    assert mount.storage.read("folder/new") == b"new"


def fail_directory_syncs(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    sync = posix_directories.sync_directory
    failed: list[object] = []

    def failing(path: Any) -> None:
        if len(failed) < times:
            failed.append(path)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(path)

    for module in (posix, posix_files, posix_directories):
        monkeypatch.setattr(module, "sync_directory", failing)


def test_a_name_that_cannot_be_made_durable_is_no_success(mount, monkeypatch) -> None:
    fail_directory_syncs(monkeypatch, 4)
    with pytest.raises(AmbiguousPutError, match="could not be made durable"):
        mount.storage.put_new("folder/new", b"new")
    assert mount.storage.read("folder/new") == b"new"


@pytest.mark.parametrize("times", [1, 4, 7])
def test_a_version_is_committed_once_its_name_is_durable(mount, monkeypatch, times) -> None:
    Topics(mount.storage, BrokerConfig(), CLOCK).create("t", 1, {})
    chain = StateChain(mount.storage, "t", CLOCK)
    chain.newest()
    fail_directory_syncs(monkeypatch, times)
    assert chain.commit(lambda state: state.model_copy(update={"configs": {"a": "1"}}), "").version == 1
    assert chain.newest().version == 1


def test_a_version_that_may_be_there_is_never_said_to_be_refused(mount, monkeypatch) -> None:
    Topics(mount.storage, BrokerConfig(), CLOCK).create("t", 1, {})
    chain = StateChain(mount.storage, "t", CLOCK)
    chain.newest()
    fail_directory_syncs(monkeypatch, 8)
    with pytest.raises(AmbiguousPutError, match="version 1 of topic t was put"):
        chain.commit(lambda state: state.model_copy(update={"configs": {"a": "1"}}), "")
    assert chain.newest().configs == {"a": "1"}


def test_a_chain_that_has_vanished_is_a_mount_that_is_away_and_no_missing_topic(mount) -> None:
    topics = Topics(mount.storage, BrokerConfig(), CLOCK)
    topics.create("t", 1, {})
    chain = topics.chain("t")
    assert chain.newest().version == 0
    away = mount.storage.root.with_name("away")
    mount.storage.root.rename(away)
    with pytest.raises(StorageUnavailableError, match="mounted"):
        chain.newest()
    with pytest.raises(UnknownTopicError):
        topics.chain("t").newest()
    away.rename(mount.storage.root)
    assert chain.newest().version == 0
    shutil.rmtree(mount.storage.root)
