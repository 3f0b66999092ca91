"""ObjectStorage against a real S3 server, directly and through a proxy that loses, delays and falsifies requests."""

from __future__ import annotations

import json
import os
import random
import re
import secrets
import socket
import socketserver
import ssl
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from threading import Thread

import boto3
import pytest

import lakelog
from storage_engine.errors import (
    AlreadyExistsError,
    AmbiguousPutError,
    ConfigError,
    LogError,
    NotFoundError,
    StorageAccessError,
    StorageError,
    StorageUnavailableError,
    UnsupportedError,
)
from storage_engine.storage import Storage
from storage_engine.storage.objects import object_storage
from storage_engine.storage.storage_opening import open_storage
from storage_engine.storage.storage_options import VARIABLE, storage_options
from tests.servers.azurite import account_token
from tests.servers.faults import (
    Answer,
    AnswerAfterwards,
    CutReply,
    CutRequest,
    DropReply,
    DropRequest,
    Fault,
    Hold,
    IgnoreConditions,
    IgnoreStartAfter,
    ListByFolders,
    RefuseDeletion,
    Repeat,
    Rule,
)
from tests.servers.faulty_proxy import FaultyProxy
from tests.servers.http_messages import Request
from tests.servers.local_server import CERTIFICATE
from tests.servers.object_server import ObjectServer
from tests.stores import environment, new_bucket

MIB = 1024**2


@pytest.fixture
def storage(s3_root: str) -> Storage:
    return open_storage(s3_root)


