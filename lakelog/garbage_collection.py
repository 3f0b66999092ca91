"""Exempts the objects of a worker's modules from garbage collection."""

from __future__ import annotations

import gc
from functools import cache


@cache
def exempt_modules_from_collection() -> None:
    """Exempt the objects of this process from garbage collection, once. A forked process inherits the exemption.

    PySpark collects the garbage of a worker after each task. A task imports many modules, so this takes up to 75
    milliseconds of processor time. The daemon of Lakelog's jobs exempts its objects before it forks workers. Garbage that
    exists at that moment is never freed. There is little of it, and a collection would delay the first task.
    """
    gc.freeze()
