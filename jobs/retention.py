"""Drop what topics no longer have to keep, by age, size and start offset.

    ./spark-submit.sh retention --conf conf/flights.yaml

Works on the topics that --topic or the section `retention` names, else on all of the root. The files of what it drops
stay for file.delete.delay.ms and go with a later run. Safe beside ingests, exports and readers.
"""

from __future__ import annotations

import sys

from pipeline.cleaning import Cleaning, add_topic_option
from pipeline.job import JobContext, JobReport, run_job


def retention(context: JobContext) -> JobReport:
    """Apply retention.ms, retention.bytes and the log start offsets."""
    with context.display.work("retention") as progress:
        cleaning = Cleaning.of(context, context.settings.retention, progress)
        cleaning.retain()
        cleaning.delete_files()
        return cleaning.report


if __name__ == "__main__":
    sys.exit(run_job("retention", __doc__, retention, add_topic_option))