@pytest.fixture
def behind(proxy: FaultyProxy, s3: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> Storage:
    """A storage whose requests pass the proxy. Its check of conditional puts is done."""
    bucket = new_bucket(s3)
    for name, value in environment(proxy.server, bucket).items():
        monkeypatch.setenv(name, value)
    storage = open_storage(f"s3://{bucket}/root")
    storage.put_new("checked", b"")
    return storage


def once(fault: Fault, method: str, part: str) -> Callable[[Request], Fault | None]:
    """A plan that damages the first such request."""
    left = [fault]

    def plan(request: Request) -> Fault | None:
        return left.pop() if left and request.method == method and part in request.path else None

    return plan


def always(fault: Fault, method: str, part: str) -> Callable[[Request], Fault | None]:
    return lambda request: fault if request.method == method and part in request.path else None


def keys(storage: Storage, prefix: str, after: str = "") -> list[str]:
    return [file.key for file in storage.list(prefix, after)]


def test_files_are_read_in_any_part(storage: Storage) -> None:
    storage.put_new("small", b"0123456789")
    parts = [(0, None), (3, None), (0, 4), (3, 4), (8, 9), (10, 1), (10, None), (12, 3), (12, None), (2, 0)]
    assert [storage.read("small", *part) for part in parts] == [b"0123456789"[s:][:n] for s, n in parts]
    large = secrets.token_bytes(20 * MIB + 7)
    with storage.new_file("large") as file:
        for start in range(0, len(large), 3 * MIB):
            file.write(memoryview(large)[start : start + 3 * MIB])
    assert storage.read("large") == large
    assert storage.read("large", 5, 17 * MIB) == large[5 : 5 + 17 * MIB]
    assert storage.read("large", 1, 64 * MIB) == large[1:]
    assert storage.read("large", len(large), 9 * MIB) == b""
    with storage.new_file("empty"):
        pass
    assert storage.read("empty") == storage.read("empty", 0, 5) == b""
    with pytest.raises(NotFoundError, match="no such file"):
        storage.read("absent")
    with pytest.raises(NotFoundError, match="no such file"):
        storage.read("absent", 3, 9 * MIB)


def test_a_read_at_the_end_is_empty_if_the_store_answers_it_without_bytes(
    azure: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Azurite does so if a range begins at the end of a blob. Azure refuses the range with the status 416."""
    monkeypatch.setenv("LAKELOG_STORAGE_OPTIONS", json.dumps(azure.config))
    storage = open_storage(f"{azure.uri_of(new_bucket(azure))}/root")
    storage.put_new("small", b"0123456789")
    parts = [(10, 1), (10, None), (10, 9 * MIB), (9, 9 * MIB), (11, 1), (11, None), (9, 1), (9, None)]
    assert [storage.read("small", *part) for part in parts] == [b"", b"", b"", b"9", b"", b"", b"9", b"9"]


def test_a_file_that_is_not_completed_is_never_seen(storage: Storage) -> None:
    for size in (10, 30 * MIB):
        with suppress(ZeroDivisionError), storage.new_file("d/never") as file:
            file.write(bytes(size))
            raise ZeroDivisionError
        file = storage.new_file("d/never")
        file.write(bytes(size))
        file.abort()
        with pytest.raises(NotFoundError):
            storage.read("d/never")
    assert keys(storage, "d/") == []


def test_a_listing_has_the_keys_below_a_folder_in_order(storage: Storage) -> None:
    there = ["d/b", "d/a/x", "d/a-b", "d/a.b", "d/a0", "d/a/%41", "d/a/@c", "da/x", "e", f"d/{'z' * 200}"]
    for key in there:
        storage.replace(key, key.encode())
    storage.put_new("d/.tmp-1", b"")
    storage.put_new("d/a/.tmp-2", b"")
    found = sorted(key for key in there if key.startswith("d/"))
    assert keys(storage, "d/") == found
    for key in ["d/a", *found]:
        assert keys(storage, "d/", key) == [each for each in found if each > key]
    assert {file.key: file.size for file in storage.list("d/")} == {key: len(key) for key in found}
    assert keys(storage, "absent/") == []
    many = [f"many/{number:04d}" for number in range(1_100)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda key: storage.put_new(key, b"x"), many))
    assert keys(storage, "many/") == many
    storage.delete("d/b")
    storage.delete("d/b")
    assert keys(storage, "d/", "d/a0") == [f"d/{'z' * 200}"]


def test_marks_of_folders_are_not_listed(storage: Storage, s3: ObjectServer) -> None:
    for key in ("d/folder/x", "d/folder.y", "d/other/deep/z"):
        storage.put_new(key, b"x")
    storage.put_new("d/empty", b"")
    client = boto3.client(
        "s3", endpoint_url=s3.endpoint, region_name="us-east-1",
        aws_access_key_id=s3.config["aws_access_key_id"], aws_secret_access_key=s3.config["aws_secret_access_key"],
    )  # fmt: skip
    bucket, _, prefix = storage.uri.removeprefix("s3://").partition("/")
    for folder in ("d/folder/", "d/other/", "d/other/deep/"):
        client.put_object(Bucket=bucket, Key=f"{prefix}/{folder}", Body=b"")
    assert keys(storage, "d/") == ["d/empty", "d/folder.y", "d/folder/x", "d/other/deep/z"]


def test_one_of_many_writers_of_a_name_wins(storage: Storage) -> None:
    def put(number: int) -> bool:
        try:
            storage.put_new(f"name-{number // 8}", b"%d" % number)
        except AlreadyExistsError:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        won = list(threads.map(put, range(8 * 60)))
    for name in range(60):
        winners = [number for number in range(8 * name, 8 * name + 8) if won[number]]
        assert [storage.read(f"name-{name}")] == [b"%d" % number for number in winners]


@pytest.mark.parametrize(
    "fault",
    [DropReply(), DropRequest(), CutReply(20), CutRequest(10), Answer(409), Answer(503), Answer(500), Answer(429),
     AnswerAfterwards(409), AnswerAfterwards(412), AnswerAfterwards(500), AnswerAfterwards(503), Repeat()],
    ids=repr,
)  # fmt: skip
def test_a_put_knows_whether_it_created_the_file(proxy: FaultyProxy, behind: Storage, fault: Fault) -> None:
    proxy.add(once(fault, "PUT", "/mine"), once(fault, "PUT", "/theirs"))
    behind.put_new("mine", b"this writer")
    assert behind.read("mine") == b"this writer"
    proxy.clear()
    behind.put_new("theirs", b"another writer")
    proxy.add(once(fault, "PUT", "/theirs"))
    with pytest.raises(AlreadyExistsError):
        behind.put_new("theirs", b"this writer")
    assert behind.read("theirs") == b"another writer"


@pytest.mark.parametrize(
    ("fault", "answer"),
    [(DropRequest(), ""), (Answer(503), r" \(it answered 503 SlowDown\)"), (Answer(429), r" \(it answered 429 TooMany")],
    ids=repr,
)  # fmt: skip
def test_the_error_of_a_put_that_is_never_executed_has_the_last_answer(
    proxy: FaultyProxy, behind: Storage, monkeypatch: pytest.MonkeyPatch, fault: Fault, answer: str
) -> None:
    monkeypatch.setattr(object_storage, "PAUSES", (0.0,))
    proxy.add(always(fault, "PUT", "/name"))
    with pytest.raises(AmbiguousPutError, match=f"the store did not answer whether it created the file{answer}"):
        behind.put_new("name", b"data")
    with pytest.raises(StorageUnavailableError, match=f"could not be replaced in 2 attempts{answer}"):
        behind.replace("name", b"data")


@pytest.mark.parametrize("fault", [DropReply(), DropRequest(), Answer(503), AnswerAfterwards(500)], ids=repr)
def test_if_the_store_does_not_answer_any_more_the_outcome_is_unknown(
    proxy: FaultyProxy, behind: Storage, fault: Fault
) -> None:
    proxy.add(always(fault, "PUT", "/name"), always(Answer(503), "HEAD", "/name"))
    with pytest.raises(AmbiguousPutError, match="Check whether the file exists"):
        behind.put_new("name", b"data")


def test_a_store_that_is_away_is_unavailable(proxy: FaultyProxy, behind: Storage) -> None:
    proxy.add(always(Answer(409), "PUT", "/name"))
    with pytest.raises(StorageUnavailableError, match="other requests conflict with this one"):
        behind.put_new("name", b"data")
    with pytest.raises(NotFoundError):
        behind.read("name")


@contextmanager
def tls_server() -> Iterator[int]:
    """A server with a certificate that no client trusts; yields its port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE / "server.crt", CERTIFICATE / "server.key")
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def test_an_error_says_that_the_connection_was_interrupted(proxy: FaultyProxy, behind: Storage) -> None:
    proxy.add(always(DropRequest(), "GET", "/name"))
    with pytest.raises(StorageUnavailableError, match=r"the store did not answer \(the connection was interrupted\)"):
        behind.read("name")


def test_an_error_says_why_the_store_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "{}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    with (
        tls_server() as secure,
        closing(socket.socket()) as unheard,
    ):  # bound and not listening, so no server gets the port
        unheard.bind(("127.0.0.1", 0))
        port = unheard.getsockname()[1]
        for endpoint, reason in {
            f"http://127.0.0.1:{port}": "the connection was refused",
            "http://store.invalid": "the name of its host was not found",
            f"https://127.0.0.1:{secure}": "its certificate was not accepted",
        }.items():
            monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
            with pytest.raises(StorageUnavailableError) as raised:
                open_storage("s3://bucket/logs").read("name")
            assert str(raised.value).startswith(
                f"s3://bucket/logs/name: the store did not answer ({reason}). Check the network"
            )


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        (Answer(301, "PermanentRedirect"), StorageError,
         ("the store answered with a redirect, because the bucket is in another region or the endpoint is wrong. Set the"
         " region of the bucket (AWS_REGION, or aws_region in the storage options), or correct the endpoint.")),
        (Answer(400, "ExpiredToken"), StorageAccessError,
         ("the store refused the credentials or the access (400 ExpiredToken). Check the credentials and their"
         " permissions: read, write, list and delete under this prefix.")),
        (Answer(400, "InvalidToken"), StorageAccessError,
         ("the store refused the credentials or the access (400 InvalidToken). Check the credentials and their"
         " permissions: read, write, list and delete under this prefix.")),
        (Answer(400, "AuthorizationHeaderMalformed"), StorageError,
         ("the store refused the request (400 AuthorizationHeaderMalformed). Check the endpoint, the region and the"
         " bucket.")),
        (Answer(501, "NotImplemented"), UnsupportedError,
         ("the store does not support the request (501 NotImplemented). Use a store that supports all requests that"
         " Lakelog needs, for example conditional puts (docs/STORAGE.md).")),
    ],
    ids=repr,
)  # fmt: skip
def test_a_put_that_no_repetition_changes_is_refused_after_one_request(
    proxy: FaultyProxy, behind: Storage, answer: Answer, kind: type[StorageError], message: str
) -> None:
    proxy.forget()
    proxy.add(always(answer, "PUT", "/name"))
    with pytest.raises(StorageError) as refused:
        behind.put_new("name", b"data")
    assert (type(refused.value), str(refused.value)) == (kind, f"{behind.uri}/name: {message}")
    assert [each.method for each in proxy.exchanges] == ["PUT"]


