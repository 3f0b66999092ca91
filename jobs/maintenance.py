"""Do retention, compaction and the merging of small segments in one job, for a schedule.

It also ends transactions that are decided or have timed out, and deletes dropped files, old versions of the states, and
files left by crashed processes.

    ./spark-submit.sh maintenance --conf conf/flights.yaml [--max-minutes N] [--max-bytes N] \\
        [--dry-run | --save FILE | --apply FILE]

Works on the topics that --topic or the section `maintenance` names, else on all topics of the root, including deleted
topics that still have files. Compactions that are due because something is too old come first, then those of the
dirtiest partitions, then merges of small segments. Each piece is committed as soon as it is done, and the report ends
with the work that the budget left. Safe beside ingests, exports, readers and another run of itself, and may be killed
at any time.
"""

from __future__ import annotations

import argparse
import sys

from pipeline.clean.budget import Budget, add_budget_options
from pipeline.clean.cleaning import Cleaning, add_cleaning_options, run_cleaning
from pipeline.job import JobContext, JobReport, run_job
from storage_engine.topic.clean.plans import ALL_WORK


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
