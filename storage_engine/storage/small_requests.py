"""Makes many small, independent requests, such as listings of the folders of partitions.

On a store that answers over a network, a small request takes as long as the way to the store and back. So a page that
makes one request per partition, one after another, takes seconds. There, the requests are made at the same time. On a
local disk, threads would only cost time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from storage_engine.storage import Storage

AT_ONCE: Final = 16
"""So many small requests are made at the same time."""
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def results_of(storage: Storage, work: Callable[[_Item], _Result], items: Sequence[_Item]) -> Iterator[_Result]:
    """The results of independent pieces of work, in the order of the items.

    Args:
        work: called with each item. On a store that answers over a network, several threads call it at the same time. Its
            exception is raised when the result of this item is taken.
    """
    if storage.reads_at_once == 1 or len(items) < 2:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(min(AT_ONCE, len(items))) as pool:
        yield from pool.map(work, items)
