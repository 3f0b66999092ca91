"""`lakelog prove`: proves that an exported Delta table equals its topic, as the job `prove` does.

The job proves the tables of the exports in a settings file. This command proves one table of a topic, and needs no
settings file: the table itself tells how it was exported. Only the schemas of the topic must be named.
"""

from __future__ import annotations

import time
from typing import Annotated

import typer

from lakelog.cli.options import RootOption, TopicOption
from lakelog.cli.tables.table_options import (
    GivenSchemas,
    KeyRegistryOption,
    KeySchemaOption,
    RegistryOption,
    SchemaOption,
    SettingsOption,
    in_checkout,
    settings_with_schemas,
)
from lakelog.terminal.log_lines import LogFormat, LogLines
from lakelog.terminal.progress_display import display_on_stderr


def prove(
    topic: TopicOption,
    table: Annotated[
        str | None,
        typer.Option(
            "--table",
            metavar="URI",
            help="Path or URI of the table. A relative path begins at the root. Default: tables/NAME, with the name of the"
            " topic.",
        ),
    ] = None,
    since: Annotated[
        int | None,
        typer.Option(
            "--since",
            metavar="VERSION",
            min=0,
            help="Prove only what changed after this version of the table. The table must have digests (export.digest).",
        ),
    ] = None,
    table_version: Annotated[
        int | None,
        typer.Option(
            "--table-version",
            metavar="VERSION",
            min=0,
            help="Prove this version of the table. Default: the newest version.",
        ),
    ] = None,
    schema: SchemaOption = None,
    registry: RegistryOption = None,
    key_schema: KeySchemaOption = None,
    key_registry: KeyRegistryOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as one line of JSON.")] = False,
    root: RootOption = None,
    conf: SettingsOption = None,
) -> None:
    """Prove that an exported Delta table equals its topic, without Spark.

    The command reads the topic and the table, decodes each record again, and compares whole rows. It changes nothing. The
    answer is `equal`, `different`, or `equal as far as the log can tell`. In the last case, nothing differs, but retention
    or compaction has deleted the records of some rows since. If the answer is `different`, the partition and the offset
    of each difference are listed, up to a hundred, and the exit status is 1.

    If the values or the keys of the topic have a schema, name it with --schema or --key-schema, or name the settings file
    of the export with --conf.
    """
    with in_checkout("lakelog prove"):
        from pipeline.export.proof_run import prove_table_of
        from pipeline.job import JobContext, print_report

        started, lines = time.monotonic(), LogLines("prove", LogFormat.TEXT)
        given = GivenSchemas(schema, registry, key_schema, key_registry)
        settings = settings_with_schemas(topic, given, root, conf)
        context = JobContext.of("prove", settings, display=display_on_stderr(lines))
        report = prove_table_of(context, topic, table or f"tables/{topic}", table_version, since)
        print_report(lines, report, time.monotonic() - started, as_json=json)
    if report.exit_status:
        raise typer.Exit(report.exit_status)
