"""Writes the archive of the Java classes of a job: `python -m scripts.archive_classes FILE`.

At its start, Spark loads about fifteen thousand classes from its jars, and Java parses and checks each class. Java can
store the parsed classes in an archive (class data sharing). The next JVM maps this archive into its memory. With the
archive, a job starts some seconds sooner. The set-up runs this program once. The program runs an ingest, maintenance
and two exports with a few records in one Spark session. When the JVM of this session ends, Java writes the classes that
it has loaded.

pipeline/spark/spark_jvm.sh uses the archive. Java ignores the archive if the JVM or its class path has changed.
"""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from pathlib import Path

from jobs.export import export
from jobs.ingest import add_ingest_options, ingest
from jobs.maintenance import add_maintenance_options, maintenance
from pipeline.export.export_request import add_export_options
from pipeline.job import run_job
from pipeline.spark.session import end_session, spark_session

PATIENCE = 300
"""The longest wait for the end of the JVM, in seconds."""
SETTINGS = """
root: {root}
topics:
  orders:
    cleanup.policy: compact
    segment.bytes: 20000
    min.cleanable.dirty.ratio: 0.01
    schema: "id STRING, price DOUBLE"
ingest:
  topic: orders
  source: {{format: json, path: {source}, schema: "id STRING, price DOUBLE, at TIMESTAMP"}}
  key: id
  value: to_json(struct(id, price))
  timestamp: at
export: {{topic: orders, table: tables/orders, spark.records: 0}}
"""


def main() -> int:
    (archive,) = (Path(argument).absolute() for argument in sys.argv[1:])
    with tempfile.TemporaryDirectory(dir=archive.parent) as made:
        written = Path(made) / archive.name
        os.environ["PYSPARK_SUBMIT_ARGS"] = shlex.join(
            ["--driver-java-options", f"-XX:ArchiveClassesAtExit={written}", "pyspark-shell"]
        )
        if run_jobs(Path(made)) != 0:
            return 1
        end_jvm()
        written.rename(archive)
    return 0


def run_jobs(folder: Path) -> int:
    """Run the jobs on a new root in the folder. Return the first exit status that is not 0, or 0."""
    spark_session("archive-classes")  # the jobs themselves would create a session that loads fewer classes
    (folder / "source").mkdir()
    settings = folder / "settings.yaml"
    settings.write_text(SETTINGS.format(root=folder / "root", source=folder / "source"))
    argv = ["--conf", str(settings)]
    for price in (1, 2):
        (folder / "source" / f"{price}.json").write_text(
            "".join(f'{{"id": "{i % 50}", "price": {price}, "at": "2026-01-01T00:00:00Z"}}\n' for i in range(300))
        )
        status = (
            run_job("ingest", "", ingest, add_ingest_options, argv, makes_topics=True)
            or run_job("maintenance", "", maintenance, add_maintenance_options, argv)
            or run_job("export", "", export, add_export_options, argv)
        )
        if status != 0:
            return status
    return 0


def end_jvm() -> None:
    """Stop the Spark of the jobs, and wait until its JVM has ended and written the archive."""
    spark = spark_session("archive-classes")
    gateway = spark.sparkContext._gateway  # noqa: SLF001 - no public access to the process
    end_session(spark)
    gateway.proc.wait(PATIENCE)


if __name__ == "__main__":
    sys.exit(main())
