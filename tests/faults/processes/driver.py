"""Runs the ingest job. After the start of Spark, the job waits until a test lets the job begin its own work.

A JVM takes ten seconds to start and to load Spark, so most kills at random moments would only hit the start. Therefore
a driver is started in advance and reports that it is ready. The gate is a file. When this file exists, the driver
continues. All steps of the ingest itself come after the gate; the first step is the takeover.

    python -m tests.faults.processes.driver GATE --conf FILE --root ROOT --json
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

from jobs.ingest import add_ingest_options, ingest
from pipeline.job import JobContext, JobReport, run_job

READY = "driver: ready"


def main() -> int:
    gate = Path(sys.argv[1])

    def gated(context: JobContext) -> JobReport:
        wait_at_gate(context.spark, gate)
        return ingest(context)

    return run_job(
        "ingest",
        "",
        gated,
        add_ingest_options,
        sys.argv[2:],
    )


def wait_at_gate(spark: SparkSession, gate: Path) -> None:
    """Load what the work needs, report that the program is ready, and wait until the file exists."""
    spark.range(1).mapInArrow(lambda batches: batches, "id bigint").collect()  # a worker and the planner
    print(READY, file=sys.stderr, flush=True)
    while not gate.exists():
        time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(main())
