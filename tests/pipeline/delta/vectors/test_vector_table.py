"""The commits of tables with deletion vectors."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

from pipeline.delta.export_plan import Export, ExportMode
from pipeline.delta.table_properties import TableLayout
from tests.pipeline.delta.order_log import Log, run_small
from tests.roots.delta_tables import commit_file


def stats_of(export: Export, version: int) -> list[str]:
    """The statistics of the files that a commit adds, as texts."""
    actions = [json.loads(line) for line in commit_file(export.table, version).read_bytes().splitlines()]
    return [each["add"]["stats"] for each in actions if "add" in each]


def test_the_bounds_of_a_file_that_gets_a_vector_keep_all_their_digits(append: Export, tmp_path: Path) -> None:
    """Spark writes bounds of decimals into Delta's log, if no property names the columns with statistics."""
    export = replace(append, mode=ExportMode.UPSERT, layout=TableLayout(deletion_vectors=True))
    log = Log(None)  # type: ignore[arg-type]  # no export here needs Spark
    log.add(b"a", 1)
    log.add(b"b", 2)
    assert run_small(log, export) is not None
    file = commit_file(export.table, 1)
    whole = '{"numRecords":2,"minValues":{"price":-1234567890123456.78,"tightBounds":true},"maxValues":{"e":1E+25}}'
    actions = [json.loads(line) for line in file.read_bytes().splitlines()]
    for each in actions:
        if "add" in each:
            each["add"]["stats"] = whole
    file.write_bytes("".join(json.dumps(each) + "\n" for each in actions).encode())
    log.add(b"b", 3)
    assert run_small(log, export) is not None
    marked = [each for each in stats_of(export, 2) if "price" in each]
    assert marked == [whole[:-1] + ',"tightBounds":false}']
    assert json.loads(marked[0], parse_float=Decimal)["minValues"]["price"] == Decimal("-1234567890123456.78")
