"""Reads the head of an exported table from the JSON files of Delta's log, without Spark or deltalake.

    <table>/_delta_log/00000000000000000007.json     a commit: one action per line, one of which is commitInfo

The head is the newest version of the table, with the stamps of its exports (pipeline.delta.table_stamp). Spark is not
needed, so an export without new records ends within a second. If Delta has deleted some of these files, the remaining
files do not show the head, and the export reads the head through Spark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.delta.table_stamp import Stamp, TableHead, find_head
from storage_engine.storage import Storage

_COMMIT = re.compile(r"([0-9]{20})\.json")
_MOST = 100
"""The most commits of other writers that are read here. If there are more, Spark reads the history."""


@dataclass(frozen=True)
class _DeltaCommit:
    """An entry of the history, with Delta's names."""

    version: int
    operation: str
    operationParameters: Mapping[str, Any]  # noqa: N815
    userMetadata: str | None  # noqa: N815


class UnknownHeadError(Exception):
    """The files of the log do not contain the head."""


def head_in_log(storage: Storage, table: str) -> TableHead | None:
    """The head of the table under the key `table`; None if there is no table.

    Raises:
        UnknownHeadError: the head is unknown; read it through Spark.
        NewerTableError: a newer Lakelog has exported to the table.
    """
    folder = f"{table}/_delta_log/"
    names = [file.key.removeprefix(folder) for file in storage.list(folder)]
    versions = sorted((int(found[1]) for name in names if (found := _COMMIT.fullmatch(name))), reverse=True)
    if not names:
        return None
    if not versions:
        raise UnknownHeadError
    newest = _read(storage, folder, versions[0])
    stamp = Stamp.from_json(newest.userMetadata)
    if stamp is not None:
        return TableHead.of_stamp(newest.version, stamp)
    if versions[-1] != 0 or len(versions) != versions[0] + 1 or len(versions) > _MOST:
        raise UnknownHeadError
    return find_head([newest, *(_read(storage, folder, version) for version in versions[1:])], lambda _: True)


def _read(storage: Storage, folder: str, version: int) -> _DeltaCommit:
    try:
        for line in bytes(storage.read(f"{folder}{version:020d}.json")).splitlines():
            action = json.loads(line)
            if info := action.get("commitInfo"):
                return _DeltaCommit(
                    version, info.get("operation", ""), info.get("operationParameters") or {}, info.get("userMetadata")
                )
    except (ValueError, AttributeError) as error:
        raise UnknownHeadError from error
    raise UnknownHeadError
