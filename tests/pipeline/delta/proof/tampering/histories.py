"""Makes tables by honest steps: exports, compaction, retention, upkeep of the table, wider columns, rebuilds, RESTORE.

Without a JVM, a wider column and a rebuild are written here as Spark writes them: in one commit, with the stamp that
the export makes. `tests/pipeline/delta/chain` compares the chain of the real ones.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from pipeline.delta.chain.digest_sums import sums_by_partition
from pipeline.delta.export_plan import NO_BOUNDS, ExportMode, new_stamp
from pipeline.delta.files.skipping_commit import fit_skipping
from pipeline.delta.rows.row_columns import DIGEST, nullable_columns, table_columns
from pipeline.delta.table_history import DeltaLog, plan_from_history, read_head, stamp_in
from pipeline.delta.table_stamp import Began, NextLink, Recent, Stamp, TableHead
from tests.pipeline.delta.order_models import schema_of
from tests.pipeline.delta.proof.exported_topic import ExportedTopic
from tests.pipeline.delta.proof.tampering.models import Goods, WideGoods, goods, some_value
from tests.roots.delta_tables import commit_file, is_table, table_at

Row = dict[str, Any]
KEYS = tuple(b"key-%d" % number for number in range(10))


class History:
    """A topic and its table, made by random honest steps.

    steps: the names of the steps.
    versions: the rows of the table after each export, the oldest first.
    has_whole_log: whether the log still has each record, and each key has always had the same partition. Then the log
        alone proves each row.
    """

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.chance = chance
        mode = chance.choice(list(ExportMode))
        self.topic = ExportedTopic(folder, mode, partitions=chance.choice([1, 2, 3]), digest=chance.random() < 0.65)
        self.topic.export = replace(self.topic.export, schema=schema_of(Goods))
        self.steps: list[str] = []
        self.versions: list[list[Row]] = []
        self.has_whole_log = True
        self._oldest = 1  # the oldest version to which the table can be restored
        self.run("export")
        for _ in range(chance.randrange(2, 8)):
            self.run(chance.choice([*STEPS, "export", "export"]))

    @property
    def table(self) -> DeltaTable:
        return table_at(self.topic.export.table)

    @property
    def head(self) -> TableHead:
        head = read_head(self.topic.export.table)
        assert head is not None
        return head

    @property
    def stamp(self) -> Stamp:
        """The stamp of the current rows."""
        stamp = self.head.current
        assert stamp is not None
        return stamp

    def run(self, step: str) -> None:
        self.steps.append(step)
        STEPS[step](self)

    def append(self, count: int = 8, *, fits: bool = False) -> None:
        """Append records to the topic. fits: only values that fit the model."""
        make = goods if fits else some_value
        found = [(self.chance.choice(KEYS), make(self.chance)) for _ in range(self.chance.randrange(1, count))]
        self.topic.append(*found)

    def export(self) -> bool:
        """Export what is new. False: only Spark can make this export, so nothing was done."""
        plan = plan_from_history(self.topic.export, self.topic.ranges(), NO_BOUNDS)
        if plan is None or plan.rebuilt:
            return False
        self.topic.run_export()
        self.versions.append(self.rows())
        return True

    def rows(self) -> list[Row]:
        """The rows of the table, sorted by place."""
        found: list[Row] = self.table.to_pyarrow_table().to_pylist()
        return sorted(found, key=lambda row: (row["_partition"], row["_offset"]))

    def commit(self, rows: pa.Table, stamp: Stamp) -> None:
        """Replace all rows and columns in one commit with a stamp."""
        properties = CommitProperties(
            custom_metadata={"userMetadata": stamp.to_json()},
            app_transactions=[Transaction(stamp.app_id, stamp.version)],
        )
        write_deltalake(self.table, rows, mode="overwrite", schema_mode="overwrite", commit_properties=properties)

    def next_stamp(self) -> Stamp:
        """A stamp of a commit that changes neither rows nor positions, without a chain."""
        head, stamp = self.head, self.stamp
        return new_stamp(self.topic.export, head, stamp.table_id, stamp.positions, stamp.recent, stamp.began)

    def move_oldest(self) -> None:
        """The table can no longer be restored to a version before the newest one."""
        self._oldest = self.head.version

    def some_version(self) -> int | None:
        """A version to which the table can be restored; None if there is none but the newest."""
        newest = self.head.version
        return self.chance.randrange(self._oldest, newest) if self._oldest < newest else None

    def some_stamped_version(self) -> int | None:
        """A version with a stamp of the chain, from which `prove --since` may begin; None if there is none."""
        versions = [
            each.version for each in DeltaLog(self.topic.export.table).commits()
            if (stamp := stamp_in(each)) is not None and stamp.chain is not None
        ]  # fmt: skip
        return self.chance.choice(versions) if versions else None


def _export(history: History) -> None:
    for _ in range(history.chance.randrange(1, 3)):
        history.append()
    history.export()


def _retention(history: History) -> None:
    """Delete records that were exported."""
    if not history.export():
        return
    topic = history.topic
    number = history.chance.randrange(len(topic.state().partitions))
    part = topic.state().partitions[number]
    topic.delete_records(number, history.chance.randint(part.log_start_offset, part.high_watermark))
    history.has_whole_log = False


def _compaction(history: History) -> None:
    history.topic.compact()
    history.has_whole_log = False


def _partitions(history: History) -> None:
    history.topic.topics.alter("orders", partitions=len(history.topic.state().partitions) + 1)
    history.has_whole_log = False


def _optimize(history: History) -> None:
    history.table.optimize.compact()


def _vacuum(history: History) -> None:
    history.table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    history.move_oldest()


def _clean_log(history: History) -> None:
    """Delete older commits, as Delta does after a checkpoint."""
    history.table.create_checkpoint()
    # Without the stamp of the current rows, nothing can be proved.
    stamped = [
        each.version for each in DeltaLog(history.topic.export.table).commits() if stamp_in(each) == history.stamp
    ]
    first = history.chance.randint(1, stamped[-1])
    for version in range(first):
        commit_file(history.topic.export.table, version).unlink(missing_ok=True)  # type: ignore[call-arg]
    history.move_oldest()


def _restore(history: History) -> None:
    version = history.some_version()
    if version is not None:
        history.table.restore(version)


def _widen(history: History) -> None:
    if history.topic.export.schema == schema_of(WideGoods) or history.head.current is None:
        return
    history.topic.export = replace(history.topic.export, schema=schema_of(WideGoods))
    fit_skipping(history.topic.export.table, table_columns(history.topic.export))
    stamp = history.next_stamp()
    if stamp_has_chain(history):
        stamp = NextLink(history.head).add_to(stamp)
    history.commit(history.table.to_pyarrow_table().cast(nullable_columns(table_columns(history.topic.export))), stamp)
    history.move_oldest()


def _rebuild(history: History) -> None:
    """Make the rows again from the log. Rows whose records are gone are lost."""
    if not history.export():
        return
    topic, export = history.topic, history.topic.export
    ends = {number: each.last_stable_offset for number, each in topic.ranges().items()}
    other = f"{topic.root}/rebuilt-{len(history.steps)}"
    topic.export = replace(export, table=f"{other}/table", dead_letters=f"{other}/dead_letters")
    topic.run_export()
    is_empty = not is_table(topic.export.table)
    rows = (
        nullable_columns(table_columns(export)).empty_table()
        if is_empty
        else table_at(topic.export.table).to_pyarrow_table()
    )
    topic.export = export
    head, before = history.head, history.stamp
    began = Began({}, before.began.partitions if before.began is not None else 1)
    stamp = new_stamp(export, head, before.table_id, ends, Recent(), began)
    if export.digest:
        came = sums_by_partition(rows["_partition"], rows[DIGEST.name])
        stamp = NextLink(replace(head, current=None)).add_to(stamp, came)
    history.commit(rows, stamp)
    history.versions.append(history.rows())


def stamp_has_chain(history: History) -> bool:
    return history.stamp.chain is not None


STEPS: dict[str, Callable[[History], None]] = {
    "export": _export,
    "records that are not exported": lambda history: history.append(),
    "retention": _retention,
    "compaction": _compaction,
    "time": lambda history: history.topic.clock.advance(61_000),
    "partitions": _partitions,
    "OPTIMIZE": _optimize,
    "VACUUM": _vacuum,
    "clean-up of the log": _clean_log,
    "RESTORE": _restore,
    "wider columns": _widen,
    "rebuild": _rebuild,
}
