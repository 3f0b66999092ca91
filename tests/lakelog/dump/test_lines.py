"""The lines of a dump for files with unusual names."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from lakelog.dump import DumpOptions
from tests.lakelog.dump.dumping import BASE, GOLDEN, dumped

SUFFIXES = (".index", ".timeindex", ".txnindex", ".snapshot")


@pytest.mark.parametrize("wanted", [DumpOptions(), DumpOptions(jsonl=True)], ids=["text", "jsonl"])
@pytest.mark.parametrize("name", [f"{BASE}.log", *(f"{33:020d}{suffix}" for suffix in SUFFIXES), "partition.metadata"])
def test_a_file_below_a_name_that_is_no_utf_8_is_dumped(tmp_path, name, wanted):
    shutil.copytree(GOLDEN / "txn/data/txn-0", tmp_path / "txn-0")
    called = os.fsdecode(b"caf\xe9/" + name.encode())
    printed, told, error = dumped(tmp_path / "txn-0" / name, wanted, called)
    assert (told, error) == ("", None)
    assert len(printed.splitlines()) > (0 if wanted.jsonl else 1)
    if wanted.jsonl:
        assert {json.loads(line)["file"] for line in printed.splitlines()} == {f"caf?/{name}"}
    else:
        assert printed.startswith(f"Dumping caf?/{name}\n")
