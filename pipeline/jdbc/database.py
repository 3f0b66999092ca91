"""Declares the functions of a database that an export needs, and the errors of databases.

No SQL statement has parameters: `literal` and `name` quote values and identifiers by the rules of the database. So a
percent sign in a name is an ordinary character. In its message about a failed statement, a database can quote values.
So no error contains such a message. Instead, the error has the database's code, and the driver's name for this code.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from pipeline.delta.export_plan import ExportRefusedError, TableSchemaError
from pipeline.settings.jdbc_settings import DatabaseTarget
from storage_engine.errors import StorageAccessError, StorageError, StorageUnavailableError

AGAIN = "Nothing is lost: start the job again."
LONGEST_KEY = 2048
"""The longest key of a row, in bytes. A primary key of PostgreSQL has at most 2,704 bytes."""
LOCK_SECONDS = 60
"""How long a statement waits for a lock of another run."""


class DatabaseUnavailableError(StorageUnavailableError):
    """The server cannot be reached, or the connection was lost."""


class DatabaseAccessError(StorageAccessError):
    """The user or the password is wrong, the database does not exist, or the user lacks a right."""


class DatabaseFailedError(StorageError):
    """The database refused a statement."""


class DuplicateKeyError(DatabaseFailedError):
    """A unique index refuses a row."""


class NotExportedTableError(ExportRefusedError):
    """No export has written the table, or the position belongs to another table."""


class ColumnTypeError(TableSchemaError):
    """A column of the table cannot store the values of the model."""


class ColumnRuleError(TableSchemaError):
    """The database would refuse what an export writes into a column, because the column is NOT NULL, or would change it, because
    the database writes the column by itself."""


@dataclass(frozen=True)
class Column:
    """A column of an existing table.

    has_default: if an INSERT does not name the column, the database fills it: with a default, a counter, or a generated
        value.
    is_automatic: the database writes the column by itself, also if a statement names another value or changes other
        columns: a generated column, a counter, or a column with ON UPDATE.
    character_set: how a column of a text type stores texts. None: the column has another type, or the database stores
        every text unchanged.
    """

    type: str
    allows_null: bool = True
    has_default: bool = False
    is_automatic: bool = False
    character_set: str | None = None

    @property
    def can_be_left_out(self) -> bool:
        """Whether a statement may insert a row without a value for this column."""
        return self.allows_null or self.has_default

    @property
    def can_be_set_to_null(self) -> bool:
        return self.allows_null and not self.is_automatic


class Database(ABC):
    """A connection to a database. Only one thread may use it.

    The connection is in autocommit mode, except in `transaction`.
    """

    key_type: ClassVar[str]
    text_type: ClassVar[str]
    bytes_type: ClassVar[str]
    moment_type: ClassVar[str]
    flag_type: ClassVar[str]
    true: ClassVar[str]
    name_type: ClassVar[str]
    table_options: ClassVar[str] = ""
    character_set: ClassVar[str | None] = None
    system_columns: ClassVar[frozenset[str]] = frozenset()
    """The names of the columns that the database itself adds to each table; no other column can have such a name."""

    def __init__(self, target: DatabaseTarget) -> None:
        self.target = target

    # --- Statements ---------------------------------------------------------------------------------------------

    @abstractmethod
    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a query.

        Raises:
            DatabaseUnavailableError: the connection was lost.
            DatabaseAccessError: the user lacks a right.
            ConflictError: another session held a lock for too long, or was in a deadlock with this one.
            DuplicateKeyError: a unique index refuses a row.
            DatabaseFailedError: any other failure.
        """

    @abstractmethod
    def run(self, sql: str) -> int:
        """Run a statement, and return the number of rows that it changed. It raises the errors of `rows`."""

    @abstractmethod
    def load(self, table: str, batch: pa.RecordBatch) -> None:
        """Insert the rows of a batch into the columns of the same names. The batch is inserted as a whole or not at all,
        unless a transaction is open. It raises the errors of `rows`.

        table: the quoted name.
        """

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit all statements of the block together; none of them if the block raises an error."""
        self.run("BEGIN")
        try:
            yield
        except BaseException:
            self.roll_back()
            raise
        self.commit()

    @abstractmethod
    def commit(self) -> None:
        """Commit the open transaction.

        Raises:
            DatabaseUnavailableError: it is not known whether the transaction was committed.
        """

    @abstractmethod
    def roll_back(self) -> None:
        """End the open transaction without its changes. An error of the connection has the same effect."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection. The database releases its locks."""

    def analyze(self, table: str) -> None:  # noqa: B027  # MariaDB and MySQL do this in the background
        """Tell the database's planner about the rows of a table that was just filled, if this needs a command. The table's
        name is quoted."""

    # --- SQL ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def name(self, identifier: str) -> str:
        """The identifier, quoted."""

    def table(self, name: str) -> str:
        """The quoted name of a table in the schema of the target."""
        return f"{self.name(self.target.schema)}.{self.name(name)}"

    @abstractmethod
    def literal(self, text: str) -> str:
        """The text, quoted."""

    @abstractmethod
    def upsert(self, columns: Sequence[str]) -> str:
        """The clause after INSERT ... SELECT that replaces these columns of the row with the same `_key`."""

    # --- Locks of runs ------------------------------------------------------------------------------------------

    @abstractmethod
    def lock_run(self, name: str) -> bool:
        """Take the lock of this name until the connection ends; False if another session holds it."""

    @abstractmethod
    def unlock_run(self, name: str) -> None:
        """Release the lock."""

    # --- Tables and types ---------------------------------------------------------------------------------------

    def lossy_encoding(self) -> str | None:
        """The encoding of the database, if this encoding cannot store every text; else None."""
        return None

    @abstractmethod
    def columns(self, table: str) -> Mapping[str, Column] | None:
        """The columns of a table, by name; None if there is no such table."""

    @abstractmethod
    def problem_of(self, table: str) -> str | None:
        """Why an existing table cannot be the table of an export, apart from its columns; None if it can."""

    @abstractmethod
    def unique_indexes(self, table: str) -> Mapping[str, bool]:
        """The names of the unique indexes of a table, the primary key among them. The value is whether `upsert` can use
        the index: whether its only column is the whole `_key`."""

    @abstractmethod
    def tables_like(self, prefix: str) -> list[str]:
        """The names of the tables that begin with this text."""

    @abstractmethod
    def type_of(self, kind: pa.DataType) -> str:
        """The type of a column for values of an Arrow type."""

    @abstractmethod
    def accepts(self, found: str, kind: pa.DataType) -> bool:
        """Whether a column of the type `found` stores each value of an Arrow type unchanged."""

    @abstractmethod
    def unfit(self, column: pa.Array) -> tuple[str, pa.BooleanArray] | None:
        """A kind of value that the database cannot store, and the rows with such a value; None if it can store all."""

    def same_name(self, one: str, other: str) -> bool:
        """Whether two names of columns are the same for the database."""
        return one == other
