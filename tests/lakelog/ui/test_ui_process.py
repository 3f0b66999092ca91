"""The command `lakelog ui` as a real process: it prints its address, serves, and ends quietly. Also the page docs/UI.md."""

from __future__ import annotations

import re
import shlex
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.docs.commands import Machine
from tests.docs.pages import blocks, commands, text_of
from tests.lakelog.report.html_tables import tables
from tests.lakelog.ui.browsing import TOKEN, PagesRoot
from tests.lakelog.ui.processes import command, serving

pytestmark = pytest.mark.posix("the command reads a folder")
PAGE = "docs/UI.md"


def read(address: str) -> str:
    with urllib.request.urlopen(address, timeout=30) as answer:
        text: str = answer.read().decode()
        return text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_quietly(root: PagesRoot, number: signal.Signals) -> None:
    root.topic("orders", 2)
    root.append("orders", 1, 2)
    with serving(root.folder) as (process, address):
        assert address.startswith("http://127.0.0.1:")
        (row,) = tables(read(address))["Topics"]
        assert (row["topic"], row["partitions"], row["records appended"]) == ("orders", "2", "2")
        assert read(f"{address}static/refresh.js").startswith("// Keeps a page current")
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
        assert (process.returncode, out, err) == (0, "", "")


def test_a_signal_ends_the_server_while_a_browser_keeps_its_connection(root: PagesRoot) -> None:
    root.topic("orders")
    with serving(root.folder) as (process, address):
        port = int(address.rstrip("/").rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert connection.recv(15) == b"HTTP/1.1 200 OK"
            process.terminate()
            out, err = process.communicate(timeout=30)
            assert (process.returncode, out, err) == (0, "", "")


def test_the_token_comes_from_the_environment_and_is_in_no_argument(root: PagesRoot) -> None:
    root.topic("orders")
    with serving(root.folder, "--listen", "0.0.0.0:0", LAKELOG_UI_TOKEN=TOKEN) as (process, address):
        port = address.rstrip("/").rpartition(":")[2]
        assert TOKEN.encode() not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
        assert "Token of this server" in read(f"http://127.0.0.1:{port}/")


def test_changes_without_a_token_are_warned_of(root: PagesRoot) -> None:
    root.topic("orders")
    with serving(root.folder, "--listen", "127.0.0.1:0", "--allow-changes") as (process, _):
        process.terminate()
        _, err = process.communicate(timeout=30)
        assert err == (
            "lakelog: --allow-changes without a token: every user of this host can change the root with these pages\n"
        )


def test_a_request_for_another_host_is_refused_by_the_server(root: PagesRoot) -> None:
    root.topic("orders")
    with serving(root.folder) as (_, address):
        request = urllib.request.Request(address, headers={"Host": "evil.example"})
        with pytest.raises(urllib.error.HTTPError, match="400"):
            urllib.request.urlopen(request, timeout=30)


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        (("--listen", "0.0.0.0:0"), 2, "other hosts can reach this address, and no token is given"),
        (("--listen", "nonsense"), 2, "--listen: expected HOST:PORT; found 'nonsense'"),
        (("--token", "/no/such/file"), 1, "--token /no/such/file: cannot be read: No such file or directory"),
        (("--host-name", "http://x"), 2, "--host-name: expected a host name without a port; found 'http://x'"),
    ],
)
def test_wrong_options_end_the_command(root: PagesRoot, options: tuple[str, ...], status: int, message: str) -> None:
    root.topic("orders")
    ended = subprocess.run(command(root.folder, *options), capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (status, "")
    assert message in ended.stderr
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize("package", ["jinja2", "starlette", "uvicorn"])
def test_a_missing_package_is_named_with_the_command_that_installs_it(root: PagesRoot, package: str) -> None:
    root.topic("orders")
    without = f"import sys; sys.modules['{package}'] = None; from lakelog.cli import main; main()"
    arguments = [sys.executable, "-c", without, "ui", "--root", str(root.folder)]
    ended = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == (
        f"lakelog: {package}: The command `lakelog ui` requires the package {package}, which is not installed. Run: pip"
        " install 'lakelog[ui]'.\n"
    )


def test_a_port_that_is_in_use_ends_the_command(root: PagesRoot) -> None:
    root.topic("orders")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = subprocess.run(
            command(root.folder, "--listen", address), capture_output=True, text=True, timeout=60, check=False
        )
    assert ended.returncode == 1
    assert (
        ended.stderr
        == f"lakelog: --listen {address}: cannot be opened: Address already in use. Choose another address.\n"
    )


def test_a_path_that_is_no_root_ends_the_command(root: PagesRoot, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other/file").write_text("x")
    root.folder = tmp_path / "other"
    ended = subprocess.run(command(root.folder), capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "this path is not a root" in ended.stderr


def test_the_commands_of_the_page_work(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    PagesRoot(tmp_path / "mnt/shared/lakelog").topic("orders")
    (tmp_path / "etc/lakelog").mkdir(parents=True)
    token = tmp_path / "etc/lakelog/ui-token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    found = [each for block in blocks(PAGE, "sh") for each in commands(block)]
    assert [each.split()[0] for each in found] == [*["lakelog"] * 4, "openssl", "lakelog"]
    subprocess.run(shlex.split(machine.local(found.pop(4))), check=True, capture_output=True)
    for each in found:
        program, name, option, root, *others = shlex.split(machine.local(each))
        assert (program, name, option) == ("lakelog", "ui", "--root")
        if "--listen" in others:
            others[others.index("--listen") + 1] = "0.0.0.0:0"
        else:
            others += ["--listen", "127.0.0.1:0"]
        with serving(Path(root), *others) as (process, _):
            process.terminate()
            _, errors = process.communicate(timeout=60)
            assert (process.returncode, errors) == (0, "")


def test_the_page_names_every_page_of_the_server(tmp_path: Path) -> None:
    root = PagesRoot(tmp_path / "root")
    root.topic("orders")
    page = root.browser().get("/topics/orders").text
    tabs = re.findall(r'<li><a href="[^"]*"(?: aria-current="page")?>([^<]*)</a></li>', page)
    named = re.findall(r"^\| (\w[\w ]*?) +\|", text_of(PAGE), re.MULTILINE)
    assert [each for each in named if each != "page"] == tabs