def test_a_body_that_reached_the_store_too_slowly_is_sent_again(proxy: FaultyProxy, behind: Storage) -> None:
    proxy.forget()
    proxy.add(*(Rule(Answer(400, "RequestTimeout"), "PUT", f"/{name}", times=1) for name in ("new", "file")))
    behind.put_new("new", b"1")
    with behind.new_file("file") as file:
        file.write(b"2")
    proxy.add(Rule(Answer(400, "RequestTimeout"), "PUT", "/new", times=1))
    behind.replace("new", b"3")
    assert [behind.read(name) for name in ("new", "file")] == [b"3", b"2"]
    assert sum(each.fault is not None for each in proxy.exchanges) == 3


def test_listings_deletions_and_reads_continue_after_replies_that_end_early(
    proxy: FaultyProxy, behind: Storage
) -> None:
    wanted = [f"folder/{number:04}" for number in range(1_100)]  # two pages
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda key: behind.put_new(key, b""), wanted))
    proxy.add(Rule(CutReply(), "GET", "list-type=2", times=2), Rule(CutReply(), "GET", "continuation-token", times=1))
    assert keys(behind, "folder/") == wanted
    proxy.add(Rule(CutReply(), "POST", "?delete", times=2))
    behind.delete(wanted[0])
    assert keys(behind, "folder/", wanted[1_097]) == wanted[1_098:]
    assert keys(behind, "folder/") == wanted[1:]
    for part in ((0, None), (3, 4), (3, 9 * MIB)):
        proxy.add(Rule(CutReply(), "GET", "/absent", times=2))
        with pytest.raises(NotFoundError, match="no such file"):
            behind.read("absent", *part)
    proxy.add(always(CutReply(), "GET", "list-type=2"))
    with pytest.raises(StorageUnavailableError, match="the store did not answer"):
        keys(behind, "folder/")


