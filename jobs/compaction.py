"""Keep the latest record of each key in compacted topics.

    ./spark-submit.sh compaction --conf conf/flights.yaml

Works on the topics that --topic or the section `compaction` names, else on all of the root; one Spark task for each
partition that is dirty enough (min.cleanable.dirty.ratio, max.compaction.lag.ms). The active segment is left alone. The
old files stay for file.delete.delay.ms and go with a later run. Safe beside ingests, exports and readers.
"""

from __future__ import annotations

import sys

from pipeline.cleaning import Cleaning, add_topic_option
from pipeline.job import JobContext, JobReport, run_job


def compaction(context: JobContext) -> JobReport:
    """Compact what is due."""
    with context.display.work("compaction") as progress:
        cleaning = Cleaning.of(context, context.settings.compaction, progress)
        cleaning.compact()
        cleaning.delete_files()
        return cleaning.report


if __name__ == "__main__":
    sys.exit(run_job("compaction", __doc__, compaction, add_topic_option))
