"""Controls Chromium without a window. The commands use Chromium's DevTools protocol, over two pipes. The tests need no
WebDriver program and no package for this.

Messages are JSON objects that end in a zero byte. The environment variable CHROMIUM names the program. Without this
variable, the usual names are tried, and then scripts/install_chromium.py.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS = (
    "--headless",
    "--remote-debugging-pipe",
    "--disable-gpu",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
_PATIENCE_SECONDS = 120


def find_chromium() -> str | None:
    """The program; None where CHROMIUM is not set and none of the usual names is on PATH.

    Raises:
        FileNotFoundError: CHROMIUM names a program that is not there.
    """
    wanted = os.environ.get("CHROMIUM")
    found = next((path for name in ([wanted] if wanted else _NAMES) if (path := shutil.which(name))), None)
    if wanted and not found:
        raise FileNotFoundError(f"CHROMIUM is {wanted}, which is not there: install Debian's chromium or Google Chrome")
    return found


@dataclass
class Page:
    """A page that was opened: what it asked for, what it complained of, and what it answers."""

    browser: Chromium
    session: str
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page, as JSON has it."""
        answer = self.browser.call(
            "Runtime.evaluate", {"expression": expression, "returnByValue": True}, session=self.session
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def show(self, *, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        """Lay it out anew."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.browser.call("Emulation.setDeviceMetricsOverride", metrics, session=self.session)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.browser.call("Emulation.setEmulatedMedia", {"features": scheme}, session=self.session)

    def photograph(self, target: Path) -> None:
        """Save the whole page as it is laid out now, as PNG."""
        options = {"format": "png", "captureBeyondViewport": True}
        picture = self.browser.call("Page.captureScreenshot", options, session=self.session)
        target.write_bytes(base64.b64decode(picture["data"]))


class Chromium:
    """A running browser. For one thread."""

    def __init__(self, process: subprocess.Popen[bytes], commands: int, answers: int) -> None:
        self._process = process
        self._commands = commands
        self._answers = answers
        self._buffer = b""
        self._number = 0
        self._pages: dict[str, Page] = {}
        self._loaded: set[str] = set()

    @classmethod
    @contextmanager
    def started(cls, program: str, profile: Path) -> Iterator[Self]:
        """Start it, and end it with the block. The browser ends when its pipe is closed."""
        for_browser, commands = _pipe()
        answers, by_browser = _pipe()
        # The browser reads commands from descriptor 3 and writes to 4.
        script = f'exec "$@" 3<&{for_browser} 4>&{by_browser}'
        root = ["--no-sandbox"] if os.geteuid() == 0 else []  # it refuses to start as root otherwise
        process = subprocess.Popen(
            ["bash", "-c", script, "bash", program, *_FLAGS, *root, f"--user-data-dir={profile}"],
            pass_fds=(for_browser, by_browser), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(for_browser)
        os.close(by_browser)
        browser = cls(process, commands, answers)
        try:
            yield browser
        finally:
            os.close(commands)
            os.close(answers)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def open(self, address: str) -> Page:
        """Load a page and wait until it has all that it asked for."""
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        page = self._pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable", {}, session=session)
        self.call("Page.setLifecycleEventsEnabled", {"enabled": True}, session=session)
        answer = self.call("Page.navigate", {"url": address}, session=session)
        assert "errorText" not in answer, answer["errorText"]
        while answer["loaderId"] not in self._loaded:
            self._note(self._receive())
        return page

    def call(self, method: str, parameters: Mapping[str, object], session: str | None = None) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        self._number += 1
        message: dict[str, object] = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._commands, data) :]
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], _PATIENCE_SECONDS)
            assert ready, f"the browser has been silent for {_PATIENCE_SECONDS} s"
            more = os.read(self._answers, 1 << 20)
            assert more, f"the browser ended with status {self._process.wait(10)}"
            self._buffer += more
        message, _, self._buffer = self._buffer.partition(b"\0")
        received: dict[str, Any] = json.loads(message)
        return received

    def _note(self, event: dict[str, Any]) -> None:
        page = self._pages.get(event.get("sessionId", ""))
        if page is None:
            return
        what = event.get("params", {})
        match event["method"]:
            case "Network.requestWillBeSent":
                page.requests.append(what["request"]["url"])
            case "Log.entryAdded":
                page.complaints.append(what["entry"]["text"])
            case "Runtime.consoleAPICalled" | "Runtime.exceptionThrown":
                page.complaints.append(json.dumps(what))
            case "Page.lifecycleEvent" if what["name"] == "load":
                self._loaded.add(what["loaderId"])


def _pipe() -> tuple[int, int]:
    """Both ends under numbers that are not 3 or 4, which the browser gets."""
    ends = os.pipe()
    moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return moved[0], moved[1]
