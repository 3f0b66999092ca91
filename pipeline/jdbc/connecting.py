"""Opens the database of an export. Each process and each task of Spark has its own connections."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.jdbc.database import Database
from pipeline.settings.jdbc_settings import DatabaseKind, DatabaseTarget


@contextmanager
def connected(target: DatabaseTarget) -> Iterator[Database]:
    """A connection, which is closed after the block.

    Raises:
        MissingPackageError: the driver is not installed.
        DatabaseAccessError: the user or the password is wrong, or there is no such database.
        DatabaseUnavailableError: the server cannot be reached.
    """
    if target.kind is DatabaseKind.POSTGRESQL:
        from pipeline.jdbc.postgresql import PostgreSql

        database: Database = PostgreSql(target)
    else:
        from pipeline.jdbc.mariadb import MariaDb

        database = MariaDb(target)
    try:
        yield database
    finally:
        database.close()
