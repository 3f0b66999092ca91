"""Do retention, compaction and the merging of small segments in one job, for a schedule.

It also ends transactions that others left open. Then what is not needed any more goes: dropped files, old versions of the
states, what died has left.

    ./spark-submit.sh maintenance --conf conf/flights.yaml [--max-minutes N] [--max-bytes N] \\
        [--dry-run | --save FILE | --apply FILE]

Works on the topics that --topic or the section `maintenance` names, else on all of the root, deleted ones included as
far as they have files left. What has become too old to stay comes first, then what is dirtiest, then what is smallest;
each piece counts as soon as it is done, and the report ends with what the budget left. Safe beside ingests, exports and
readers, beside itself, and to kill at any time.
"""

from __future__ import annotations

import argparse
import sys

from pipeline.budget import Budget, add_budget_options
from pipeline.cleaning import Cleaning, add_cleaning_options, run_cleaning
from pipeline.job import JobContext, JobReport, run_job
from storage_engine.topic.plans import ALL_WORK


def maintenance(context: JobContext) -> JobReport:
    """What moves no bytes first: it frees space, and leaves less to compact. The rest of the time is for what does."""

    def steps(cleaning: Cleaning) -> None:
        cleaning.end_transactions()
        cleaning.retain()
        cleaning.delete_files()
        cleaning.prune()
        cleaning.sweep()
        cleaning.compact_and_merge()
        cleaning.delete_files()

    budget = Budget.of(context.arguments)
    return run_cleaning(context, context.settings.maintenance, ALL_WORK, steps, budget)


def add_maintenance_options(parser: argparse.ArgumentParser) -> None:
    """Those of all jobs that clean, and what a run may do."""
    add_cleaning_options(parser)
    add_budget_options(parser)


if __name__ == "__main__":
    sys.exit(run_job("maintenance", __doc__, maintenance, add_maintenance_options))
