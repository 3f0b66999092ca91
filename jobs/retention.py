"""Drop old segments of topics, by age, size and log start offset.

    ./spark-submit.sh retention --conf conf/flights.yaml [--dry-run | --save FILE | --apply FILE]

The job works on the topics that --topic or the section `retention` names. If neither names a topic, the job works on
all topics of the root. The first run that starts more than file.delete.delay.ms after the drop deletes the files of the
dropped segments. Ingests, exports and readers may run at the same time.
"""

from __future__ import annotations

import sys

from pipeline.clean.cleaning_job import CleaningJob, add_cleaning_options, run_cleaning
from pipeline.job import JobContext, JobReport, run_job
from storage_engine.topic.clean.cleaning_plan import Work


def retention(context: JobContext) -> JobReport:
    """Apply retention.ms, retention.bytes and the log start offsets."""

    def steps(cleaning: CleaningJob) -> None:
        cleaning.retain()
        cleaning.delete_files()

    return run_cleaning(context, context.settings.retention, frozenset({Work.RETENTION}), steps)


if __name__ == "__main__":
    sys.exit(run_job("retention", __doc__, retention, add_cleaning_options))
