"""A root with a topic of sales, and the settings of a job that exports it into a database."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import lakelog
from pipeline.settings.jdbc_settings import DatabaseTarget
from tests.pipeline.jdbc.shop import sql
from tests.sample_orders import random_order

PROJECT = Path(__file__).resolve().parents[3]
SETTINGS = """
root: {root}
topics:
  sales: {{partitions: 2, cleanup.policy: compact, schema: "id STRING NOT NULL, amount BIGINT NOT NULL"}}
export:
  topic: sales
  max.dead.letter.share: 1
  jdbc: {{url: "{url}", table: {table}, user: {user}, tls: {tls}}}
"""


class Sales:
    """The topic, and the rows and dead letters that its table must have."""

    def __init__(self, folder: Path, target: DatabaseTarget) -> None:
        self.target = target
        self.root, self.conf = folder / "root", folder / "sales.yaml"
        self.conf.write_text(
            SETTINGS.format(
                root=self.root, url=target.server, table=target.table, user=target.user, tls=f'"{target.tls}"'
            )
        )
        self.environment = {"LAKELOG_EXPORT_JDBC_PASSWORD": target.password}
        self._topic = lakelog.open(self.root, create=True).create_topic(
            "sales", partitions=2, config={"cleanup.policy": "compact"}
        )
        self._rows: dict[bytes, tuple[Any, ...]] = {}
        self._letters: list[tuple[Any, ...]] = []
        self._ends = [0, 0]

    def sell(self, records: int, chance: random.Random) -> None:
        """Append random records: values, tombstones and values that do not decode. A key has one partition."""
        made: list[list[dict[str, Any]]] = [[], []]
        for _ in range(records):
            key, amount, value = random_order(chance)
            partition = key[-1] % 2
            offset = self._ends[partition]
            self._ends[partition] += 1
            made[partition].append({"key": key, "value": value})
            before = self._rows.get(key)
            if amount == "much":
                self._letters.append((partition, offset, key, value))
                if before is not None and before[5] is None:
                    self._rows[key] = (*before[:5], offset)
            elif amount is None:
                self._rows.pop(key, None)
            else:
                self._rows[key] = (key, key.decode(), amount, partition, offset, None)
        for partition, batch in enumerate(made):
            if batch:
                self._topic.append(batch, partition=partition)

    def job(self, *options: str) -> subprocess.Popen[str]:
        """Start the job as a process."""
        return subprocess.Popen(
            [sys.executable, "-m", "jobs.export", "--conf", str(self.conf), *options],
            cwd=PROJECT, env={**os.environ, **self.environment}, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )  # fmt: skip

    def problems(self) -> list[str]:
        """The rows and dead letters that are lost or doubled in the database, compared with the sales."""
        names = "_key, id, amount, _partition, _offset, _stale_offset"
        rows = sorted(sql(self.target, f"SELECT {names} FROM {self.target.table}"))
        quote = '"' if self.target.kind == "postgresql" else "`"
        columns = ", ".join(f"{quote}{name}{quote}" for name in ("partition", "offset", "key", "value"))
        letters = sorted(sql(self.target, f"SELECT {columns} FROM {self.target.table}_dead_letters"))
        found = []
        if rows != sorted(self._rows.values()):
            found.append(f"rows differ: {set(rows) ^ set(self._rows.values())}, {len(rows)} rows")
        if letters != sorted(self._letters):
            found.append(f"dead letters differ: {set(letters) ^ set(self._letters)}, {len(letters)} letters")
        return found
