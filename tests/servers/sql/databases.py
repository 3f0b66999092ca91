"""The database servers of the tests. Each starts when the first test asks for it, and runs until the last test."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Self

from pipeline.settings.jdbc_settings import DatabaseKind, DatabaseTarget
from tests.servers.sql.mariadb import mariadb_server
from tests.servers.sql.mysql import mysql_server
from tests.servers.sql.postgresql import postgresql_server

_SERVERS = {
    DatabaseKind.POSTGRESQL: postgresql_server,
    DatabaseKind.MARIADB: mariadb_server,
    DatabaseKind.MYSQL: mysql_server,
}


class Databases(ExitStack):
    """Servers by kind."""

    def __init__(self) -> None:
        super().__init__()
        self._started: dict[DatabaseKind, DatabaseTarget] = {}

    def __enter__(self) -> Self:
        super().__enter__()
        return self

    def administrator(self, kind: DatabaseKind) -> DatabaseTarget:
        """A user of the server who may do everything, in a database that the tests fill. The target's table is not used."""
        if kind not in self._started:
            self._started[kind] = self.enter_context(_SERVERS[kind]())
        return self._started[kind]
