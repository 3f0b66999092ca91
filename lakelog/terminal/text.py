"""Makes text from files and records safe to print on a terminal.

A topic's name in a damaged document, a consumer's name, a header, or a value in an error message can contain characters
that a terminal interprets. Such characters could hide lines, change the terminal's title, or enter text as if the user
had typed it. These characters are printed as escapes, `\\x1b`. Two other kinds of characters are escaped, too:
characters that reverse the direction of the text after them, and characters that only some programs treat as a line
end. All text for people passes through this module when it is printed: lines and errors (cli/output.py,
pipeline/job.py), tables, and the live line.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

_ACTED_UPON = "\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069"
_IN_LINES = re.compile(f"[{_ACTED_UPON}]")
"""The characters that are escaped in text of several lines."""
_IN_A_LINE = re.compile(f"[\\n{_ACTED_UPON}]")


def shown_line(text: str) -> str:
    """Text as one line, without characters that a terminal would interpret."""
    return _IN_A_LINE.sub(_escape, text)


def shown_lines(text: str) -> str:
    """Text of several lines, without characters that a terminal would interpret."""
    return _IN_LINES.sub(_escape, text)


def shown_json(line: str) -> str:
    """JSON with the same meaning, without characters that a terminal would interpret."""
    return _IN_LINES.sub(lambda found: f"\\u{ord(found[0]):04x}", line)


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def new_console(**options: object) -> Console:
    """A rich Console that is safe for any text: it interprets no markup in the text and prints no control character.

    Args:
        options: the options of rich's Console.
    """
    from rich.console import Console
    from rich.segment import Segment
    from rich.text import Text

    class ShowingConsole(Console):
        def render_str(self, text: str, **how: object) -> Text:
            # Escape before rich measures the text, so that the columns are wide enough for the escapes.
            return super().render_str(shown_lines(text), **how)  # type: ignore[arg-type]

        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                is_shown = segment.control or not _IN_LINES.search(segment.text)
                yield segment if is_shown else Segment(shown_lines(segment.text), segment.style)

    return ShowingConsole(**{"highlight": False, "markup": False, "emoji": False} | options)  # type: ignore[arg-type]
