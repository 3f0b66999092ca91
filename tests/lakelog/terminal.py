"""A pseudo-terminal for programs under test, and the text that a person would see on it."""

from __future__ import annotations

import os
import re
import select
import time
from typing import TextIO

COLOUR = re.compile(r"\x1b\[(\d+;)*(3[0-8]|4[0-8]|9[0-7])[;m]")
"""A control sequence that sets a colour."""
_MOST_SECONDS = 60


class Terminal:
    """A pseudo-terminal: programs write to `stream`, people see what `shown` gives."""

    def __init__(self) -> None:
        self._master, slave = os.openpty()
        self.stream: TextIO = os.fdopen(slave, "w")
        self.shown = ""

    def see(self, text: str) -> None:
        """Wait until this is shown; fails where it never is."""
        deadline = time.monotonic() + _MOST_SECONDS
        while text not in self.shown:
            assert time.monotonic() < deadline, self.shown
            if select.select([self._master], [], [], 0.1)[0]:
                self.shown += os.read(self._master, 65_536).decode()

    def close(self) -> str:
        """All that was shown."""
        self.stream.flush()
        while select.select([self._master], [], [], 0)[0]:
            self.shown += os.read(self._master, 65_536).decode()
        self.stream.close()
        os.close(self._master)
        return self.shown


def assert_clean(shown: str, line: str) -> None:
    """The live line that begins like this was erased in the end, and the cursor is there."""
    assert shown.rindex("\x1b[2K") > shown.rindex(line)
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")
