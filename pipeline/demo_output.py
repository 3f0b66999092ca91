"""Collects the final output of the demo: figures of the log and the table, sample rows, and commands to try next."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deltalake import DeltaTable

from lakelog.dead_letter_tables import ingest_dead_letters_key
from lakelog.delta_options import delta_options
from pipeline.delta.without_spark.table_opening import open_or_none
from pipeline.settings import Settings
from storage_engine.quantities import shown_size
from storage_engine.storage import Storage
from storage_engine.topic.chain.topic_state import TopicState

SAMPLE_COLUMNS = ("tailnum", "time_hour", "carrier", "flight", "origin", "dest", "arr_delay")
_SAMPLES = 5


@dataclass(frozen=True)
class LogSize:
    """The size of a topic's log: segments and committed bytes of all partitions."""

    segments: int
    size: int

    @classmethod
    def of(cls, state: TopicState) -> LogSize:
        return cls(sum(len(part.segments) for part in state.partitions), sum(part.size for part in state.partitions))

    def __str__(self) -> str:
        return f"{self.segments} segments, {shown_size(self.size)}"


def with_source(settings: Settings, directory: str) -> Settings:
    """The settings, changed so that ingest reads from this directory. directory: a path or URI."""
    ingest = settings.required_ingest()
    source = ingest.source.model_copy(update={"path": directory})
    return settings.model_copy(update={"ingest": ingest.model_copy(update={"source": source})})


def sample_rows(table: str) -> list[dict[str, str]]:
    """A few rows of the table as text, ordered by tail number. The rows are read without Spark, as an analyst would
    read them."""
    opened = DeltaTable(table, storage_options=delta_options(table))
    rows = opened.to_pyarrow_table(columns=list(SAMPLE_COLUMNS)).sort_by("tailnum").slice(0, _SAMPLES)
    return [
        {column: "-" if value is None else f"{value:%Y-%m-%d %H:%M}" if column == "time_hour" else str(value)
         for column, value in row.items()}
        for row in rows.to_pylist()
    ]  # fmt: skip


def table_rows(table: str) -> int:
    """How many rows a Delta table has; 0 if there is no table."""
    opened = open_or_none(table)
    return 0 if opened is None else int(opened.to_pyarrow_dataset().count_rows())


def next_steps(storage: Storage, topic: str, table: str) -> Sequence[str]:
    """The paths of the demo's files, and commands to try."""
    root = storage.uri if storage.root is None else _from_here(storage.root)
    lakelog = _from_here(Path(sys.executable).with_name("lakelog"))
    python = _from_here(Path(sys.executable))
    quoted = shlex.quote(root)
    query = f'from deltalake import DeltaTable; print(DeltaTable("{root}/{table}").to_pandas())'
    # On other storages, deltalake needs the storage options as an argument. A command must not print them.
    in_python = [f"  {python} -c {shlex.quote(query)}"] if storage.root is not None else []
    places = {
        "source": "the events that were ingested",
        f"meta/{topic}": "the topic's state, version by version",
        "data": "the topic's records",
        **({} if storage.view is None else {"log": "the same records as a Kafka log directory"}),
        table: "the Delta table",
        ingest_dead_letters_key(topic): "a Delta table of the flights without a tail number",
    }
    width = max(len(f"{root}/{key}/") for key in places) + 2
    return [
        "",
        "The files of the demo:",
        *(f"  {f'{root}/{key}/':<{width}}{what}" for key, what in places.items()),
        "",
        "Commands to try next:",
        f"  {lakelog} topics describe {topic} --root {quoted}",
        f"  {lakelog} read --topic {topic} --root {quoted} --from earliest --max 3 --format table",
        *in_python,
    ]


def _from_here(path: Path) -> str:
    """The path. A path below the current directory becomes relative."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
