"""HdfsStorage on a real NameNode and DataNodes: each verb, races, killed writers, and a cluster that fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from storage_engine.clock import SystemClock
from storage_engine.config import BrokerConfig
from storage_engine.errors import (
    AlreadyExistsError,
    AmbiguousPutError,
    ConfigError,
    NotFoundError,
    StorageAccessError,
    StorageError,
    StorageFullError,
    StorageUnavailableError,
)
from storage_engine.storage.hdfs import hdfs_files
from storage_engine.storage.hdfs.hdfs_storage import HdfsStorage
from storage_engine.storage.posix import PosixStorage
from storage_engine.storage.storage_opening import open_storage
from storage_engine.storage.storage_options import VARIABLE
from storage_engine.topic.append.appending import append_records
from storage_engine.topic.clean.sweeping import sweep_topic
from storage_engine.topic.readers.reader import PartitionReader
from storage_engine.topic.topics import Topics
from tests.servers.cut_connection import CutConnection
from tests.storage_engine.record_tables import Row, to_table

if TYPE_CHECKING:
    from tests.servers.minicluster import HdfsCluster

pytestmark = pytest.mark.stores

HOME = Path(__file__).parents[3]
RACES = 60
_NUMBERS = count()


@pytest.fixture
def uri(hdfs_cluster: HdfsCluster) -> str:
    return f"{hdfs_cluster.uri}roots/{next(_NUMBERS)}"


@pytest.fixture
def storage(uri: str) -> HdfsStorage:
    return HdfsStorage(uri)


@pytest.fixture
def impatient(uri: str, monkeypatch: pytest.MonkeyPatch) -> HdfsStorage:
    """The same root, with short time limits."""
    monkeypatch.setenv(VARIABLE, json.dumps({"dfs.client.socket-timeout": "1500"}))
    return HdfsStorage(uri)


@pytest.fixture
def connection(hdfs_cluster: HdfsCluster) -> Iterator[CutConnection]:
    with CutConnection(hdfs_cluster.port) as connection:
        yield connection


@pytest.fixture
def forwarded(uri: str, hdfs_cluster: HdfsCluster, connection: CutConnection) -> HdfsStorage:
    """The same root, over the connection that can be cut."""
    return HdfsStorage(uri.replace(f":{hdfs_cluster.port}/", f":{connection.port}/"))


def sizes(storage: HdfsStorage | PosixStorage, prefix: str, after: str = "") -> list[tuple[str, int]]:
    return [(file.key, file.size) for file in storage.list(prefix, after)]


def all_names(storage: HdfsStorage, folder: str) -> list[str]:
    """The names in a folder, with the temporary names."""
    from hdfs_native import Client

    scheme, _, rest = storage.uri.partition("://")
    authority, _, path = rest.partition("/")
    found = Client(f"{scheme}://{authority}").list_status(f"/{path}/{folder}")
    return sorted(each.path.rpartition("/")[2] for each in found)


def test_put_new_creates_a_whole_file(storage: HdfsStorage) -> None:
    contents = [b"", b"a", bytearray(b"bc"), memoryview(b"d" * 10_000_000), pa.py_buffer(b"e")]
    for number, content in enumerate(contents):
        storage.put_new(f"a/b/{number}", content)
    assert [storage.read(f"a/b/{number}") for number in range(5)] == [bytes(memoryview(each)) for each in contents]
    assert all_names(storage, "a/b") == ["0", "1", "2", "3", "4"]


def test_file_is_whole_as_soon_as_it_has_its_name(storage: HdfsStorage) -> None:
    """This NameNode closes a file before it has heard from a DataNode of the last block."""
    content = b"x" * 1000
    found = []
    for number in range(40):
        storage.put_new(f"a/{number}", content)
        found.append(storage.read(f"a/{number}"))
    assert found == [content] * 40


def test_put_new_changes_no_file_that_exists(storage: HdfsStorage) -> None:
    storage.put_new("a/b", b"first")
    with pytest.raises(AlreadyExistsError) as caught:
        storage.put_new("a/b", b"second")
    assert str(caught.value) == (f"{storage.uri}/a/b: already exists. Another process has created a file of this name.")
    assert storage.read("a/b") == b"first"
    assert all_names(storage, "a") == ["b"]


def test_replace_creates_a_file_or_replaces_it(storage: HdfsStorage) -> None:
    found = []
    for content in (b"first", b"second", b""):
        storage.replace("a/b", content)
        found.append(storage.read("a/b"))
    assert found == [b"first", b"second", b""]
    assert all_names(storage, "a") == ["b"]


def test_readers_see_the_old_or_the_new_content_while_a_file_is_replaced(storage: HdfsStorage) -> None:
    contents = [bytes([number]) * 100_000 for number in range(12)]
    storage.replace("a/b", contents[0])
    seen: list[bytes] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            seen.append(storage.read("a/b"))

    with ThreadPoolExecutor(2) as readers:
        reading = [readers.submit(read) for _ in range(2)]
        for content in contents:
            storage.replace("a/b", content)
        done.set()
        for each in reading:
            each.result()
    assert set(seen) - set(contents) == set()


def test_file_appears_whole_when_it_is_closed(storage: HdfsStorage) -> None:
    with storage.new_file("a/b") as file:
        file.write(b"first,")
        file.write(memoryview(b"second"))
        assert sizes(storage, "a/") == []
        with pytest.raises(NotFoundError):
            storage.read("a/b")
    assert storage.read("a/b") == b"first,second"
    assert all_names(storage, "a") == ["b"]


def test_file_is_complete_over_several_blocks(storage: HdfsStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdfs_files, "_BLOCK_BYTES", 1024**2)
    monkeypatch.setattr(hdfs_files, "_PIECE_BYTES", 300_000)
    content = bytes(range(256)) * 12_288  # three blocks
    with storage.new_file("a/exact") as file:
        file.write(content)
    with storage.new_file("a/more", durable=False) as file:
        for begin in range(0, len(content), 99_999):
            file.write(content[begin : begin + 99_999])
        file.write(b"end")
    assert storage.read("a/exact") == content
    assert storage.read("a/more") == content + b"end"
    assert storage.read("a/more", 1024**2 - 1, 3) == content[1024**2 - 1 : 1024**2 + 2]


def test_writer_that_raises_leaves_no_file(storage: HdfsStorage) -> None:
    def write() -> None:
        with storage.new_file("a/b") as file:
            file.write(b"x" * 10_000_000)
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        write()
    assert all_names(storage, "a") == []


def test_close_raises_and_leaves_no_file_when_the_name_is_taken(storage: HdfsStorage) -> None:
    file = storage.new_file("a/b")
    storage.put_new("a/b", b"first")
    with pytest.raises(AlreadyExistsError):
        file.close()
    assert storage.read("a/b") == b"first"
    assert all_names(storage, "a") == ["b"]


def test_read_returns_the_bytes_from_start(storage: HdfsStorage) -> None:
    storage.put_new("a", b"0123456789")
    ranges = [(0, None), (3, None), (10, None), (11, None), (0, 0), (0, 4), (8, 4), (10, 1), (12, 1), (0, 100)]
    content = b"0123456789"
    assert [storage.read("a", start, length) for start, length in ranges] == [
        content[start : None if length is None else start + length] for start, length in ranges
    ]


def test_listing_is_in_the_order_of_the_whole_keys(storage: HdfsStorage, tmp_path: Path) -> None:
    local = PosixStorage(tmp_path)
    keys = ["t/a", "t/a-b/1", "t/a.log", "t/a0", "t/ab/c/d", "t/ab/c.d", "t/ab-c", "t/b", "t/é", "t/\U0001f600", "u/a"]
    for number, key in enumerate(keys):
        for each in (storage, local):
            each.put_new(key, b"x" * number)
    storage.put_new("t/a-b/.tmp-1", b"left by a crash")
    questions = [("t/", ""), ("t/ab/", ""), ("u/", ""), ("none/", ""), *(("t/", key) for key in keys), ("t/", "t/ab/")]
    assert [sizes(storage, *each) for each in questions] == [sizes(local, *each) for each in questions]
    assert sizes(storage, "t/") == sorted((key, number) for number, key in enumerate(keys) if key.startswith("t/"))


def test_deleting_a_missing_file_is_no_error(storage: HdfsStorage) -> None:
    storage.put_new("a/b", b"x")
    for key in ("a/b", "a/b", "none/none"):
        storage.delete(key)
    assert sizes(storage, "a/") == []


def test_syncing_checks_that_the_file_exists(storage: HdfsStorage) -> None:
    storage.put_new("a/b", b"x")
    storage.sync_names("a")
    storage.sync_file("a/b")
    with pytest.raises(NotFoundError) as caught:
        storage.sync_file("a/c")
    assert str(caught.value) == f"{storage.uri}/a/c: no such file in HDFS. Check the root and the name."


@pytest.mark.parametrize("key", ["", "/a", "a//b", "a/", "../a", "a/./b"])
def test_no_key_leaves_the_root(storage: HdfsStorage, key: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: storage.put_new(key, b""),
        lambda: storage.replace(key, b""),
        lambda: storage.new_file(key),
        lambda: storage.read(key),
        lambda: storage.delete(key),
        lambda: storage.sync_file(key),
    ]
    for call in calls:
        with pytest.raises(StorageAccessError, match="the key names a place outside of the root"):
            call()


def test_errors_say_what_the_namenode_refused(
    storage: HdfsStorage, uri: str, hdfs_cluster: HdfsCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.put_new("a", b"x")
    with pytest.raises(StorageAccessError, match="ParentNotDirectoryException"):
        storage.put_new("a/b", b"")
    with pytest.raises(StorageAccessError, match="InvalidPathException"):
        storage.put_new("a:b", b"")
    storage.put_new("c/d", b"x")
    with pytest.raises(StorageAccessError, match="the path is a directory"):
        storage.read("c")
    monkeypatch.setenv("HADOOP_USER_NAME", "stranger")
    with pytest.raises(StorageAccessError) as caught:
        HdfsStorage(uri).put_new("c/e", b"")
    assert caught.value.place == f"{uri}/c/e"
    assert caught.value.problem.startswith(
        "the NameNode reports AccessControlException: Permission denied: user=stranger, access=WRITE"
    )
    assert HdfsStorage(uri).read("c/d") == b"x"


def test_folders_have_the_permissions_of_the_root(
    storage: HdfsStorage, hdfs_cluster: HdfsCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hdfs_native import Client

    client, folder = Client(hdfs_cluster.uri), "/" + storage.uri.removeprefix(hdfs_cluster.uri)
    client.mkdirs(folder, 0o777, create_parent=True)
    client.set_permission(folder, 0o777)
    storage.put_new("a/b/c", b"of one user")
    storage.put_new("a/b/d", b"of one user")
    monkeypatch.setenv("HADOOP_USER_NAME", "stranger")
    storage.put_new("a/b/e", b"of another user")
    storage.replace("a/b/d", b"of another user")
    storage.delete("a/b/c")
    assert [storage.read(file.key) for file in storage.list("a/")] == [b"of another user"] * 2
    assert [client.get_file_info(f"{folder}/{each}").permission for each in ("a", "a/b", "a/b/e")] == [
        0o777, 0o777, 0o644,
    ]  # fmt: skip


def test_full_quota_and_safe_mode_have_errors_of_their_own(storage: HdfsStorage, hdfs_cluster: HdfsCluster) -> None:
    storage.put_new("a/b", b"x")
    folder = "/" + storage.uri.removeprefix(hdfs_cluster.uri)
    hdfs_cluster.administer("-setQuota", "3", folder)
    with pytest.raises(StorageFullError, match="NSQuotaExceededException"):
        storage.put_new("a/c", b"y")
    hdfs_cluster.administer("-clrQuota", folder)
    hdfs_cluster.administer("-safemode", "enter")
    try:
        with pytest.raises(StorageUnavailableError, match="Wait until the NameNode leaves safe mode"):
            storage.put_new("a/d", b"z")
        assert storage.read("a/b") == b"x"
    finally:
        hdfs_cluster.administer("-safemode", "leave")
    assert all_names(storage, "a") == ["b"]


def test_exactly_one_of_several_threads_creates_a_file(storage: HdfsStorage) -> None:
    barrier = threading.Barrier(8)

    def race(writer: int, number: int) -> bool:
        barrier.wait()
        try:
            storage.put_new(f"race/{number}", b"%d" % writer)
        except AlreadyExistsError:
            return False
        return True

    winners = []
    with ThreadPoolExecutor(8) as writers:
        for number in range(RACES):
            won = list(writers.map(race, range(8), [number] * 8))
            winners.append([writer for writer in range(8) if won[writer]])
    assert winners == [[int(storage.read(f"race/{number}"))] for number in range(RACES)]
    assert len(all_names(storage, "race")) == RACES


_RACER = f"""
import sys
from storage_engine.errors import AlreadyExistsError
from storage_engine.storage.hdfs.hdfs_storage import HdfsStorage