def test_a_deletion_that_the_store_refuses_with_a_reply_of_success(proxy: FaultyProxy, behind: Storage) -> None:
    """Some stores answer so if another process has deleted the object meanwhile. AWS does if the right is missing."""
    behind.put_new("name", b"")
    proxy.add(Rule(RefuseDeletion("NoSuchKey"), "POST", "?delete", times=1))
    behind.delete("name")
    for code, kind, problem in (
        ("AccessDenied", StorageAccessError, "the store refused the credentials or the access (AccessDenied)"),
        ("Unexpected", StorageUnavailableError, "the store answered Unexpected"),
    ):
        proxy.add(Rule(RefuseDeletion(code), "POST", "?delete", times=1))
        with pytest.raises(kind, match=re.escape(f"{behind.uri}/name: {problem}. ")):
            behind.delete("name")


def test_a_listing_begins_after_a_key_although_the_store_ignores_the_key(proxy: FaultyProxy, behind: Storage) -> None:
    wanted = [f"folder/{number:04}" for number in range(6)]
    for key in wanted:
        behind.put_new(key, b"")
    proxy.add(always(IgnoreStartAfter(), "GET", "start-after"))
    assert keys(behind, "folder/", wanted[3]) == wanted[4:]
    assert any(isinstance(each.fault, IgnoreStartAfter) for each in proxy.exchanges)


