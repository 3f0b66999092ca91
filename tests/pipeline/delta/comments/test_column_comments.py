"""Tests that the columns of an exported table have the descriptions of the model as comments."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from pydantic import Field

from pipeline.delta.comments.column_comments import write_comments
from pipeline.delta.export_plan import Export, ExportMode
from pipeline.delta.table_history import read_head
from schemas.event_model import EventModel
from storage_engine.errors import UnsupportedError
from tests.pipeline.delta.order_log import Log, rows, run, run_small
from tests.pipeline.delta.order_models import schema_of
from tests.roots.delta_tables import commit_file, table_at


class Part(EventModel):
    weight: float | None = Field(default=None, description="in kg")


class Described(EventModel):
    number: int = Field(description="of the order")
    colour: str | None = None
    parts: list[Part] | None = None


class DescribedAgain(EventModel):
    number: int = Field(description="of the shop's order")
    colour: str | None = Field(default=None, description="as in the catalogue")
    parts: list[Part] | None = None


def comments(path: str) -> dict[str, str]:
    """The comments that deltalake shows, by the path of the field."""

    def below(node: Any, outer: str) -> dict[str, str]:
        if not isinstance(node, dict):
            return {}
        found = below(node.get("elementType"), f"{outer}[]")
        for field in node.get("fields", ()):
            if "comment" in field["metadata"]:
                found[f"{outer}.{field['name']}"] = field["metadata"]["comment"]
            found |= below(field["type"], f"{outer}.{field['name']}")
        return found

    return below(json.loads(table_at(path).schema().to_json()), "")


FIRST = {".number": "of the order", ".parts[].weight": "in kg"}
SECOND = {".number": "of the shop's order", ".colour": "as in the catalogue", ".parts[].weight": "in kg"}


@pytest.mark.parametrize("log", [False, True], indirect=True, ids=["without Spark", "with Spark"])
@pytest.mark.parametrize("mode", [ExportMode.UPSERT, ExportMode.APPEND])
def test_a_changed_description_is_one_commit_that_changes_only_comments(
    log: Log, upsert: Export, mode: ExportMode
) -> None:
    export = replace(upsert, mode=mode, schema=schema_of(Described), digest=True)
    log.add(b"a", 1)
    run(log, export)
    assert write_comments(export) == table_at(export.table).version()
    assert comments(export.table) == FIRST
    assert write_comments(export) is None
    log.add(b"b", 2)
    log.add(b"a", 3)
    run(log, export)
    assert comments(export.table) == FIRST
    before, there = table_at(export.table), rows(export.table)
    described = replace(export, schema=schema_of(DescribedAgain))
    assert write_comments(described) == before.version() + 1
    after = table_at(export.table)
    assert comments(export.table) == SECOND
    assert (after.file_uris(), after.protocol(), rows(export.table)) == (before.file_uris(), before.protocol(), there)
    assert after.metadata().configuration == before.metadata().configuration
    assert after.metadata().id == before.metadata().id
    actions = [json.loads(each) for each in commit_file(export.table, after.version()).read_bytes().splitlines()]
    assert [next(iter(each)) for each in actions] == ["commitInfo", "metaData"]
    log.add(b"c", 4)
    assert run_small(log, described) is not None  # comments need no Spark
    head = read_head(export.table)
    assert head is not None
    assert head.current is not None
    assert (head.current.chain is not None, head.foreign) == (True, None)  # the digests continue
    assert comments(export.table) == SECOND


def test_spark_shows_the_comments_also_of_columns_that_it_has_added(log: Log, upsert: Export) -> None:
    log.add(b"a", 1)
    run(log, upsert)  # the table of the model without parts
    described = replace(upsert, schema=schema_of(Described))
    log.add(b"b", 2)
    assert run_small(log, described) is None  # Spark has to add a column
    run(log, described)
    write_comments(described)
    shown = log.spark.sql(f"DESCRIBE TABLE delta.`{described.table}`").where("col_name = 'number'").first()
    assert shown is not None
    assert shown["comment"] == "of the order"
    assert comments(described.table) == FIRST


def test_a_comment_of_somebody_else_stays_where_the_model_says_nothing(log: Log, upsert: Export) -> None:
    export = replace(upsert, schema=schema_of(Described))
    log.add(b"a", 1)
    run(log, export)
    table_at(export.table).alter.set_column_metadata("colour", {"comment": "by hand"})
    table_at(export.table).alter.set_column_metadata("number", {"comment": "by hand"})
    write_comments(export)
    assert comments(export.table) == {**FIRST, ".colour": "by hand"}


def test_without_a_table_or_a_description_nothing_is_written(log: Log, upsert: Export) -> None:
    assert write_comments(replace(upsert, schema=schema_of(Described))) is None
    log.add(b"a", 1)
    run(log, upsert)
    version = table_at(upsert.table).version()
    assert write_comments(upsert) is None
    assert table_at(upsert.table).version() == version


def test_a_table_with_a_feature_that_lakelog_does_not_know_is_left_alone(log: Log, upsert: Export) -> None:
    export = replace(upsert, schema=schema_of(Described))
    log.add(b"a", 1)
    run(log, export)
    log.spark.sql(f"ALTER TABLE delta.`{export.table}` SET TBLPROPERTIES ('delta.enableInCommitTimestamps' = 'true')")
    version = table_at(export.table).version()
    with pytest.raises(UnsupportedError) as raised:
        write_comments(export)
    assert (raised.value.place, raised.value.problem) == (
        export.table,
        "needs the feature inCommitTimestamp of Delta's protocol, so the comments of its columns cannot be written",
    )
    assert table_at(export.table).version() == version
