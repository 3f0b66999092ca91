"""Append a stream to a topic, exactly once.

    ./spark-submit.sh ingest --conf conf/flights.yaml

Reads the source of the section `ingest`, makes records of its rows and appends each micro-batch as one commit. Rows
that the topic may not hold go to tables/dead_letters/ingest/<topic>/ and the job goes on. SIGTERM and Ctrl-C end it
after the current micro-batch. Started again it goes on where it was; a second run of the same query takes over, and the
first ends with exit status 3.
"""

from __future__ import annotations

import argparse
import sys

from pipeline.ingesting import Ingest
from pipeline.job import JobContext, JobReport, run_job
from pipeline.spark_failures import spark_failures


def ingest(context: JobContext) -> JobReport:
    """Run the stream to its end and report what it did."""
    topic = context.settings.required_ingest().topic
    name = f"ingest {topic}"
    spark = context.spark
    with spark_failures(f"ingest of topic {topic}"), context.display.work(name, plain_lines=False) as meter:
        result = Ingest(
            spark,
            context.settings,
            context.topics,
            report=lambda line: print(f"{name}: {line}", file=sys.stderr),
            take_over_others=context.arguments.take_over,
            meter=meter,
        ).run()
    return JobReport(
        summary={
            "topic": result.topic,
            "epoch": result.epoch,
            "batches": result.batches,
            "records": result.records,
            "dead letters": result.dead_letters.total(),
            "batches skipped": result.skipped,
        },
        rows=[{"dead letters": reason, "rows": count} for reason, count in sorted(result.dead_letters.items())],
        warnings=result.notes,
        changed_topics=[result.topic],
    )


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--take-over", action="store_true", help="replace the topic's writer even if it is another query"
    )


if __name__ == "__main__":
    sys.exit(run_job("ingest", __doc__, ingest, _add_arguments))
