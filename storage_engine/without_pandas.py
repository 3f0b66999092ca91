"""Lets Arrow work without pandas.

Before Arrow makes its first array, it looks for pandas, because the values could be those of a pandas object. If pandas is
installed, its import takes about 0.3 seconds. A small export without Spark takes less than two seconds in all.
"""

from __future__ import annotations

import sys

import pyarrow as pa

_PANDAS = "pandas"


class _NotInstalled:
    """Tells Python's import that pandas is not installed."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name == _PANDAS:
            raise ModuleNotFoundError(f"{name} is not imported for Arrow", name=name)


def let_arrow_work_without_pandas() -> None:
    """Let Arrow look for pandas now, and not find it. Does nothing if this process has imported pandas.

    Arrow looks again when it makes a pandas object. But it no longer recognizes the values of pandas in `pyarrow.array`, so
    call this only in a process that runs no code of users.
    """
    if _PANDAS in sys.modules:
        return
    sys.meta_path.insert(0, _NotInstalled)
    try:
        pa.array([None])
    finally:
        sys.meta_path.remove(_NotInstalled)
