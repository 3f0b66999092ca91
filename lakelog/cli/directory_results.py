"""Prints what commands with --kafka-dir leave alone in a plain Kafka log directory, and the damage that they have found."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lakelog.cli.output import write_error, write_line
from storage_engine.errors import ExitStatus, UsageError

if TYPE_CHECKING:
    from storage_engine.kafka_dir.log_manager import LogManager
    from storage_engine.kafka_dir.upkeep.task_opening import TaskChoice


def print_left(path: Path, named: list[str] | None, choice: TaskChoice, done: str) -> bool:
    """Print which topics are left alone, and why. If the user named topics, these are errors.

    Args:
        done: what was not done, such as compacted.

    Returns:
        Whether the metadata could not be read, or a named topic was left alone.
    """
    if choice.error is not None:
        write_error(choice.error)
    for name, reason in choice.left.items():
        if named:
            write_error(UsageError(f"{path}: {name}", f"not {done}: {reason}"))
        else:
            write_line(f"{path}: {name}: not {done}: {reason}")
    return choice.error is not None or bool(named and choice.left)


def print_damage(path: Path, logs: LogManager) -> bool:
    """Print what the loading of the logs has cut out, and what is missing. Returns whether a log has lost records."""
    for report in logs.reports:
        for cut in report.cuts:
            write_error(cut.error_in(str(path)))
        for lost in (*report.lost, *report.doubtful):
            write_error(lost.error_in(str(path)))
    return logs.exit_status is not ExitStatus.DONE or any(report.doubtful for report in logs.reports)
