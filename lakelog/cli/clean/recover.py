"""`lakelog recover`: recovers the logs of a broker's log directories, so that the broker can start on them.

The command does the first and the last task of `lakelog log-manager`: it locks the directories, loads all logs, and
closes them. Nothing is retained or compacted, so the command needs no server.properties. A kill at any moment leaves
directories that were not closed cleanly. The next recovery does the work again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from lakelog.cli.clean.directory_lines import DirectoryLines, TruncateOption, say_closed, say_loaded
from storage_engine.errors import ExitStatus, UsageError


def recover(
    kafka_dir: Annotated[
        list[Path],
        typer.Option(
            "--kafka-dir",
            metavar="DIR",
            help="A plain Kafka log directory. Give the option once for each directory in the broker's log.dirs.",
        ),
    ],
    truncate_at_damage: TruncateOption = False,
) -> None:
    """Recover the logs of plain Kafka log directories after a crash, and close the directories cleanly.

    Use the command if a broker cannot start because a log is damaged. The command locks the directories, and loads all
    logs as `lakelog log-manager` does. In a directory that was not closed cleanly, each log is read and checked from
    its recovery point on, and damaged bytes are cut out and saved beside the log, in a file that ends with .corrupt. All
    other records stay. Then the command writes everything to the disk, and writes the checkpoints and
    .kafka_cleanshutdown. No record is deleted by retention or compaction.

    __cluster_metadata and topics with segments in a remote storage are not opened. In a directory that was closed
    cleanly, and below the recovery point of a log, the command believes plausible indexes and does not read all records,
    as a broker does. `lakelog verify --kafka-dir` checks every byte.
    The exit status is 4 if records were lost, or if a directory could not be used.
    """
    if not _recover(kafka_dir, truncates=truncate_at_damage):
        raise typer.Exit(ExitStatus.PARTIAL)


def _recover(directories: Sequence[Path], *, truncates: bool) -> bool:
    """Returns whether all logs were recovered without a loss.

    Raises:
        UsageError: a directory is given twice.
    """
    from storage_engine.clock import SystemClock
    from storage_engine.kafka_dir.upkeep.opening import BrokerLogs, Options, properties_of
    from storage_engine.kafka_dir.upkeep.tasks import Tasks

    real = [each.resolve() for each in directories]
    twice = next((each for each in directories if real.count(each.resolve()) > 1), None)
    if twice is not None:
        raise UsageError("--kafka-dir", f"names {twice} twice", "Give each directory once.")
    lines, clock = DirectoryLines("recover"), SystemClock()
    options = Options(truncates=truncates, recovers_only=True)
    with BrokerLogs(properties_of(directories), options, clock, lines) as opened:
        Tasks(opened.logs, clock, opened.managed, lines).report_offline()
        closing = opened.logs.open_directories
        say_loaded(closing, lines)
        is_whole = opened.logs.exit_status is ExitStatus.DONE
    say_closed(closing, lines)
    return is_whole and lines.failures == 0
