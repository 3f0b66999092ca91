"""Starts `lakelog ui` as a real process, or its server in a thread of this process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lakelog.ui.access.options import UiOptions
from lakelog.ui.serving import serve
from storage_engine.topic.broker_settings import BrokerSettings
from tests.lakelog.ui.browsing import PagesRoot

PATIENCE_SECONDS = 30


def command(root: Path | str, *options: str) -> list[str]:
    return [sys.executable, "-m", "lakelog.cli", "ui", "--root", str(root), *options]


@contextmanager
def serving(root: Path | str, *options: str, **variables: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process, and the address that it has printed."""
    arguments = command(root, *(options or ("--listen", "127.0.0.1:0")))
    environment = {name: value for name, value in os.environ.items() if name != "LAKELOG_UI_TOKEN"} | variables
    process = subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith(("pages at http://", "pages at https://")), (
            line,
            process.stderr and process.stderr.read(),
        )
        yield process, line.removeprefix("pages at ").strip()
    finally:
        process.kill()
        process.communicate()


def plan_page(address: str) -> tuple[str, str]:
    """The cookie and the text of a page with the form that applies a plan, as soon as the plan is computed."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        with urllib.request.urlopen(address, timeout=PATIENCE_SECONDS) as page:
            cookie, text = (page.headers["Set-Cookie"] or "").partition(";")[0], page.read().decode()
        if "Apply this plan" in text:
            return cookie, text
        assert time.monotonic() < deadline, text
        time.sleep(0.2)


@contextmanager
def pages(root: PagesRoot, **options: Any) -> Iterator[str]:
    """The address of a server in this process."""
    ended, is_ready = threading.Event(), threading.Event()
    addresses: list[str] = []

    def ready(address: str) -> None:
        addresses.append(address.rstrip("/"))
        is_ready.set()

    thread = threading.Thread(
        target=serve,
        args=(
            root.topics,
            BrokerSettings(),
            UiOptions(port=0, **options),
            lambda _: ended.wait(),
            ready,
            root.warnings.append,
        ),
    )
    thread.start()
    try:
        assert is_ready.wait(PATIENCE_SECONDS)
        yield addresses[0]
    finally:
        ended.set()
        thread.join()
