"""Append a stream to one topic or to several, exactly once.

    ./spark-submit.sh ingest --conf conf/flights.yaml

The job reads the source of the section `ingest`, makes records of its rows, and appends each micro-batch in one commit
per topic. A row that the topic does not accept is written to tables/dead_letters/ingest/<topic>/, and the job
continues. SIGTERM or Ctrl-C ends the job after the current micro-batch. A job that is started again continues after its
last commit. If the same query is started a second time while it runs, the second run takes over and the first run ends
with exit status 3.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from dataclasses import replace

from pipeline.ingest.ingesting import Ingest
from pipeline.ingest.micro_batch import IngestResult
from pipeline.ingest.rows.source_options import isolation
from pipeline.job import JobContext, JobReport, Value, run_job
from pipeline.spark.failures import spark_failures
from pipeline.spark.store_settings import require_file_system
from pipeline.topic_model import check_schemas
from storage_engine.phases import shown_shares


def ingest(context: JobContext) -> JobReport:
    """Run the stream to its end and report the result."""
    lines = replace(context.lines, job="ingest", name=context.settings.required_ingest().name)
    name = f"ingest {lines.name}"
    check_schemas(context.settings)
    spark = context.spark
    require_file_system(spark, context.storage.uri)
    with spark_failures(name), context.display.work(name, plain_lines=False) as meter:
        result = Ingest(
            spark,
            context.settings,
            context.topics,
            report=lines.info,
            report_wait=lines.waiting,
            take_over_others=context.arguments.take_over,
            accept_new_checkpoint=context.arguments.accept_new_checkpoint,
            accept_schema=vars(context.arguments).get("accept_schema", False),
            meter=meter,
        ).run()
    read: dict[str, Value] = {}
    if (level := isolation(context.settings)) is not None:
        read["isolation"] = level
    done: dict[str, Value] = {
        "batches": result.batches,
        "records": result.records,
        **_counted(result.dead_letters),
        "batches skipped": result.skipped,
        "dropped as committed before": result.already_committed,
        **({"fields dropped": result.dropped_fields.summary} if result.dropped_fields else {}),
        "time": shown_shares(result.phases.seconds),
    }
    return JobReport(
        summary=_topic_and_epoch(result) | read | done,
        rows=_topics(result) if len(result.topics) > 1 else [],
        warnings=result.notes,
        changed_topics=list(result.topics),
    )


def _topic_and_epoch(result: IngestResult) -> dict[str, Value]:
    if len(result.topics) > 1:
        return {"topics": ", ".join(result.topics)}
    ((topic, topic_result),) = result.topics.items()
    return {"topic": topic, "epoch": topic_result.epoch}


def _topics(result: IngestResult) -> list[dict[str, Value]]:
    rows: list[dict[str, Value]] = [
        {
            "topic": topic,
            "epoch": topic_result.epoch,
            "records": topic_result.records,
            **_counted(topic_result.dead_letters),
        }
        for topic, topic_result in result.topics.items()
    ]
    if result.without_topic:
        rows.append({"topic": None, "epoch": None, "records": 0, **_counted(result.without_topic)})
    return rows


def _counted(reasons: Counter[str]) -> dict[str, Value]:
    return {"dead letters": reasons.total(), "dead letters by reason": dict(sorted(reasons.items()))}


def add_ingest_options(parser: argparse.ArgumentParser) -> None:
    """The options of the command line that only this job has."""
    parser.add_argument(
        "--take-over", action="store_true", help="replace the topic's writer even if the writer is another query"
    )
    parser.add_argument(
        "--accept-new-checkpoint",
        action="store_true",
        help="accept a checkpoint that is new to the topic, was copied, or was rolled back. The job appends all rows"
        " that it reads with this checkpoint. The job deletes the batches and positions that the topic has recorded"
        " for earlier queries",
    )
    parser.add_argument(
        "--accept-schema",
        action="store_true",
        help="accept a change of a topic's model that breaks older records or their readers, and record the new model",
    )


if __name__ == "__main__":
    sys.exit(run_job("ingest", __doc__, ingest, add_ingest_options, makes_topics=True))
