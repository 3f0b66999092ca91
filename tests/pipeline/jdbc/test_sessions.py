"""Settings of servers that could stop an export: time limits, sizes of packets, and ways to log in."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from uuid import uuid4

import pytest

from pipeline.jdbc.connecting import connected
from pipeline.jdbc.database import DatabaseAccessError, DatabaseFailedError
from pipeline.settings.jdbc_settings import DatabaseKind, DatabaseTarget
from tests.pipeline.jdbc.shop import Shop, sql
from tests.servers.databases import Databases


@contextmanager
def variables(target: DatabaseTarget, **values: int) -> Iterator[None]:
    """Set variables of the server MariaDB for new sessions, for the time of the block."""
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


def test_record_that_is_larger_than_a_packet_of_mariadb_is_named(databases: Databases) -> None:
    target = replace(databases.administrator(DatabaseKind.MARIADB), table=f"orders_{uuid4().hex[:12]}")
    shop = Shop(target)
    shop.export = replace(shop.export, schema=None)
    shop.log.add(b"a", b"x" * 600_000)
    with variables(target, max_allowed_packet=1 << 20), pytest.raises(DatabaseFailedError) as raised:
        shop.run()
    assert "max_allowed_packet is 1,048,576" in str(raised.value)
    assert shop.run().written == 1


class MySqlLogin(threading.Thread):
    """A server that asks for a password as MySQL 8 does by default (caching_sha2_password), and then ends."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]

    def run(self) -> None:
        with self.listener, self.listener.accept()[0] as client:
            salt = b"12345678" + b"123456789012"
            able = 0x000FA20D  # among others: protocol 4.1, secure login, plugins; no TLS
            hello = b"\x0a8.0.36\0" + struct.pack("<I", 1) + salt[:8] + b"\0" + struct.pack("<H", able & 0xFFFF)
            hello += b"\xff" + struct.pack("<HHB", 2, able >> 16, 21) + b"\0" * 10 + salt[8:] + b"\0"
            self._send(client, 0, hello + b"caching_sha2_password\0")
            client.recv(4096)
            self._send(client, 2, b"\x01\x04")  # the server does not know the password's hash yet
            client.recv(4096)
            self._send(client, 4, b"\x01-----BEGIN PUBLIC KEY-----")
            client.recv(4096)

    def _send(self, client: socket.socket, number: int, payload: bytes) -> None:
        client.sendall(struct.pack("<I", len(payload))[:3] + bytes([number]) + payload)


def test_login_of_mysql_without_tls_is_explained() -> None:
    server = MySqlLogin()
    server.start()
    target = DatabaseTarget(
        DatabaseKind.MYSQL, "127.0.0.1", server.port, "shop", "shop", "t", "clerk", "Clerk-secret-1"
    )
    with pytest.raises(DatabaseAccessError, match="Set `tls: on`") as raised, connected(target):
        pass
    assert "Clerk-secret" not in str(raised.value)
    server.join(10)
