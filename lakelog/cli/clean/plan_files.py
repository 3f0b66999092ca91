"""Makes plans for the topics that are named on the command line. Saves plans to files, and reads saved plans."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from lakelog.cli.output import replaceable, write_error
from storage_engine.errors import NotFoundError

if TYPE_CHECKING:
    from storage_engine.topic.clean.cleaning_plan import Plan, Work
    from storage_engine.topic.topics import Topics


def make_plan(
    topics: Topics, named: list[str] | None, now: int | None, work: Collection[Work], *, force: bool = False
) -> tuple[Plan, bool]:
    """Make a plan for the topics of TopicsOption. Also returns whether a topic is missing from the plan. Standard error
    names each missing topic."""
    from lakelog.inspection import planning

    planned, failures = planning.make_plan(topics, named or None, now, work, force=force)
    for each in failures:
        write_error(each)
    return planned, bool(failures)


def save_plan(path: Path, planned: Plan) -> None:
    """Save a plan to a file.

    Raises:
        StorageError: the file cannot be written.
    """
    from storage_engine.storage.storage_opening import open_directory
    from storage_engine.topic.clean.cleaning_plan import encode_plan

    file = replaceable("--save", path)
    open_directory(file.parent).replace(file.name, encode_plan(planned))


def read_plan(path: Path) -> Plan:
    """Read the plan from a file.

    Raises:
        NotFoundError: the file cannot be read.
        ConfigError: the file does not contain a plan.
    """
    from storage_engine.topic.clean.cleaning_plan import decode_plan

    try:
        return decode_plan(path.expanduser().read_bytes(), str(path))
    except OSError as error:
        raise NotFoundError(
            f"--apply {path}", f"cannot be read: {error.strerror}", "Give the file of a saved plan."
        ) from error
