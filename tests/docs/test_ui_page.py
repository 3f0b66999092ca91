"""Runs the commands of docs/UI.md, and checks that the page names all pages of the server."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.docs.commands import Machine
from tests.docs.pages import blocks, commands, text_of
from tests.lakelog.ui.browsing import TOKEN, PagesRoot
from tests.lakelog.ui.processes import serving

PAGE = "docs/UI.md"


@pytest.mark.posix("the command reads a folder")
def test_the_commands_of_the_page_work(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    for folder in ("mnt/shared/lakelog", "etc/lakelog"):
        (tmp_path / folder).mkdir(parents=True)
    token = tmp_path / "etc/lakelog/ui-token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    found = [command for block in blocks(PAGE, "sh") for command in commands(block)]
    assert len(found) == 4
    for command in found:
        program, name, option, root, *others = shlex.split(machine.local(command))
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