def test_no_topic_is_missing_from_a_store_that_lists_folder_by_folder(proxy: FaultyProxy, behind: Storage) -> None:
    log = lakelog.open(behind.uri, create=True)
    for name in ("flights", "flights-2", "flights.v3", "orders"):
        log.create_topic(name)
    proxy.add(always(ListByFolders(), "GET", "list-type=2"))
    assert lakelog.open(behind.uri).topics() == ["flights-2", "flights.v3", "flights", "orders"]
    with pytest.raises(UnsupportedError, match=r"lists 'meta/flights-2/[^']*' after 'meta/flights/.*hierarchical"):
        keys(behind, "meta/")


@pytest.mark.parametrize("cut", ["?uploads", "?uploadId="])
def test_a_large_file_is_whole_although_replies_to_its_upload_end_early(
    proxy: FaultyProxy, behind: Storage, cut: str
) -> None:
    """The reply that begins the upload, and the reply that completes it."""
    content = random.Random(3).randbytes(19 * 1024**2)
    proxy.add(Rule(CutReply(), "POST", cut, times=1))
    with behind.new_file("data/large") as file:
        for start in range(0, len(content), 3_000_000):
            file.write(content[start : start + 3_000_000])
    assert behind.read("data/large") == content
    assert keys(behind, "data/") == ["data/large"]
    assert [each.method for each in proxy.exchanges if each.fault] == ["POST"]


def test_an_upload_that_the_store_did_not_complete_is_an_error(proxy: FaultyProxy, behind: Storage) -> None:
    proxy.add(always(CutReply(), "POST", "?uploadId="), always(Answer(403), "HEAD", "data/large"))
    with pytest.raises(StorageError, match="data/large"), behind.new_file("data/large") as file:
        file.write(bytes(9 * 1024**2))


def test_a_late_replacement_does_not_bring_back_older_bytes(proxy: FaultyProxy, behind: Storage) -> None:
    behind.replace("group", b"position 1")
    proxy.add(once(Hold(), "PUT", "/group"))
    behind.replace("group", b"position 2")  # the first request is held; its repetition arrives
    behind.replace("group", b"position 3")
    (late,) = proxy.release()
    assert late.status == 412
    assert behind.read("group") == b"position 3"


def test_a_replacement_survives_lost_replies_and_changes_by_others(proxy: FaultyProxy, behind: Storage) -> None:
    other = open_storage(behind.uri)
    expected = b""
    faults: list[Fault] = [DropReply(), AnswerAfterwards(503), Answer(409), DropRequest(), CutReply(5)]
    for number, fault in enumerate(faults):
        proxy.add(once(fault, "PUT", "/group"))
        expected = b"%d" % number
        behind.replace("group", expected)
        assert other.read("group") == expected
        proxy.clear()
        other.replace("group", b"other")
        behind.replace("group", expected)
        other.delete("group")
        behind.replace("group", expected)
        assert other.read("group") == expected


@pytest.mark.parametrize(
    ("headers", "named"),
    [(("if-none-match", "if-match"), "If-None-Match"), (("if-match",), "If-Match")],
)
def test_a_store_that_ignores_conditions_is_refused_before_the_first_put(
    proxy: FaultyProxy, s3: ObjectServer, monkeypatch: pytest.MonkeyPatch, headers: tuple[str, ...], named: str
) -> None:
    proxy.add(always(IgnoreConditions(headers), "PUT", "/"))
    bucket = new_bucket(s3)
    for name, value in environment(proxy.server, bucket).items():
        monkeypatch.setenv(name, value)
    for _ in range(2):
        with pytest.raises(UnsupportedError, match=named):
            lakelog.open(f"s3://{bucket}/root", create=True).create_topic("t")
        with pytest.raises(UnsupportedError, match=named):
            open_storage(f"s3://{bucket}/root").replace("group", b"position 1")
    assert keys(open_storage(f"s3://{bucket}/root"), "meta/") == []


