"""Retention, compaction and the merging of small segments in one job, for a schedule; and the end of transactions that
others left open. Then what is not needed any more goes: dropped files, old versions of the states, what died has left.

    ./spark-submit.sh maintenance --conf conf/flights.yaml

Works on the topics that --topic or the section `maintenance` names, else on all of the root, deleted ones included as
far as they have files left. Safe beside ingests, exports and readers, beside itself, and to kill at any time.
"""

from __future__ import annotations

import sys

from pipeline.cleaning import Cleaning, add_topic_option
from pipeline.job import JobContext, JobReport, run_job


def maintenance(context: JobContext) -> JobReport:
    """Retention first, so that nothing is compacted that goes anyway; merging last, for compaction merges, too."""
    cleaning = Cleaning.of(context, context.settings.maintenance)
    cleaning.end_transactions()
    cleaning.retain()
    cleaning.compact()
    cleaning.merge()
    cleaning.delete_files()
    cleaning.prune()
    cleaning.sweep()
    return cleaning.report


if __name__ == "__main__":
    sys.exit(run_job("maintenance", __doc__, maintenance, add_topic_option))
