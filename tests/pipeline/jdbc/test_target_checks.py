"""Tables that a user created or changed: an export refuses each table that it cannot fill."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeline.jdbc.connecting import connected
from pipeline.jdbc.database import ColumnTypeError, DatabaseFailedError, NotExportedTableError
from pipeline.settings.jdbc_settings import DatabaseKind
from schemas.event_schema import EventSchema
from storage_engine.errors import ConflictError, LogError
from tests.pipeline.jdbc.shop import Shop, sql


def is_postgresql(shop: Shop) -> bool:
    return shop.target.kind is DatabaseKind.POSTGRESQL


def create(shop: Shop, more: str = "", *, number: str = "bigint", key: str = "PRIMARY KEY") -> None:
    """Create the table of an export of orders, with more columns or constraints."""
    moment, text, raw = "datetime(6)", "longtext CHARACTER SET utf8mb4", "varbinary(2048)"
    if is_postgresql(shop):
        moment, text, raw = "timestamptz", "text", "bytea"
    sql(
        shop.target,
        f"CREATE TABLE {shop.table} (_key {raw} {key}, number {number}, colour {text}, _partition integer, _offset bigint,"
        f" _timestamp {moment}, _stale_since {moment}, _stale_partition integer, _stale_offset bigint{more})",
    )


def index(shop: Shop, kind: str, columns: str = "(number)") -> str:
    name = f"{shop.target.table}_n"
    sql(shop.target, f"CREATE {kind} {name} ON {shop.table} {columns}")
    return name


UNIQUE = {
    "another column": ("", "(number)"),
    "more columns": ("", "(_key, number)"),
    "a primary key": (", PRIMARY KEY (number)", None),
}


@pytest.mark.parametrize("case", UNIQUE)
def test_table_with_another_unique_index_is_refused(shop: Shop, case: str) -> None:
    """Two keys may have the same number: neither may take the row of the other."""
    more, columns = UNIQUE[case]
    create(shop, more, key="NOT NULL UNIQUE" if more else "PRIMARY KEY")
    name = f"{shop.target.table}_pkey" if is_postgresql(shop) else "PRIMARY"
    if columns:
        name = index(shop, "UNIQUE INDEX", columns)
    shop.log.add(b"a", 1)
    shop.log.add(b"b", 1)
    with pytest.raises(NotExportedTableError, match=f"the index {name} is unique"):
        shop.run()
    assert shop.rows("_key") == []


def test_unique_index_that_was_added_later_is_refused(shop: Shop) -> None:
    shop.log.add(b"a", 1)
    shop.run()
    name = index(shop, "UNIQUE INDEX")
    shop.log.add(b"b", 1)
    with pytest.raises(NotExportedTableError, match=f"the index {name} is unique"):
        shop.run()
    assert shop.rows("_key", "number") == [(b"a", 1)]


def test_unusable_unique_index_of_the_key_is_refused(shop: Shop) -> None:
    if is_postgresql(shop):
        create(shop, ", CONSTRAINT late UNIQUE (_key) DEFERRABLE", key="NOT NULL")
    else:
        create(shop, ", UNIQUE late (_key(100))", key="NOT NULL")
    shop.log.add(b"a", 1)
    with pytest.raises(NotExportedTableError, match=r"no primary key or unique index .*\(unique indexes: late\)"):
        shop.run()


@pytest.mark.parametrize("name", ["ctid", "xmin", "xmax", "cmin", "cmax", "tableoid", "CTID", "oid"])
def test_field_with_the_name_of_a_system_column_is_refused_by_postgresql(shop: Shop, name: str) -> None:
    """A name in capitals is another name. PostgreSQL has no system column oid since version 12."""
    shop.export = replace(shop.export, schema=EventSchema(f"{name} BIGINT"))
    shop.log.add(b"a", value=b'{"%s": 7}' % name.encode())
    if is_postgresql(shop) and name not in ("CTID", "oid"):
        with pytest.raises(ColumnTypeError) as raised:
            shop.run(fill_tables=lambda plan, staging: pytest.fail("records were read"))
        assert str(raised.value) == (
            f"{shop.target}: the field {name} has the name of a system column of the database. Rename the field."
        )
        assert sql(shop.target, f"SELECT 1 FROM pg_tables WHERE tablename LIKE '%{shop.target.table}%'") == []
    else:
        shop.run()
        assert shop.rows("_key", name) == [(b"a", 7)]


def test_further_index_that_is_not_unique_is_allowed(shop: Shop) -> None:
    create(shop)
    index(shop, "INDEX")
    shop.log.add(b"a", 1)
    shop.log.add(b"b", 1)
    shop.run()
    assert shop.rows("_key", "number") == [(b"a", 1), (b"b", 1)]


def test_row_that_a_unique_index_refuses_is_not_the_work_of_another_run(shop: Shop) -> None:
    create(shop)
    name = index(shop, "UNIQUE INDEX")
    statement = f"INSERT INTO {shop.table} (_key, number) VALUES ('a', 7654321), ('b', 7654321)"
    with connected(shop.target) as database, pytest.raises(LogError) as raised:
        database.run(statement)
    assert isinstance(raised.value, DatabaseFailedError)
    assert not isinstance(raised.value, ConflictError)
    assert name in str(raised.value)
    assert "7654321" not in str(raised.value)
