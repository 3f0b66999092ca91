"""Show Lakelog on a year of real flights: ingest, maintenance, export.

    ./spark-submit.sh demo [--root s3://bucket/prefix]

First, the job writes the 336,776 flights that left New York in 2013 as twelve files of JSON events. Second, it appends
the flights month by month to the compacted topic `flights`. Third, it cleans the topic and exports it to a Delta table.
This table contains the last flight of each aircraft. A second run finds no new flights and changes nothing. The
settings are in conf/flights.yaml.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pipeline.job import JobContext, JobReport, run_job

CONF = Path(__file__).resolve().parent.parent / "conf" / "flights.yaml"
_SOURCE = "source"
"""The folder below the root with the events."""


def demo(context: JobContext) -> JobReport:
    """Run the steps in one Spark session and report the results."""
    storage = context.storage
    source = f"{storage.uri}/{_SOURCE}"
    context.lines.info(f"writing a year of flights to {source}")
    # Import PySpark before the second thread starts. Its modules import one another, which is not safe in two threads.
    import pipeline.spark.session  # noqa: F401

    with ThreadPoolExecutor(1) as meanwhile:
        # Starting Spark takes seconds, and so does loading the compiled kernels and writing the files. So these steps
        # run in parallel.
        spark = meanwhile.submit(lambda: context.spark)
        from jobs.export import export
        from jobs.ingest import ingest
        from jobs.maintenance import maintenance
        from lakelog.dead_letter_tables import ingest_dead_letters_key
        from pipeline.demo_data import put_flight_events, write_flight_events
        from pipeline.demo_output import LogSize, next_steps, sample_rows, table_rows, with_source

        if storage.root is not None:
            write_flight_events(storage.root / _SOURCE)
        else:
            put_flight_events(storage, _SOURCE)
        spark.result()
    context = dataclasses.replace(context, settings=with_source(context.settings, source))
    wanted = context.settings.required_export()

    context.lines.info("ingest: twelve files, one micro-batch each")
    ingested = ingest(context)
    before = LogSize.of(context.topics.state(wanted.topic))
    context.lines.info("maintenance: retention and compaction")
    maintained = maintenance(context)
    state = context.topics.state(wanted.topic)
    context.lines.info("export: the latest flight of each aircraft into Delta")
    exported = export(context)

    root = storage.uri
    records = sum(part.high_watermark - part.log_start_offset for part in state.partitions)
    return JobReport(
        summary={
            "records in": records,
            "of these new": ingested.summary["records"],
            "dead letters": table_rows(f"{root}/{ingest_dead_letters_key(wanted.topic)}"),
            "log before compaction": str(before),
            "log after": str(LogSize.of(state)),
            "table rows": table_rows(f"{root}/{wanted.table}"),
        },
        rows=sample_rows(f"{root}/{wanted.table}"),
        failures=[*maintained.failures, *exported.failures],
        warnings=[*ingested.warnings, *maintained.warnings, *exported.warnings],
        changed_topics=[wanted.topic],
        closing=next_steps(storage, wanted.topic, wanted.table),
    )


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(conf=CONF, take_over=False, accept_new_checkpoint=False)


if __name__ == "__main__":
    sys.exit(run_job("demo", __doc__, demo, _add_arguments, makes_topics=True))
