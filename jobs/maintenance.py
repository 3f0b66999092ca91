"""Run retention, compaction and the merging of small segments in one scheduled job.

The job also ends each transaction whose commit or abort was decided, or whose timeout has passed. The job deletes files
of dropped segments, old versions of the topics' states (the files in meta/), and files left by crashed processes. At
the end, the job keeps the topics' Delta tables small: it joins small files, and deletes files whose retention has
passed (maintenance.tables.upkeep).

    ./spark-submit.sh maintenance --conf conf/flights.yaml [--max-minutes N] [--max-bytes N] \\
        [--dry-run | --save FILE | --apply FILE]

The job works on the topics that --topic or the section `maintenance` names. If neither names a topic, the job works on
all topics of the root, including deleted topics that still have files. The job first compacts the partitions that are
due by max.compaction.lag.ms. Then it compacts the dirtiest partitions. Last, it merges small segments. Each piece of
work is committed as soon as it is done. If the limits --max-minutes or --max-bytes are too small for some of the work,
the end of the report lists this work. Ingests, exports, readers and another maintenance may run at the same time. It is
safe to kill the job at any time.
"""

from __future__ import annotations

import argparse
import sys

from pipeline.clean.budget import Budget, add_budget_options
from pipeline.clean.cleaning_job import CleaningJob, add_cleaning_options, run_cleaning
from pipeline.delta.upkeep.small_files import SmallFileRule
from pipeline.delta.upkeep.upkeep_run import TablesReport, keep_tables
from pipeline.job import JobContext, JobReport, run_job
from storage_engine.topic.clean.cleaning_plan import ALL_WORK


def maintenance(context: JobContext) -> JobReport:
    """First run the steps that copy no records, because these steps free space and leave fewer records to compact. Then
    compact. The tables are last.
    """
    settings = context.settings.maintenance
    budget = Budget.of(context.arguments)
    tables: list[TablesReport] = []

    def has_room(size: int) -> bool:
        if budget.against(size) is not None:
            return False
        budget.begin(size)
        return True

    def steps(cleaning: CleaningJob) -> None:
        cleaning.end_transactions()
        cleaning.retain()
        cleaning.delete_files()
        cleaning.prune()
        cleaning.sweep()
        cleaning.compact_and_merge()
        cleaning.delete_files()
        if settings.tables_upkeep:
            rule = SmallFileRule(settings.small_files, settings.small_bytes)
            tables.append(keep_tables(context.topics, cleaning.names, rule, has_room))

    report = run_cleaning(context, settings, ALL_WORK, steps, budget)
    return tables[0].added_to(report) if tables else report


def add_maintenance_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of all cleaning jobs, and the options of the budget."""
    add_cleaning_options(parser)
    add_budget_options(parser)


if __name__ == "__main__":
    sys.exit(run_job("maintenance", __doc__, maintenance, add_maintenance_options))
