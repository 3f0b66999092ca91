"""Keeps all Delta tables of some topics small, and reports the results.

A topic has the tables to which it is exported, and two tables of dead letters. The consumers of a topic
(`storage_engine.topic.readers.consumer_files`) include its exports, and name the tables of these exports. An error in
one table is reported, and the run continues with the other tables. `pipeline.delta.upkeep.table_upkeep` does the work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from lakelog.dead_letter_tables import UNKNOWN_TOPIC_DEAD_LETTERS, export_dead_letters_key, ingest_dead_letters_key
from pipeline.delta.upkeep.small_files import SmallFileRule
from pipeline.delta.upkeep.table_upkeep import TableUpkeep, keep_table
from pipeline.job import JobReport
from storage_engine.errors import ConflictError, LogError
from storage_engine.topic.readers.consumer_files import exported_table, read_consumers
from storage_engine.topic.topics import Topics


@dataclass
class TablesReport:
    """What was done to the tables of a run.

    done: by the table's key below the root.
    warnings, failures: one line each.
    """

    done: dict[str, TableUpkeep] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def added_to(self, report: JobReport) -> JobReport:
        """The report of a job, with the work on the tables."""
        done = self.done.values()
        figures = {
            "table files joined": sum(each.joined for each in done),
            "table files deleted": sum(each.deleted for each in done),
            "tables left": sum(each.postponed for each in done),
        }
        return replace(
            report,
            summary={**report.summary, **figures},
            warnings=[*report.warnings, *self.warnings],
            failures=list(dict.fromkeys([*report.failures, *self.failures])),
        )


def keep_tables(
    topics: Topics, names: Iterable[str], rule: SmallFileRule, has_room: Callable[[int], bool] = lambda _: True
) -> TablesReport:
    """Keep the tables of topics small.

    Args:
        names: the topics. Deleted topics may still have tables of dead letters.
        has_room: called with a number of bytes; returns whether so many bytes may be copied.
    """
    report = TablesReport()
    for key, has_stamps in dict(_tables(topics, names, report)).items():
        path = f"{topics.storage.uri}/{key}"
        try:
            done = keep_table(path, rule, has_room, has_stamps=has_stamps)
        except ConflictError as error:
            report.warnings.append(str(error))
        except LogError as error:
            report.failures.append(str(error))
        else:
            if done is not None:
                report.done[key] = done
                if done.left_alone is not None:
                    report.warnings.append(_left_alone(key, path, done.left_alone))
    return report


def _tables(topics: Topics, names: Iterable[str], report: TablesReport) -> Iterator[tuple[str, bool]]:
    """The keys of the tables, and whether the commits of each table have stamps. Some of the tables may not exist."""
    for name in names:
        yield ingest_dead_letters_key(name), False
        yield export_dead_letters_key(name), True
        try:
            if (state := topics.find(name)) is not None:
                for consumer in read_consumers(topics.storage, state).known:
                    if (table := exported_table(consumer)) is not None:
                        yield table, True
        except LogError as error:
            report.failures.append(str(error))
    yield UNKNOWN_TOPIC_DEAD_LETTERS, False


def _left_alone(key: str, path: str, reason: str) -> str:
    return (
        f"{key} {reason}, so maintenance does not join its files; in Spark, run OPTIMIZE delta.`{path}` and then"
        f" VACUUM delta.`{path}`"
    )
