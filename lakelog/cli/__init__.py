"""The `lakelog` command works on topics and records, at a prompt or in a script, without Spark.

    app.py              combines all commands into one tool
    options.py          the options of every command: --root, --conf
    directory_results.py the lines that the commands with --kafka-dir share
    output.py           standard output, which the reading process may close at any time
    stopping.py         lets a signal end a command that otherwise runs forever

    topics/
    topics.py           create, list, describe, alter, delete, settle, export, import
    reassign.py         topics reassign: print the brokers on which a cluster would put a topic's replicas
    broker.py           describe and alter the root's stored broker settings
    consumers.py        list and remove the registered consumers of topics
    groups.py           list, describe, reset and delete the groups that read topics
    state.py            show the changes of a topic's state; prune and sweep its files

    records/
    append.py           append JSON lines from standard input, as one commit
    append_to_directory.py append JSON lines to a plain Kafka log directory
    input_lines.py      read the lines of standard input, some megabytes at a time
    read.py             print the records of a topic
    offsets.py          print each partition's offset for a time
    delete_records.py   delete the records of a partition that are below an offset
    transactions.py     list, abort and finish open transactions; write the damaged file of a decision again
    json_lines.py       converts a record to its JSON line and back

    kafka_tools/
    configs.py          describe and alter the settings of topics, like kafka-configs
    log_dirs.py         print the sizes of partitions, like kafka-log-dirs
    perf.py             measure appends and reads, like Kafka's performance tests
    perf_figures.py     formats the lines that these tests print
    partition_filter.py chooses topics and partitions, like kafka-get-offsets
    offset_file.py      reads the file of kafka-delete-records
    kafka_options.py    refuses options of Kafka's tools that a command does not have
    tool_options.py     lists all options of Kafka's tools, and how Lakelog differs

    clean/
    plan.py             print what retention, compaction and merging would do; execute a saved plan
    plan_files.py       makes plans for the topics of a command; saves plans and reads saved plans
    plan_tables.py      shows a plan as tables for people
    plan_directory.py   show what recover, retain and compact would do to a plain Kafka log directory
    compact.py          compact topics, as the compaction job does
    retain.py           apply retention, as the retention job does
    merge.py            merge small segments into larger ones, as the maintenance job does
    log_manager.py      do a broker's background work on its log directories
    recover.py          recover a broker's log directories
    directory_lines.py  the lines of the two commands above

    inspect/
    verify.py           check every invariant of a log directory or a root
    doctor.py           test whether a storage does what Lakelog's promises need
    dump.py             print the files of a log, as Kafka's dump tool does
    dump_options.py     the options of dump
    report.py           write an HTML page that shows the topics of a root
    metrics.py          give the figures of a root to Prometheus
    ui.py               serve pages about a root to a browser
    check.py            compare the figures of a root with limits, as a monitoring plugin

    tables/
    prove.py            prove that an exported table equals its topic
    schema.py           show, compare and accept the schema of a topic
    table_options.py    the options that name schemas

Results go to standard output. An error goes to standard error as one line. The exit status is a value of ExitStatus. A
command imports its modules only when it runs. For example, `lakelog topics list` does not wait until numba has loaded
the compiled functions.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

from storage_engine.errors import ExitStatus, LogError
from storage_engine.program_name import set_program_name

_INTERRUPTED = 128 + signal.SIGINT
"""The status that a shell reports for a process that Ctrl-C ended."""


def main() -> NoReturn:
    """Run one command and end the process with its ExitStatus, or with 130 after Ctrl-C."""
    try:
        _share_compiled_kernels()
        _run()
    except KeyboardInterrupt:  # typer handles Ctrl-C only after the modules are loaded
        sys.exit(_INTERRUPTED)


def _run() -> NoReturn:
    from lakelog.cli.app import command
    from lakelog.cli.output import OutputClosed

    set_program_name(" ".join(["lakelog", *sys.argv[1:2]]))
    try:
        command()(prog_name="lakelog")
    except OutputClosed:
        sys.exit(ExitStatus.DONE)  # for example `lakelog read | head`, after head has read enough
    except LogError as error:
        _fail(str(error), error.exit_status)
    except OSError as error:  # from standard input or output; storages raise their own errors
        remedy = ""
        if error.errno == errno.EMFILE:
            from storage_engine.storage.posix_errors import too_many_open_files

            remedy = f" {too_many_open_files()}"
        _fail(f"standard input or output: {error.strerror or error}.{remedy}", ExitStatus.ERROR)
    sys.exit(ExitStatus.DONE)


def _fail(message: str, status: ExitStatus) -> NoReturn:
    from lakelog.cli.output import write_error

    write_error(message)
    sys.exit(status)


def _share_compiled_kernels() -> None:
    """Use the kernels that set-up has compiled for the jobs, if this Python belongs to the same installation."""
    compiled = Path(sys.prefix) / "numba-cache"
    if compiled.is_dir():
        os.environ.setdefault("NUMBA_CACHE_DIR", str(compiled))
