"""`lakelog`: what needs no Spark, at a prompt or in a script.

    topics.py        create, list, describe, alter, delete, settle, export, import
    reassign.py      and reassign: where a cluster would put a topic's replicas
    broker.py        the broker's settings that the root keeps: describe, alter
    append.py        JSON lines from standard input, as one commit
    read.py          records, as JSON lines or as a table for people
    offsets.py       topic:partition:offset, as kafka-get-offsets prints them
    dump.py          the files of a log, as Kafka's dump tool prints them
    transactions.py  list, abort, finish what others left open; decide where the record is damaged
    plan.py          what retention, compaction and merging would do, and carrying that out as it was printed
    making_plans.py  plans of the topics that are named, and their files
    plan_tables.py   a plan for people
    compact.py       what the compaction job does, without Spark
    merge.py         small segments into larger ones, as the maintenance job does it
    verify.py        every invariant of a log directory or a root
    doctor.py        a storage: does it keep what the promises rest on
    report.py        a root of topics as one HTML page
    record_lines.py  the JSON line of a record, both ways
    options.py       what every command takes: --root, --conf
    output.py        standard output, which whoever reads it may close

Results go to standard output, mistakes to standard error as one line; ExitStatus says how a command ended. Commands
import what they need when they run: listing topics does not wait for numba to load the kernels.
"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import NoReturn

from storage_engine.errors import ExitStatus, LogError


def main() -> NoReturn:
    """Run one command and end the process with its ExitStatus."""
    _share_compiled_kernels()
    from storage_engine.cli.app import command
    from storage_engine.cli.output import OutputClosed

    try:
        command()(prog_name="lakelog")
    except OutputClosed:
        sys.exit(ExitStatus.DONE)  # `lakelog read | head` has what it wanted
    except LogError as error:
        _fail(str(error), error.exit_status)
    except OSError as error:  # of standard input and output; storages have errors of their own
        remedy = ""
        if error.errno == errno.EMFILE:
            from storage_engine.storage.posix_errors import too_many_open_files

            remedy = f" {too_many_open_files()}"
        _fail(f"standard input or output: {error.strerror or error}.{remedy}", ExitStatus.ERROR)
    sys.exit(ExitStatus.DONE)


def _fail(message: str, status: ExitStatus) -> NoReturn:
    from storage_engine.cli.output import write_error

    write_error(message)
    sys.exit(status)


def _share_compiled_kernels() -> None:
    """Use the kernels that set-up has compiled for the jobs, where this Python belongs to that set-up."""
    compiled = Path(sys.prefix) / "numba-cache"
    if compiled.is_dir():
        os.environ.setdefault("NUMBA_CACHE_DIR", str(compiled))
