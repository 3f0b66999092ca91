"""Runs upkeeps of tables in processes that die directly before or after one of the steps:

    python dying_upkeep.py

Each line of standard input is `STEP TABLE`. STEP is `name:before` or `name:after`, with a name from STEPS. `file` is the
step that puts a file with the rows of several small files, and `commit` is the step that puts the commit. For each line,
the program forks a process that runs the upkeep, and prints the exit status of this process. So the modules are imported
once for all processes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from deltalake import DeltaTable

from pipeline.delta.upkeep.small_files import SmallFileRule
from pipeline.delta.upkeep.table_upkeep import keep_table
from storage_engine.storage import Storage
from storage_engine.storage.storage_opening import open_storage

STEPS: dict[str, tuple[type, str]] = {
    "checkpoint": (DeltaTable, "create_checkpoint"),
    "expiry": (DeltaTable, "cleanup_metadata"),
    "deletion": (Storage, "delete"),
    "file": (Storage, "new_file"),
    "commit": (Storage, "put_new"),
}
"""The methods of the library and of the table's storage, by step."""
KILLED = 9


def die_at(step: str, storage: type, *, after: bool) -> None:
    owner, method = STEPS[step]
    owner = storage if owner is Storage else owner
    whole: Callable[..., Any] = getattr(owner, method)

    def dying(self: Any, *arguments: Any) -> Any:
        dies = step != "commit" or arguments[0].startswith("_delta_log/")
        if not dies or after:
            result = whole(self, *arguments)
        if dies:
            os._exit(KILLED)
        return result

    setattr(owner, method, dying)


def keep_and_die(step: str, table: str) -> None:
    name, _, moment = step.partition(":")
    die_at(name, type(open_storage(table)), after=moment == "after")
    keep_table(table, SmallFileRule(1, 32 << 20))


if __name__ == "__main__":
    for line in sys.stdin:
        child = os.fork()
        if not child:
            keep_and_die(*line.rstrip("\n").split(" ", 1))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