storage = HdfsStorage(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
for number in range({RACES}):
    try:
        storage.put_new(f"race/{{number}}", sys.argv[2].encode())
        print(number)
    except AlreadyExistsError:
        pass
"""


def test_exactly_one_of_several_processes_creates_a_file(storage: HdfsStorage) -> None:
    racers = [_process(_RACER, storage.uri, str(writer)) for writer in range(4)]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    won = sorted(
        (int(number), writer) for writer, racer in enumerate(racers) for number in racer.communicate()[0].split()
    )
    assert won == [(number, int(storage.read(f"race/{number}"))) for number in range(RACES)]


_DYING_WRITER = """
import sys
import time
from storage_engine.storage.hdfs.hdfs_storage import HdfsStorage

file = HdfsStorage(sys.argv[1]).new_file("a/b")
file.write(b"x" * 10_000_000)
print("written", flush=True)
time.sleep(600)
"""


def test_killed_writer_leaves_no_file_under_its_name(storage: HdfsStorage) -> None:
    writer = _process(_DYING_WRITER, storage.uri)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "written\n"
    os.kill(writer.pid, signal.SIGKILL)
    writer.communicate()
    assert [name[:5] for name in all_names(storage, "a")] == [".tmp-"]
    assert sizes(storage, "a/") == []
    with storage.new_file("a/b") as file:
        file.write(b"of another writer")
    assert storage.read("a/b") == b"of another writer"


@pytest.mark.parametrize("place", ["data/{topic_id}/0", "staging/{topic_id}/{version:020d}"])
def test_sweep_deletes_what_a_killed_writer_left(storage: HdfsStorage, place: str) -> None:
    broker = BrokerConfig(sweep_delay_ms=0)
    topics = Topics(storage, broker, SystemClock())
    state = topics.create("t", 1, {})
    config = topics.config(state)
    append_records(storage, topics.chain("t"), config, topics.clock, to_table([Row(b"k", b"v")]), None)
    folder = place.format(topic_id=state.topic_id, version=0)
    before = storage.entries(folder)
    writer = _process(_DYING_WRITER.replace("a/b", f"{folder}/b"), storage.uri)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "written\n"
    os.kill(writer.pid, signal.SIGKILL)
    writer.communicate()
    assert len(storage.entries(folder)) == len(before) + 1
    assert sweep_topic(storage, topics.chain("t"), broker).files == 1
    assert storage.entries(folder) == before
    (records,) = PartitionReader(storage, topics.chain("t"), 0).read(0)
    assert records["value"].to_pylist() == [b"v"]


def test_folders_and_all_their_names_are_listed_and_removed(storage: HdfsStorage) -> None:
    assert not storage.is_empty_folder()
    storage.put_new("a/b/file", b"12345")
    storage.put_new("a/other", b"1")
    (folder, file) = sorted(storage.entries("a"), key=lambda entry: entry.name)
    assert (folder.name, folder.is_folder) == ("b", True)
    assert (file.name, file.is_folder, file.size) == ("other", False, 1)
    assert abs(file.modified_ms - time.time() * 1000) < 600_000
    assert sorted(storage.entries("a/"), key=lambda entry: entry.name) == [folder, file]
    assert [entry.name for entry in storage.entries("")] == ["a"]
    assert list(storage.entries("missing")) == []
    storage.remove_folder("a/b")
    storage.remove_folder("a/b")
    assert sizes(storage, "a/") == [("a/other", 1)]
    storage.remove_folder("a")
    assert storage.is_empty_folder()


def _process(program: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=HOME,
    )  # fmt: skip


def test_forked_process_opens_connections_of_its_own(storage: HdfsStorage) -> None:
    storage.put_new("a", b"of the parent")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            storage.put_new("b", storage.read("a") + b", read by the child")
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert storage.read("b") == b"of the parent, read by the child"


def verbs(storage: HdfsStorage) -> dict[str, Callable[[], object]]:
    return {
        "put_new": lambda: storage.put_new("a/new", b"new"),
        "replace": lambda: storage.replace("a/old", b"new"),
        "new_file": lambda: storage.new_file("a/new"),
        "read": lambda: storage.read("a/old"),
        "list": lambda: list(storage.list("a/")),
        "delete": lambda: storage.delete("a/old"),
        "sync_file": lambda: storage.sync_file("a/old"),
    }


def test_silent_namenode_is_an_error(storage: HdfsStorage, impatient: HdfsStorage, hdfs_cluster: HdfsCluster) -> None:
    storage.put_new("a/old", b"old")
    impatient.put_new("b/first", b"")  # there is a connection
    found = {}
    with hdfs_cluster.stopped_namenode():
        for verb, call in verbs(impatient).items():
            if verb not in ("replace", "delete"):  # these calls would still take effect
                with pytest.raises(StorageUnavailableError) as caught:
                    call()
                found[verb] = str(caught.value)
    says = (
        "HDFS did not answer within 1.5 seconds. Check the NameNode, the DataNodes and the network, then repeat the"
        " command."
    )
    assert found == {
        "put_new": f"{storage.uri}/a/new: {says}",
        "new_file": f"{storage.uri}/a/new: {says}",
        "read": f"{storage.uri}/a/old: {says}",
        "list": f"{storage.uri}/a: {says}",
        "sync_file": f"{storage.uri}/a/old: {says}",
    }
    impatient.put_new("a/new", b"new")
    assert sizes(storage, "a/") == [("a/new", 3), ("a/old", 3)]


def test_silent_namenode_during_a_rename_is_an_unclear_put(
    storage: HdfsStorage, impatient: HdfsStorage, hdfs_cluster: HdfsCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete = hdfs_files.TemporaryFile.complete
    completed, stopped = threading.Event(), threading.Event()

    def then_wait(file: hdfs_files.TemporaryFile) -> None:
        complete(file)
        completed.set()
        stopped.wait()

    monkeypatch.setattr(hdfs_files.TemporaryFile, "complete", then_wait)
    with ThreadPoolExecutor(1) as thread:
        put = thread.submit(impatient.put_new, "a/b", b"x")
        completed.wait()
        with hdfs_cluster.stopped_namenode():
            stopped.set()
            error = put.exception()
    assert isinstance(error, AmbiguousPutError)
    monkeypatch.undo()
    storage.replace("a/b", b"y")  # the NameNode answers again
    assert storage.read("a/b") == b"y"


def test_dead_namenode_is_an_error_and_keeps_every_name(storage: HdfsStorage, hdfs_cluster: HdfsCluster) -> None:
    storage.put_new("a/old", b"old")
    with storage.new_file("a/large") as file:
        file.write(b"x" * 1_000_000)
    unfinished = storage.new_file("a/unfinished")
    unfinished.write(b"x" * 10_000_000)
    hdfs_cluster.kill_namenode()
    found = {}
    try:
        for verb, call in verbs(storage).items():
            with pytest.raises(StorageUnavailableError) as caught:
                call()
            found[verb] = caught.value.problem.partition(":")[0]
        with pytest.raises(StorageUnavailableError):
            unfinished.close()
    finally:
        hdfs_cluster.start_namenode()
        hdfs_cluster.wait_until_ready()
    assert found == dict.fromkeys(verbs(storage), "HDFS cannot be reached")
    assert sizes(storage, "a/") == [("a/large", 1_000_000), ("a/old", 3)]
    assert storage.read("a/old") == b"old"


def test_dead_datanodes_are_an_error_and_keep_every_byte(storage: HdfsStorage, hdfs_cluster: HdfsCluster) -> None:
    storage.put_new("a/old", b"old")
    hdfs_cluster.kill_datanodes()
    try:
        with pytest.raises(StorageUnavailableError) as caught:
            storage.read("a/old")
        with pytest.raises(StorageUnavailableError):
            storage.put_new("a/new", b"new")
    finally:
        hdfs_cluster.start_datanodes()
    assert caught.value.problem == "HDFS could not transfer the bytes of the file: All DataNodes failed"
    deadline = time.monotonic() + 120
    while True:
        try:
            storage.put_new("a/new", b"new")
            break
        except StorageUnavailableError:
            assert time.monotonic() < deadline
            time.sleep(0.5)
    assert {file.key: storage.read(file.key) for file in storage.list("a/")} == {"a/new": b"new", "a/old": b"old"}


@pytest.mark.parametrize("executes", [True, False])
def test_put_succeeds_when_the_connection_is_cut_at_the_rename(
    forwarded: HdfsStorage, connection: CutConnection, executes: bool
) -> None:
    forwarded.put_new("a/first", b"x")
    calls: dict[str, Callable[[], object]] = {
        "a/put": lambda: forwarded.put_new("a/put", b"put"),
        "a/replaced": lambda: forwarded.replace("a/replaced", b"replaced"),
        "a/file": lambda: _write(forwarded, "a/file", b"file"),
    }
    for call in calls.values():
        connection.cut_at("rename2", executes=executes)
        call()
    assert connection.cuts == len(calls)
    assert {key: forwarded.read(key) for key in calls} == {
        "a/put": b"put",
        "a/replaced": b"replaced",
        "a/file": b"file",
    }
    assert all_names(forwarded, "a") == ["file", "first", "put", "replaced"]


def _write(storage: HdfsStorage, key: str, content: bytes) -> None:
    with storage.new_file(key) as file:
        file.write(content)


@pytest.mark.parametrize("executes", [True, False])
def test_put_that_lost_says_so_when_the_connection_is_cut_at_the_rename(
    storage: HdfsStorage, forwarded: HdfsStorage, connection: CutConnection, executes: bool
) -> None:
    storage.put_new("a/b", b"first")
    connection.cut_at("rename2", executes=executes)
    with pytest.raises(AlreadyExistsError):
        forwarded.put_new("a/b", b"second")
    assert connection.cuts == 1
    assert storage.read("a/b") == b"first"
    assert all_names(storage, "a") == ["b"]


@pytest.mark.parametrize("executes", [True, False])
def test_put_is_unclear_when_the_network_fails_at_the_rename(
    storage: HdfsStorage, forwarded: HdfsStorage, connection: CutConnection, executes: bool
) -> None:
    connection.cut_at("rename2", executes=executes, is_down_afterwards=True)
    with pytest.raises(AmbiguousPutError) as caught:
        forwarded.put_new("a/b", b"x")
    assert caught.value.place == f"{forwarded.uri}/a/b"
    assert sizes(storage, "a/") == ([("a/b", 1)] if executes else [])


@pytest.mark.parametrize("call", ["create", "addBlock", "complete"])
@pytest.mark.parametrize("executes", [True, False])
def test_put_succeeds_when_the_connection_is_cut_while_it_writes(
    forwarded: HdfsStorage, connection: CutConnection, call: str, executes: bool
) -> None:
    connection.cut_at(call, executes=executes)
    forwarded.put_new("a/b", b"x")
    assert connection.cuts == 1
    assert forwarded.read("a/b") == b"x"
    assert sizes(forwarded, "a/") == [("a/b", 1)]


_REMEDY = "Write hdfs://namenode:8020/folder, or hdfs://nameservice/folder."


@pytest.mark.parametrize(
    ("uri", "place", "problem", "remedy"),
    [
        ("hdfs:///logs", "root 'hdfs:///logs'", "found no NameNode and no name service", _REMEDY),
        (
            "hdfs://me:secret@host:8020/logs",
            "root",
            "the URI must not contain a user name",
            "Set HADOOP_USER_NAME, or get a Kerberos ticket.",
        ),
        (
            "hdfs://host:8020/logs/../etc",
            "root 'hdfs://host:8020/logs/../etc'",
            "found an empty name, `.` or `..` in the path",
            _REMEDY,
        ),
        (
            "hdfs://cluster/logs",
            "root hdfs://cluster/logs",
            'no HDFS client can be created: InvalidArgument("No NameNode hosts found")',
            "Write hdfs://host:port/path, or set HADOOP_CONF_DIR to the directory of core-site.xml and hdfs-site.xml.",
        ),
    ],
)
def test_wrong_uri_is_a_config_error(
    uri: str, place: str, problem: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    with pytest.raises(ConfigError) as caught:
        open_storage(uri)
    assert caught.value.args == (place, problem, remedy)


@pytest.mark.parametrize("name", ["dfs.client.socket-timeout", "dfs.replication"])
def test_wrong_option_is_a_config_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, json.dumps({name: "soon"}))
    with pytest.raises(ConfigError) as caught:
        HdfsStorage("hdfs://127.0.0.1:1/logs")
    assert str(caught.value) == f"storage option {name}: expected a whole number above 0."


def test_missing_package_is_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hdfs_native", None)
    with pytest.raises(ConfigError) as caught:
        HdfsStorage("hdfs://127.0.0.1:2/logs")
    assert str(caught.value) == (
        "root hdfs://127.0.0.1:2/logs: the package hdfs-native is not installed."
        " Install it: pip install 'lakelog[hdfs]'."
    )


def test_name_service_of_the_hadoop_configuration_is_a_root(
    uri: str, hdfs_cluster: HdfsCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hdfs-site.xml").write_text(
        "<configuration><property><name>dfs.ha.namenodes.Logs</name><value>one</value></property><property>"
        f"<name>dfs.namenode.rpc-address.Logs.one</name><value>127.0.0.1:{hdfs_cluster.port}</value></property>"
        "</configuration>"
    )
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    storage = open_storage(uri.replace(f"127.0.0.1:{hdfs_cluster.port}", "Logs"))
    storage.put_new("a", b"x")
    assert (storage.uri[:12], HdfsStorage(uri).read("a")) == ("hdfs://Logs/", b"x")


def test_option_sets_the_number_of_replicas(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from hdfs_native import Client

    found = []
    for replicas in ("1", "2"):
        monkeypatch.setenv(VARIABLE, json.dumps({"dfs.replication": replicas}))
        HdfsStorage(uri).put_new(replicas, b"x")
        authority, _, path = uri.removeprefix("hdfs://").partition("/")
        found.append(Client(f"hdfs://{authority}").get_file_info(f"/{path}/{replicas}").replication)
    assert found == [1, 2]


def test_all_errors_are_storage_errors_of_this_root(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, json.dumps({"dfs.client.socket-timeout": "1500"}))
    unreachable = HdfsStorage("hdfs://127.0.0.1:9/logs")
    for call in verbs(unreachable).values():
        with pytest.raises(StorageError, match=r"hdfs://127\.0\.0\.1:9/logs/a.*: HDFS cannot be reached: "):
            call()
