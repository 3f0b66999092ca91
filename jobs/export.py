"""Bring Delta tables, or tables of databases, up to date with their topics, incrementally and exactly once.

    ./spark-submit.sh export --conf conf/flights.yaml [--from-offset P:N]... [--from-timestamp TIME]
        [--accept-dead-letters P:N,...]
    ./spark-submit.sh export --conf conf/flights.yaml --replay
    ./spark-submit.sh export --conf conf/flights.yaml --rebuild [--accept-lost-rows N]
    ./spark-submit.sh export --conf several.yaml [--only NAME]...

The job reads the records that the topic of the section `export` has received since the last run. Records of open or
aborted transactions are not read. For a compacted topic, the job upserts rows: for each key, the table has the newest
value that can be decoded, and a tombstone deletes the row of its key. For any other topic, the job appends rows: each
record becomes one row. An export runs without Spark if it has fewer records than the setting export.spark.records.

Values are decoded with the topic's model in schemas/. Records that cannot be decoded become dead letters in
tables/dead_letters/export/<topic>/. If the share of records that cannot be decoded is larger than
export.max.dead.letter.share, the job exports nothing. The error lists the choices.

With --from-offset or --from-timestamp, the export goes back: it begins at an offset that earlier runs have already
exported. In append mode, the export replaces all rows of the table whose offset is this offset or a later one. In
upsert mode, the export finds the keys of all records at and after this offset, and computes the rows of these keys
again. For this, it also reads all other partitions. --replay decodes the dead letters again. Use --replay after you have
corrected the model.

With the key export.jdbc, the job writes into a table of PostgreSQL, MariaDB or MySQL, not into a Delta table
(docs/JDBC.md).

--rebuild makes the table again from the whole log, in one commit. Use --rebuild to change export.mode, or the type of a
column. If the log no longer has the records of some rows, the job refuses the rebuild. The error says how many rows
these are.

If the settings have a section `exports`, the job runs each export of this section. If one export fails, the job still
runs the other exports. With a trigger such as `1 minute`, the job runs until SIGTERM or Ctrl-C, and looks for new
records after each minute.
"""

from __future__ import annotations

import sys

from pipeline.export.export_request import add_export_options
from pipeline.export.several_exports import run_exports
from pipeline.job import JobContext, JobReport, run_job
from pipeline.without_pandas import let_arrow_work_without_pandas


def export(context: JobContext) -> JobReport:
    """Run the export or the exports of the settings."""
    return run_exports(context)


if __name__ == "__main__":
    let_arrow_work_without_pandas()
    sys.exit(run_job("export", __doc__, export, add_export_options))