def test_the_check_of_conditional_puts_deletes_what_killed_checks_left(
    s3: ObjectServer, s3_bucket: str, s3_root: str
) -> None:
    assert s3.folder is not None
    root = s3.folder / s3_bucket / "some/root"
    root.mkdir(parents=True)
    old, young = root / ".tmp-0123456789abcdef", root / ".tmp-fedcba9876543210"
    foreign, deeper = root / ".tmp-of-a-user", root / "tables/.tmp-0123456789abcdef"
    deeper.parent.mkdir()
    for path in (old, young, foreign, deeper):
        path.write_bytes(b"first")
        hour_ago = time.time() - 3700
        os.utime(path, (hour_ago, hour_ago))
    os.utime(young)
    open_storage(s3_root).put_new("meta/@root/format.json", b"{}")
    assert [path.exists() for path in (old, young, foreign, deeper)] == [False, True, True, True]
    assert sorted(path.name for path in root.iterdir()) == [young.name, foreign.name, "meta", "tables"]


@contextmanager
def quoted(*secrets_used: str) -> Iterator[None]:
    """The block raises an error. Neither the error nor its traceback contains one of the texts."""
    with pytest.raises(LogError) as caught:
        yield
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
    for secret in secrets_used:
        assert secret not in shown


def test_wrong_access_is_named_without_secrets(s3_root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = storage_options()
    key, secret = options["aws_access_key_id"], "wrong-" + secrets.token_hex(8)

    def use(**changed: str) -> Storage:
        monkeypatch.setenv("LAKELOG_STORAGE_OPTIONS", json.dumps({**options, **changed}))
        return open_storage(s3_root)

    with quoted(key, secret):
        use(aws_secret_access_key=secret).read("x")
    with quoted(key, secret):
        use(aws_secret_access_key=secret).replace("x", b"")
    with pytest.raises(StorageAccessError, match="SignatureDoesNotMatch"):
        use(aws_secret_access_key=secret).put_new("x", b"")
    use()
    with pytest.raises(StorageAccessError, match="bucket does not exist"):
        open_storage("s3://no-such-bucket/root").read("x")
    with pytest.raises(StorageAccessError, match="bucket does not exist"):
        keys(open_storage("s3://no-such-bucket/root"), "meta/")
    assert keys(use(aws_allow_http="true"), "meta/") == []
    endpoint = options.pop("aws_endpoint_url")
    assert keys(use(aws_endpoint_url_s3=endpoint), "meta/") == []
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert keys(use(aws_endpoint=endpoint), "meta/") == [], "an option takes precedence over a variable"
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    with pytest.raises(ConfigError, match="AWS_ENDPOINT_URL_S3 name different endpoints"):
        use(aws_endpoint_url=endpoint)
    with pytest.raises(StorageUnavailableError, match="did not answer"):
        use(aws_endpoint_url="http://127.0.0.1:9", connect_timeout="1s").put_new("x", b"")
    with pytest.raises(ConfigError, match="is unknown"):
        use(colour="red")
    with pytest.raises(ConfigError, match="storage options are wrong"):
        use(aws_conditional_put="perhaps")


def test_credentials_of_the_options_are_not_combined_with_those_of_the_environment(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = storage_options()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "of-another-store")
    other = open_storage(storage.uri)
    other.put_new("d/a", b"one")
    other.replace("d/a", b"two")
    assert (keys(other, "d/"), other.read("d/a")) == (["d/a"], b"two")
    secret = options.pop("aws_secret_access_key")
    monkeypatch.setenv("LAKELOG_STORAGE_OPTIONS", json.dumps(options))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    with pytest.raises(ConfigError, match="have aws_access_key_id, but not aws_secret_access_key"):
        open_storage(storage.uri)


def test_a_token_of_the_options_is_used_instead_of_a_key_of_the_environment(
    azure: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, options = f"{azure.uri_of(new_bucket(azure))}/root", azure.config
    key = options.pop("azure_storage_account_key")
    token = account_token(options["azure_storage_account_name"], key)
    monkeypatch.setenv("LAKELOG_STORAGE_OPTIONS", json.dumps({**options, "azure_storage_sas_token": token}))
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "b2YtYW5vdGhlci1hY2NvdW50")
    storage = open_storage(uri)
    with storage.new_file("d/a") as file:  # put_new would need a deletion, and Azurite deletes nothing with a token
        file.write(b"one")
    assert (keys(storage, "d/"), storage.read("d/a")) == (["d/a"], b"one")
    monkeypatch.setenv("LAKELOG_STORAGE_OPTIONS", json.dumps({**options, "azure_client_secret": "of-an-application"}))
    with pytest.raises(ConfigError, match="than the variable AZURE_STORAGE_ACCOUNT_KEY, and obstore would use both"):
        open_storage(uri)


@pytest.mark.parametrize(
    ("uri", "problem"),
    [
        ("s3:///key", "names no bucket"),
        ("s3://bucket/a//b", "has an empty part"),
        ("s3://bucket//b", "has an empty part"),
        ("s3://bucket/a/../b", "has an empty part"),
        ("s3://bucket/a/%2e%2E/b", "contains '%2e'"),
        ("s3://bucket/pre%20fix", "contains '%20'"),
        ("ftp://a/b", "the scheme 'ftp'"),
    ],
)
def test_a_wrong_uri_is_refused(uri: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=f"{re.escape(uri)}.*{problem}"):
        open_storage(uri)


@pytest.mark.parametrize(
    "uri",
    [
        "s3://AKIA:SEC/RET@bucket/prefix",
        "az://container/prefix?sv=1&sig=SEC/RET",
        "https://account.blob.core.windows.net/container?sig=SEC/RET",
        "file://user:SEC/RET@host/folder",
        "hdfs://user:SEC@namenode/folder",
        "hdfs:/user:SEC@namenode/folder",
        " s3://AKIA:SEC@bucket/prefix",
        "\ts3://AKIA:SEC@bucket/prefix",
        "\u00a0s3://AKIA:SEC@bucket/prefix",
        "s3\n://AKIA:SEC@bucket/prefix",
        "s3://AKIA%3ASEC@bucket/prefix",
        "s3://SEC@bucket/prefix",
        "S3A:SEC@bucket",
        "gs:/SEC@bucket/prefix",
        "s3:\\\\AKIA:SEC@bucket",
        "s3:/bucket/prefix?sig=SEC",
        "s3:bucket?sig=SEC",
        "s3://bucket/prefix#sig=SEC",
        "abfss:/container@account.dfs.core.windows.net/prefix?sig=SEC",
        "abfss://container%3ASEC@account.dfs.core.windows.net/prefix",
        "https:/account.blob.core.windows.net/container?sig=SEC",
        "file:/folder?sig=SEC",
    ],
)
def test_a_uri_with_a_secret_is_refused_and_not_printed(uri: str) -> None:
    with pytest.raises(ConfigError, match="Credentials") as refused:
        open_storage(uri)
    assert "SEC" not in str(refused.value)


@pytest.mark.parametrize("uri", [" s3://bucket/prefix", "s3://bucket/pre\nfix", "\x00hdfs://namenode/folder"])
def test_a_uri_with_an_invisible_character_is_refused(uri: str) -> None:
    with pytest.raises(ConfigError, match="begins with white space or contains a control character") as refused:
        open_storage(uri)
    assert "//" not in str(refused.value)


def test_a_path_or_a_prefix_may_have_the_characters_that_stand_before_a_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = ["user:password@host", "a?b", "c#d", " s3", "\te", "orders:2024?x", "lake:a@b"]
    assert [open_storage(name).uri for name in names] == [str(tmp_path / name) for name in names]
    assert open_storage("s3://bucket/a@b/c").uri == "s3://bucket/a@b/c"
    assert open_storage("abfss://c@a.dfs.core.windows.net/p").uri == "abfss://c@a.dfs.core.windows.net/p"
    assert open_storage("hdfs://namenode:8020/a?b#c@d").uri == "hdfs://namenode:8020/a?b#c@d"


@pytest.mark.parametrize("key", ["", "a/../b", "a//b", "../x"])
def test_no_key_leaves_the_root(storage: Storage, key: str) -> None:
    for call in (
        storage.read,
        storage.delete,
        lambda key: storage.put_new(key, b""),
        lambda key: storage.replace(key, b""),
    ):
        with pytest.raises(StorageError):
            call(key)
