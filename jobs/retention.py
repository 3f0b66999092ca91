"""Drop the segments that topics no longer have to keep, by age, size and start offset.

    ./spark-submit.sh retention --conf conf/flights.yaml [--dry-run | --save FILE | --apply FILE]

Works on the topics that --topic or the section `retention` names, else on all topics of the root. The files of dropped
segments stay for file.delete.delay.ms; a later run deletes them. Safe beside ingests, exports
and readers.
"""

from __future__ import annotations

import sys

from pipeline.clean.cleaning import Cleaning, add_cleaning_options, run_cleaning
from pipeline.job import JobContext, JobReport, run_job
from storage_engine.topic.clean.plans import Work


def retention(context: JobContext) -> JobReport:
    """Apply retention.ms, retention.bytes and the log start offsets."""

    def steps(cleaning: Cleaning) -> None:
        cleaning.retain()
        cleaning.delete_files()

    return run_cleaning(context, context.settings.retention, frozenset({Work.RETENTION}), steps)


if __name__ == "__main__":
    sys.exit(run_job("retention", __doc__, retention, add_cleaning_options))
