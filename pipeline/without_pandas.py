"""Lets Arrow work without pandas.

Before Arrow makes its first array, it looks for pandas, because the values could be those of a pandas object. If pandas is
installed, its import takes about 0.3 seconds. A small export without Spark takes less than two seconds in all.
"""

from __future__ import annotations

import sys

import pyarrow as pa

_PANDAS = "pandas"


class _NotInstalled:
    """Tells Python's import that pandas is not installed. None in sys.modules would be a module for Arrow's compiled code."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name == _PANDAS:
            raise ModuleNotFoundError(f"{name} is not imported for Arrow", name=name)


def let_arrow_work_without_pandas() -> None:
    """Let Arrow look for pandas now, and not find it. Does nothing if this process has imported pandas.

    Until this process makes a pandas object from Arrow, Arrow behaves as if pandas were not installed. `pyarrow.array` then
    takes a Series for a list, so NaN does not become null. The Python values of timestamps are those of `datetime`. Lakelog's
    own code needs neither, because it also works where pandas is not installed.
    """
    if _PANDAS in sys.modules:
        return
    sys.meta_path.insert(0, _NotInstalled)
    try:
        pa.array([None])
    finally:
        sys.meta_path.remove(_NotInstalled)
