"""Reads the files of deploy/, which start the jobs at the right times."""

from __future__ import annotations

import configparser
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.docs.pages import PROJECT

DEPLOY = PROJECT / "deploy"
CRON = DEPLOY / "cron/lakelog"
_ENTRY = re.compile(r"((?:\S+\s+){5})(\S+)\s+(\S.*)")
_BOUNDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
"""Of the minute, the hour, the day of the month, the month and the day of the week."""


@dataclass(frozen=True)
class CronEntry:
    """A line of /etc/cron.d."""

    times: tuple[str, ...]
    user: str
    command: str

    @property
    def is_right(self) -> bool:
        """Whether cron understands the times, and the command has no `%`, which cron would read as a line end."""
        fields = zip(self.times, _BOUNDS, strict=True)
        return "%" not in self.command and all(_is_time(field, low, high) for field, (low, high) in fields)


def _is_time(field: str, low: int, high: int) -> bool:
    found = re.fullmatch(r"(?:\*|(\d+)(?:-(\d+))?)(?:/([1-9]\d*))?", field)
    return found is not None and all(low <= int(number) <= high for number in found.groups()[:2] if number)


def unit_files() -> list[Path]:
    return sorted((DEPLOY / "systemd").iterdir())


def unit(name: str) -> configparser.ConfigParser:
    """A unit of systemd. Values keep their `%i`."""
    parsed = configparser.ConfigParser(interpolation=None, strict=True)
    parsed.optionxform = str  # type: ignore[assignment, method-assign]
    parsed.read_string((DEPLOY / "systemd" / name).read_text())
    return parsed


def exec_start(name: str, instance: str = "") -> str:
    """The command of a service."""
    return unit(name)["Service"]["ExecStart"].replace("%i", instance)


def cron_variables() -> dict[str, str]:
    return dict(re.findall(r"^(\w+)=(.*)$", CRON.read_text(), re.MULTILINE))


def cron_entries() -> list[CronEntry]:
    """The jobs of cron."""
    entries = []
    for line in CRON.read_text().splitlines():
        if line and not line.startswith("#") and not re.match(r"\w+=", line):
            found = _ENTRY.fullmatch(line)
            assert found is not None, line
            entries.append(CronEntry(tuple(found[1].split()), found[2], found[3]))
    return entries


def manifests(*names: str) -> list[dict[str, Any]]:
    """The manifests of these files; all manifests if no file is named."""
    files = [DEPLOY / "kubernetes" / name for name in names] or sorted((DEPLOY / "kubernetes").iterdir())
    return [document for file in files for document in yaml.safe_load_all(file.read_text()) if document]
