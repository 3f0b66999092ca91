"""A server with TLS: its files, its cookies, and the command `lakelog ui` over a real connection."""

from __future__ import annotations

import http.client
import ssl
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from lakelog.ui.access.tls import TlsFiles, tls_files
from storage_engine.errors import LogError, NotFoundError, StorageAccessError, UsageError
from tests.lakelog.ui.browsing import ADDRESS, TOKEN, PagesRoot, hidden_fields
from tests.lakelog.ui.processes import command, serving

pytestmark = pytest.mark.posix("the command reads a folder")
SETTINGS = "/topics/orders/settings"
CURVE = ("-pkeyopt", "ec_paramgen_curve:prime256v1")


def openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


def certified(folder: Path, name: str, *kind: str) -> TlsFiles:
    """A new key with a certificate for 127.0.0.1."""
    made = TlsFiles(folder / f"{name}.pem", folder / f"{name}.key")
    names = ("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1")
    openssl("req", "-x509", "-newkey", *kind, "-noenc", *names, "-keyout", made.key, "-out", made.certificate)
    return made


@pytest.fixture(scope="session")
def own(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return certified(tmp_path_factory.mktemp("tls"), "ui", "ec", *CURVE)


@pytest.fixture
def orders(root: PagesRoot) -> PagesRoot:
    root.topic("orders")
    root.append("orders", 1)
    return root


# --- The files --------------------------------------------------------------------------------------------------------


def test_a_pair_of_files_is_accepted(own: TlsFiles) -> None:
    warnings = list[str]()
    assert tls_files(own.certificate, own.key, warnings.append) == own
    assert tls_files(None, None, warnings.append) is None
    assert warnings == []


def test_a_key_that_others_can_read_is_warned_of(own: TlsFiles, tmp_path: Path) -> None:
    key, warnings = tmp_path / "ui.key", list[str]()
    key.write_bytes(own.key.read_bytes())
    key.chmod(0o640)
    tls_files(own.certificate, key, warnings.append)
    assert warnings == [f"--tls-key {key}: other users of this host can read the key. Run: chmod 600 {key}"]


@pytest.mark.parametrize("given", ["--tls-certificate", "--tls-key"])
def test_one_file_without_the_other_is_refused(own: TlsFiles, given: str) -> None:
    is_certificate = given == "--tls-certificate"
    with pytest.raises(UsageError) as refused:
        tls_files(own.certificate if is_certificate else None, None if is_certificate else own.key)
    missing = "--tls-key" if is_certificate else "--tls-certificate"
    assert str(refused.value) == f"{given}: is given without {missing}. Give both options, or none."


def with_missing_key(files: TlsFiles, folder: Path) -> TlsFiles:
    return TlsFiles(files.certificate, folder / "missing")


def with_missing_certificate(files: TlsFiles, folder: Path) -> TlsFiles:
    return TlsFiles(folder / "missing", files.key)


def with_folder(files: TlsFiles, folder: Path) -> TlsFiles:
    return TlsFiles(files.certificate, folder)


def with_junk(files: TlsFiles, folder: Path) -> TlsFiles:
    (folder / "junk").write_text("secret words")
    return TlsFiles(files.certificate, folder / "junk")


def swapped(files: TlsFiles, _: Path) -> TlsFiles:
    return TlsFiles(files.key, files.certificate)


def with_another_key(files: TlsFiles, folder: Path) -> TlsFiles:
    return TlsFiles(files.certificate, certified(folder, "other", "ec", *CURVE).key)


def with_a_key_of_another_kind(files: TlsFiles, folder: Path) -> TlsFiles:
    return TlsFiles(files.certificate, certified(folder, "other", "rsa:2048").key)


def with_a_password(files: TlsFiles, folder: Path) -> TlsFiles:
    openssl("pkey", "-in", files.key, "-aes256", "-passout", "pass:secret words", "-out", folder / "encrypted")
    return TlsFiles(files.certificate, folder / "encrypted")


def with_a_weak_key(_: TlsFiles, folder: Path) -> TlsFiles:
    return certified(folder, "weak", "rsa:512")


@pytest.mark.parametrize(
    ("change", "kind", "place", "problem"),
    [
        (with_missing_key, NotFoundError, "key", "cannot be read: No such file or directory"),
        (with_missing_certificate, NotFoundError, "certificate", "cannot be read: No such file or directory"),
        (with_folder, StorageAccessError, "key", "cannot be read: Is a directory"),
        (with_junk, UsageError, "key", "found no private key in PEM format"),
        (swapped, UsageError, "certificate", "found no certificate in PEM format"),
        (with_another_key, UsageError, "key", "does not belong to the first certificate of "),
        (with_a_key_of_another_kind, UsageError, "key", "does not belong to the first certificate of "),
        (with_a_password, UsageError, "key", "is encrypted with a password"),
        (with_a_weak_key, UsageError, "certificate", "cannot be used: ee key too small"),
    ],
)
def test_wrong_files_are_refused_with_their_place_and_the_reason(
    own: TlsFiles,
    tmp_path: Path,
    change: Callable[[TlsFiles, Path], TlsFiles],
    kind: type[LogError],
    place: str,
    problem: str,
) -> None:
    files = change(own, tmp_path)
    with pytest.raises(kind) as refused:
        tls_files(files.certificate, files.key)
    assert refused.value.place == f"--tls-{place} {getattr(files, place)}"
    assert refused.value.problem.startswith(problem)
    assert refused.value.remedy
    assert "secret words" not in str(refused.value)


def test_wrong_files_end_the_command(orders: PagesRoot, own: TlsFiles) -> None:
    options = ("--tls-certificate", str(own.certificate), "--tls-key", "/no/such/file")
    ended = subprocess.run(command(orders.folder, *options), capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (
        1, "",
        ("lakelog: --tls-key /no/such/file: cannot be read: No such file or directory. Give a file that the user of this"
         " command can read.\n"),
    )  # fmt: skip


# --- Cookies and forms ------------------------------------------------------------------------------------------------


def test_the_cookie_is_secure_only_with_tls(orders: PagesRoot, own: TlsFiles) -> None:
    for tls, origin in ((own, ADDRESS.replace("http:", "https:")), (None, ADDRESS)):
        browser = orders.browser(token=TOKEN, tls=tls)
        page = browser.get("/login")
        answer = browser.post("/login", hidden_fields(page.text) | {"token": TOKEN}, {"Origin": origin})
        assert answer.status == 303
        for cookie in (page.headers["set-cookie"], answer.headers["set-cookie"]):
            assert ("secure" in cookie.lower().split("; ")) is (tls is not None), cookie


def test_with_tls_a_form_of_a_page_without_tls_is_refused(orders: PagesRoot, own: TlsFiles) -> None:
    browser = orders.browser(allow_changes=True, tls=own)
    fields = hidden_fields(browser.get(SETTINGS).text) | {"key": "retention.ms", "value": "1"}
    refused = browser.post(SETTINGS, fields, {"Origin": ADDRESS})
    assert (refused.status, refused.facts["place"]) == (403, "header Origin")
    assert orders.topics.state("orders").configs == {}
    assert browser.post(SETTINGS, fields, {"Origin": ADDRESS.replace("http:", "https:")}).status == 303


def test_the_settings_say_that_the_server_has_tls(orders: PagesRoot, own: TlsFiles) -> None:
    assert orders.browser(tls=own).get("/settings").facts["address"] == "127.0.0.1, port 8787, with TLS"


# --- Over a connection ------------------------------------------------------------------------------------------------


def test_the_command_serves_the_pages_with_tls(orders: PagesRoot, own: TlsFiles, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    options = ("--listen", "127.0.0.1:0", "--allow-changes", "--token", str(token))
    files = ("--tls-certificate", str(own.certificate), "--tls-key", str(own.key))
    with serving(orders.folder, *options, *files) as (process, found):
        address = found.rstrip("/")
        assert address.startswith("https://127.0.0.1:")
        trusting = urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=str(own.certificate)))
        opened = urllib.request.build_opener(trusting, urllib.request.HTTPCookieProcessor())
        login = opened.open(f"{address}/login").read().decode()

        def send(path: str, **fields: str) -> str:
            data = urllib.parse.urlencode(fields).encode()
            with opened.open(urllib.request.Request(f"{address}{path}", data, {"Origin": address})) as answer:
                text: str = answer.read().decode()
                return text

        assert "orders" in send("/login", **hidden_fields(login), token=TOKEN)
        form = opened.open(f"{address}{SETTINGS}").read().decode()
        fields = hidden_fields(form) | {"key": "segment.ms", "value": "3600000"}
        assert "segment.ms" in send(SETTINGS, **fields)  # the page of the settings, or of the change that is running
        with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
            urllib.request.urlopen(f"{address}/login")  # the certificate is signed by nobody whom this host trusts
        with pytest.raises((OSError, http.client.HTTPException)):
            urllib.request.urlopen(f"http{address.removeprefix('https')}/login", timeout=30)
        process.terminate()
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, "")
    assert orders.topics.state("orders").configs == {"segment.ms": "3600000"}
    assert err.splitlines()[-1] == "lakelog: topic orders: segment.ms was set to 3600000 on a page of this server"
