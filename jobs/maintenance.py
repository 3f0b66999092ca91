"""Retention, compaction and the merging of small segments in one job, for a schedule; and the end of transactions that
others left open. Then what is not needed any more goes: dropped files, old versions of the states, what died has left.

    ./spark-submit.sh maintenance --conf conf/flights.yaml [--max-minutes N] [--max-bytes N]

Works on the topics that --topic or the section `maintenance` names, else on all of the root, deleted ones included as
far as they have files left. What has become too old to stay comes first, then what is dirtiest, then what is smallest;
each piece counts as soon as it is done, and the report ends with what the budget left. Safe beside ingests, exports and
readers, beside itself, and to kill at any time.
"""

from __future__ import annotations

import argparse
import sys

from pipeline.budget import Budget, add_budget_options
from pipeline.cleaning import Cleaning, add_topic_option
from pipeline.job import JobContext, JobReport, run_job


def maintenance(context: JobContext) -> JobReport:
    """What moves no bytes first: it frees space, and leaves less to compact. The rest of the time is for what does."""
    with context.display.work("maintenance") as progress:
        budget = Budget.of(context.arguments)
        cleaning = Cleaning.of(context, context.settings.maintenance, progress, budget)
        cleaning.end_transactions()
        cleaning.retain()
        cleaning.delete_files()
        cleaning.prune()
        cleaning.sweep()
        cleaning.compact_and_merge()
        cleaning.delete_files()
        return cleaning.report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """--topic, and what a run may do."""
    add_topic_option(parser)
    add_budget_options(parser)


if __name__ == "__main__":
    sys.exit(run_job("maintenance", __doc__, maintenance, add_arguments))
