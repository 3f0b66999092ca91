"""Reports defects of the server."""

from __future__ import annotations

import traceback
from collections.abc import Callable

from storage_engine.errors import LogError


def report_defect(place: str, error: Exception, warn: Callable[[str], None]) -> LogError:
    """Report where an unexpected exception comes from, without its text, which may have contents of records.

    Args:
        place: the page or the change.
        warn: called with the place of the defect.

    Returns:
        What a page shows.
    """
    frame = traceback.extract_tb(error.__traceback__)[-1]
    warn(f"{place}: a defect: {type(error).__name__} in {frame.filename}, line {frame.lineno}")
    return LogError(place, "the server has a defect", "The standard error of the server shows the place of the defect.")
