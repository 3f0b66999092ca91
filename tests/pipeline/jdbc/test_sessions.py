"""Settings of servers that could stop an export: time limits, sizes of packets, and ways to log in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from uuid import uuid4

import pytest

from pipeline.jdbc.connecting import connected
from pipeline.jdbc.database import DatabaseAccessError, DatabaseFailedError
from pipeline.settings.jdbc_settings import DatabaseKind, DatabaseTarget
from tests.pipeline.jdbc.shop import Shop, sql
from tests.servers.sql.databases import Databases


@contextmanager
def variables(target: DatabaseTarget, **values: int) -> Iterator[None]:
    """Set variables of MariaDB or MySQL for new sessions, for the time of the block."""
    before = {name: sql(target, f"SELECT @@GLOBAL.{name}")[0][0] for name in values}
    for name, value in values.items():
        sql(target, f"SET GLOBAL {name} = {value}")
    try:
        yield
    finally:
        for name, value in before.items():
            sql(target, f"SET GLOBAL {name} = {value}")


def test_time_limits_of_postgresql_do_not_end_a_run(databases: Databases) -> None:
    target = databases.administrator(DatabaseKind.POSTGRESQL)
    names = ("statement_timeout", "idle_in_transaction_session_timeout", "idle_session_timeout", "transaction_timeout")
    user = f"hasty_{uuid4().hex[:6]}"
    sql(target, f"CREATE USER {user} PASSWORD 'Hasty-secret-1'")
    for name in names:
        sql(target, f"ALTER ROLE {user} SET {name} = '20s'")
    with connected(replace(target, user=user, password="Hasty-secret-1")) as database:
        assert [database.rows(f"SHOW {name}")[0][0] for name in names] == ["0"] * 4


def test_time_limits_of_mysql_do_not_end_a_run(databases: Databases) -> None:
    target = databases.administrator(DatabaseKind.MYSQL)
    with variables(target, wait_timeout=20, max_execution_time=20_000), connected(target) as database:
        assert database.rows("SELECT @@wait_timeout, @@max_execution_time") == [(28800, 0)]


def test_time_limits_of_mariadb_do_not_end_a_run(databases: Databases) -> None:
    target = databases.administrator(DatabaseKind.MARIADB)
    with (
        variables(target, wait_timeout=20, max_statement_time=20, idle_transaction_timeout=20),
        connected(target) as database,
    ):
        found = database.rows("SELECT @@wait_timeout, @@max_statement_time, @@idle_transaction_timeout")
    assert found == [(28800, 0, 0)]
    with variables(target, wait_timeout=99999), connected(target) as database:
        assert database.rows("SELECT @@wait_timeout") == [(99999,)]


@pytest.mark.parametrize("kind", [DatabaseKind.MARIADB, DatabaseKind.MYSQL], ids=str)
def test_record_that_is_larger_than_a_packet_is_named(databases: Databases, kind: DatabaseKind) -> None:
    target = replace(databases.administrator(kind), table=f"orders_{uuid4().hex[:12]}")
    shop = Shop(target)
    shop.export = replace(shop.export, schema=None)
    shop.log.add(b"a", b"x" * 600_000)
    with variables(target, max_allowed_packet=1 << 20), pytest.raises(DatabaseFailedError) as raised:
        shop.run()
    assert "max_allowed_packet is 1,048,576" in str(raised.value)
    assert shop.run().written == 1


def test_login_of_mysql_without_tls_is_explained(databases: Databases) -> None:
    """MySQL wants the password encrypted (caching_sha2_password), unless the user has logged in before."""
    administrator = databases.administrator(DatabaseKind.MYSQL)
    user = f"clerk_{uuid4().hex[:6]}"
    sql(administrator, f"CREATE USER {user} IDENTIFIED BY 'Clerk-secret-1'")
    target = replace(administrator, user=user, password="Clerk-secret-1", tls="off")
    with pytest.raises(DatabaseAccessError, match="Set `tls: on`") as raised, connected(target):
        pass
    assert "Clerk-secret" not in str(raised.value)
