"""A process with a Hive metastore: it runs statements of Spark SQL and exports.

    python -m tests.jobs.catalog_user

Each line of standard input is a step, {"sql": "..."} or {"export": ["--conf", ...]}. For each step, the process prints a
line with the result as JSON. PYSPARK_SUBMIT_ARGS names the metastore.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from jobs.export import export
from pipeline.export.export_request import add_export_options
from pipeline.job import run_job
from pipeline.spark.session import spark_session


def main() -> None:
    spark = spark_session("lakelog export")
    for line in sys.stdin:
        step: dict[str, Any] = json.loads(line)
        if "sql" in step:
            found: Any = [row.asDict() for row in spark.sql(step["sql"]).collect()]
        else:
            found = run_job("export", "", export, add_export_options, step["export"], {})
        print("STEP " + json.dumps(found, default=str), flush=True)


if __name__ == "__main__":
    main()
