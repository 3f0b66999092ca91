"""Keep the latest record of each key in compacted topics.

    ./spark-submit.sh compaction --conf conf/flights.yaml [--dry-run | --save FILE | --apply FILE]

The job works on the topics that --topic or the section `compaction` names. If neither names a topic, the job works on
all topics of the root. The job runs one Spark task for each partition that is dirty enough (min.cleanable.dirty.ratio,
max.compaction.lag.ms). The active segment is not compacted. Compaction replaces old files by new ones. The first run
that starts more than file.delete.delay.ms after the replacement deletes the old files. Ingests, exports and readers may
run at the same time.
"""

from __future__ import annotations

import sys

from pipeline.clean.cleaning_job import CleaningJob, add_cleaning_options, run_cleaning
from pipeline.job import JobContext, JobReport, run_job
from storage_engine.topic.clean.cleaning_plan import Work


def compaction(context: JobContext) -> JobReport:
    """Compact the partitions that are due."""

    def steps(cleaning: CleaningJob) -> None:
        cleaning.compact()
        cleaning.delete_files()

    return run_cleaning(context, context.settings.compaction, frozenset({Work.COMPACTION}), steps)


if __name__ == "__main__":
    sys.exit(run_job("compaction", __doc__, compaction, add_cleaning_options))
