"""Finds the code blocks that a reader may copy, in README.md and in the pages of docs/."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "deploy/README.md", *sorted(f"docs/{path.name}" for path in (PROJECT / "docs").glob("*.md")))

_FENCED = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block. line: the number of its first line in the page; the page begins with line 1. text: the block
    without its fence and without its indentation."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}, line {self.line}: {self.first_line}"

    @property
    def first_line(self) -> str:
        return self.text.split("\n", 1)[0].strip()


def text_of(page: str) -> str:
    return (PROJECT / page).read_text(encoding="utf-8")


def blocks(page: str, *languages: str) -> list[Block]:
    """The blocks of a page in these languages, all where none is named."""
    text = text_of(page)
    return [
        Block(page, text.count("\n", 0, found.start("text")) + 1, found["language"], textwrap.dedent(found["text"]))
        for found in _FENCED.finditer(text)
        if not languages or found["language"] in languages
    ]


def indented_blocks(page: str) -> Iterator[str]:
    """The first line of each block that is set off by four spaces, which has no language."""
    before = ""
    for line in _FENCED.sub("", text_of(page)).splitlines():
        if line.startswith("    ") and not before.strip():
            yield line.strip()
        before = line


def commands(block: Block) -> Iterator[str]:
    """The commands of a block, without comments; lines that belong together are one command."""
    command = ""
    for line in block.text.splitlines():
        command += f"\n{line}" if command else re.sub(r"^\s*#.*|\s+#\s.*$", "", line)
        if command.rstrip().endswith("|") or command.count("'") % 2:
            continue
        if command.strip():
            yield command.strip()
        command = ""
