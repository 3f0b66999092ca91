"""Compares the dump of every file under tests/golden with the output of Kafka 4.3.1's own tool."""

from __future__ import annotations

import gzip
import re

import pytest

from lakelog.dump import DumpedFile, Mismatches, dump_file
from tests.lakelog.dump.dumping import EVERYTHING, GOLDEN

FOLDERS = sorted(path.parent.name for path in GOLDEN.glob("*/dumps.txt.gz"))
WITHOUT_STANDARD_ERROR = {"compact.before2", "compact.after2h", "compact_delete.before2", "compact_delete.after2h"}
"""Made by Kafka's classes in a process of ours, where only standard output was kept."""


@pytest.mark.parametrize("folder", FOLDERS)
def test_dump_is_what_kafkas_tool_printed(folder):
    dumps = re.split(rb"(?m)^(?=Dumping )", gzip.decompress((GOLDEN / folder / "dumps.txt.gz").read_bytes()))[1:]
    assert dumps
    for dump in dumps:
        name = dump[len("Dumping ") : dump.index(b"\n")].decode()
        findings = Mismatches()
        lines = b"".join(dump_file(DumpedFile(GOLDEN / name, name, name), EVERYTHING, findings))
        if folder not in WITHOUT_STANDARD_ERROR:
            lines += "".join(f"{told}\n" for told in findings.text()).encode()
        assert lines == dump, name
