"""The last transaction of an export: plans of its statements, runs without tasks, damaged positions, topics created again."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import pytest

from pipeline.delta.export_plan import ExportBounds
from pipeline.jdbc import database_export
from pipeline.jdbc.connecting import connected
from pipeline.jdbc.merge_sql import delete_rebuilt
from pipeline.jdbc.staging import Staging, create_staging
from pipeline.settings.jdbc_settings import DatabaseKind
from storage_engine.errors import ConflictError
from tests.pipeline.jdbc.shop import Shop, sql


def test_planner_of_postgresql_joins_the_keys_of_a_rebuild_and_knows_their_number(shop: Shop) -> None:
    for number in range(5):
        shop.log.add(b"%d" % number, number)
    with patch.object(database_export, "drop_staging"):
        shop.run()
    keys, changes = (next(each for each in shop.staging_tables() if each.endswith(x)) for x in ("_keys", "_changes"))
    if shop.target.kind is DatabaseKind.POSTGRESQL:
        known = "SELECT reltuples::integer FROM pg_class WHERE relname = '{}'"
        assert [sql(shop.target, known.format(each)) for each in (keys, changes)] == [[(5,)], [(5,)]]
        staging = Staging(shop.target)
        with connected(shop.target) as database:
            create_staging(database, shop.export, staging)
            plan = str(database.rows(f"EXPLAIN {delete_rebuilt(database, staging, {0: 0})}"))
        assert "Anti Join" in plan
        assert "SubPlan" not in plan


def test_run_without_tasks_moves_the_position(shop: Shop) -> None:
    shop.log.add(b"a", 1)
    shop.run()
    shop.log.add(b"a", 2)
    done = shop.run(fill_tables=lambda plan, staging: [])
    assert (done.records, done.written, done.table_version) == (0, 0, 1)
    assert shop.run().records == 0


@pytest.mark.parametrize(
    "stamp",
    ["", "[]", '{"lakelog": []}', '{"lakelog": {}}', '{"lakelog": {"positions": {"x": 1}}}',
     '{"lakelog": {"positions": {}, "format": "new"}}', '{"lakelog": {"positions": {}, "other": 1}}'],
)  # fmt: skip
def test_damaged_position_is_named(shop: Shop, stamp: str) -> None:
    shop.log.add(b"a", 1)
    shop.run()
    positions = f"{shop.name(shop.target.schema)}.lakelog_positions"
    sql(shop.target, f"UPDATE {positions} SET stamp = '{stamp}' WHERE target = '{shop.target.table}'")
    with pytest.raises(ConflictError, match="Restore the column stamp"):
        shop.run()


def test_dead_letters_of_a_topic_that_was_created_again_are_kept(shop: Shop) -> None:
    shop.log.add(b"a", b"{}")
    shop.run()
    sql(shop.target, f"DROP TABLE {shop.table}")
    positions = f"{shop.name(shop.target.schema)}.lakelog_positions"
    sql(shop.target, f"DELETE FROM {positions} WHERE target = '{shop.target.table}'")
    old, new = shop.export.topic_id, "BBBBBBBBBBBBBBBBBBBBBB"
    shop.export = replace(shop.export, topic_id=new)
    shop.log.records.clear()
    shop.log.add(b"a", b"[]")
    shop.run()
    shop.run(bounds=ExportBounds(from_offsets={0: 0}))
    assert sorted(shop.letters("topic_id", "offset", "value")) == [(old, 0, b"{}"), (new, 0, b"[]")]
