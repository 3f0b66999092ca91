"""MariaDB and MySQL, with the driver PyMySQL. Rows are loaded with INSERT statements of many rows, because many servers
do not allow LOAD DATA LOCAL.

Timestamps are in UTC, because the type DATETIME has no time zone. Texts are stored unchanged, and compared byte by
byte. A statement that creates or drops a table commits the open transaction. So a transaction never contains such a
statement.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from lakelog.optional import optional
from pipeline.jdbc.database import (
    AGAIN,
    LOCK_SECONDS,
    LONGEST_KEY,
    Column,
    Database,
    DatabaseAccessError,
    DatabaseFailedError,
    DatabaseUnavailableError,
    DuplicateKeyError,
)
from pipeline.jdbc.value_text import escaped, is_bytes, lines_of
from pipeline.settings.jdbc_settings import DatabaseTarget
from storage_engine.errors import ConflictError

if TYPE_CHECKING:
    import pymysql

_CONFLICTS = {
    1205: f"another session holds a lock for more than {LOCK_SECONDS} seconds",
    1213: "this session and another one waited for each other",
    1020: "another session changed the same rows",
    1146: "another run dropped a table of this run",
}
_ACCESS = {
    1044: "the user has no right to this database",
    1045: "the user or the password is wrong",
    1049: "there is no such database",
    1142: "the user lacks a right",
    1227: "the user lacks a right",
    1698: "the server does not accept this user with a password",
}
_LOST = {2006, 2013, 2014, 2055, 1053, 1927, 0}
_ESCAPES = [("\\", "\\\\"), ("'", "\\'"), ("\0", "\\0")]
_TYPES = {
    pa.string(): "longtext",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.bool_(): "tinyint",
    pa.binary(): "longblob",
    pa.date32(): "date",
}
_ALSO_ACCEPTED = {
    "tinyint": {"smallint", "int", "bigint"},
    "smallint": {"int", "bigint"},
    "int": {"bigint"},
    "float": {"double"},
}
_WIDTH = re.compile(r"^(tinyint|smallint|int|bigint)\(\d+\)")
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_IDLE_SECONDS = 28_800
_NO_TIMEOUT = (
    "max_statement_time", "max_execution_time", "idle_transaction_timeout", "idle_write_transaction_timeout",
    "idle_readonly_transaction_timeout",
)  # fmt: skip
_INDEX = re.compile(r" for key '([^']+)'$")
_LARGEST_STATEMENT = 8 << 20


class MariaDb(Database):
    """A connection to MariaDB, from version 10.6 on, or to MySQL, from version 8.0 on."""

    key_type = f"varbinary({LONGEST_KEY})"
    text_type = "longtext character set utf8mb4 collate utf8mb4_bin"
    bytes_type = "longblob"
    moment_type = "datetime(6)"
    flag_type = "tinyint"
    true = "1"
    name_type = "varchar(255) character set utf8mb4 collate utf8mb4_bin"
    table_options = " ENGINE = InnoDB ROW_FORMAT = DYNAMIC"
    character_set = "utf8mb4"

    def __init__(self, target: DatabaseTarget) -> None:
        super().__init__(target)
        with optional("pymysql", "pymysql", "An export into MariaDB or MySQL"):
            import pymysql
        try:
            self._connection = pymysql.connect(
                host=target.host, port=target.port, database=target.database, user=target.user, password=target.password,
                autocommit=True, connect_timeout=10, charset="utf8mb4", local_infile=False, **_tls(target),
            )  # fmt: skip
        except (pymysql.Error, OSError) as error:
            raise _not_connected(target, error) from None
        except RuntimeError:  # PyMySQL cannot encrypt the password by itself
            raise DatabaseAccessError(
                target.server,
                f"the server wants the password of user {target.user} encrypted, as MySQL does by default",
                "Set `tls: on` or `tls: verified` in the section jdbc.",
            ) from None
        self.run(
            "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00',"
            f" innodb_lock_wait_timeout = {LOCK_SECONDS}, lock_wait_timeout = {LOCK_SECONDS}"
        )
        self.run("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        self._set_timeouts()
        self._packet = int(self.rows("SELECT @@max_allowed_packet")[0][0])
        self._most_bytes = min(_LARGEST_STATEMENT, self._packet // 2)

    def _set_timeouts(self) -> None:
        """Let the connection be idle while tasks work, and let statements take their time. The variables differ between
        the servers."""
        names = ", ".join(self.literal(each) for each in ("wait_timeout", *_NO_TIMEOUT))
        found = self.rows(f"SHOW SESSION VARIABLES WHERE Variable_name IN ({names})")
        wanted = {name: max(float(value), _IDLE_SECONDS) if name == "wait_timeout" else 0 for name, value in found}
        self.run("SET SESSION " + ", ".join(f"{name} = {value:.0f}" for name, value in wanted.items()))

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with self._errors(), self._connection.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())

    def run(self, sql: str) -> int:
        with self._errors(), self._connection.cursor() as cursor:
            return int(cursor.execute(sql))

    def load(self, table: str, batch: pa.RecordBatch) -> None:
        columns = ", ".join(self.name(each) for each in batch.schema.names)
        lines = lines_of(batch, _value_cell, "NULL", ",")
        self.run("BEGIN")
        try:
            for values in _in_statements(lines, self._most_bytes):
                statement = f"INSERT INTO {table} ({columns}) VALUES {values}"
                self._check_size(statement)
                self.run(statement)
        except BaseException:
            self.roll_back()
            raise
        self.commit()

    def _check_size(self, statement: str) -> None:
        """Refuse a statement for which the server would close the connection. Such a statement has only one row."""
        size = len(statement.encode()) + 1
        if size >= self._packet:
            raise DatabaseFailedError(
                str(self.target),
                f"a record needs a statement of {size:,} bytes, but the server's max_allowed_packet is {self._packet:,}",
                "Nothing was exported. Set max_allowed_packet of the server to a larger value.",
            )

    def commit(self) -> None:
        self.run("COMMIT")

    def roll_back(self) -> None:
        import pymysql

        with suppress(pymysql.Error, OSError):
            self._connection.rollback()

    def close(self) -> None:
        import pymysql

        with suppress(pymysql.Error, OSError):
            self._connection.close()

    def name(self, identifier: str) -> str:
        return "`" + identifier.replace("`", "``") + "`"

    def literal(self, text: str) -> str:
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("\0", "\\0") + "'"

    def upsert(self, columns: Sequence[str]) -> str:
        changes = ", ".join(f"{self.name(each)} = VALUES({self.name(each)})" for each in columns)
        return f"ON DUPLICATE KEY UPDATE {changes}"

    def lock_run(self, name: str) -> bool:
        return bool(self.rows(f"SELECT GET_LOCK({self.literal(name)}, 0)")[0][0])

    def unlock_run(self, name: str) -> None:
        self.rows(f"SELECT RELEASE_LOCK({self.literal(name)})")

    def columns(self, table: str) -> Mapping[str, Column] | None:
        is_computed = "coalesce(c.generation_expression, '') <> ''"
        found = self.rows(
            "SELECT c.column_name, c.column_type, c.is_nullable = 'YES', c.column_default IS NOT NULL OR"
            f" {is_computed} OR c.extra LIKE '%auto_increment%', {is_computed} OR c.extra LIKE '%auto_increment%' OR c.extra"
            " LIKE '%on update%', c.character_set_name FROM information_schema.columns c WHERE c.table_schema ="
            f" {self.literal(self.target.schema)} AND c.table_name = {self.literal(table)} ORDER BY c.ordinal_position"
        )
        columns = {
            name: Column(
                _WIDTH.sub(r"\1", _text(kind).lower()), bool(null), bool(default), bool(automatic), character_set
            )
            for name, kind, null, default, automatic, character_set in found
        }
        return columns or None

    def problem_of(self, table: str) -> str | None:
        place = f"table_schema = {self.literal(self.target.schema)} AND table_name = {self.literal(table)}"
        kind, engine = self.rows(f"SELECT table_type, engine FROM information_schema.tables WHERE {place}")[0]
        if kind != "BASE TABLE":
            return "is not a table"
        if (engine or "").lower() != "innodb":
            return f"has the engine {engine}, which has no transactions; InnoDB is needed"
        return None

    def unique_indexes(self, table: str) -> Mapping[str, bool]:
        found = self.rows(
            "SELECT index_name, count(*) = 1 AND coalesce(min(column_name) = '_key', 0) AND max(sub_part) IS NULL FROM"
            f" information_schema.statistics WHERE non_unique = 0 AND table_schema = {self.literal(self.target.schema)}"
            f" AND table_name = {self.literal(table)} GROUP BY index_name ORDER BY index_name"
        )
        return {name: bool(is_key) for name, is_key in found}

    def tables_like(self, prefix: str) -> list[str]:
        found = self.rows(
            "SELECT table_name FROM information_schema.tables WHERE table_schema ="
            f" {self.literal(self.target.schema)} AND left(table_name, {len(prefix)}) = {self.literal(prefix)}"
        )
        return [name for (name,) in found]

    def type_of(self, kind: pa.DataType) -> str:
        if pa.types.is_decimal(kind):
            return f"decimal({kind.precision},{kind.scale})"
        if pa.types.is_timestamp(kind):
            return "datetime(6)"
        if pa.types.is_nested(kind) or pa.types.is_string(kind):
            return self.text_type
        return _TYPES[kind]

    def accepts(self, found: str, kind: pa.DataType) -> bool:
        wanted = self.type_of(kind).split(" ", maxsplit=1)[0]
        if found == wanted or found in _ALSO_ACCEPTED.get(wanted, ()):
            return True
        numbers = _DECIMAL.fullmatch(found)
        if numbers is None or not pa.types.is_decimal(kind):
            return False
        precision, scale = int(numbers[1]), int(numbers[2])
        return bool(scale >= kind.scale and precision - scale >= kind.precision - kind.scale)

    def unfit(self, column: pa.Array) -> tuple[str, pa.BooleanArray] | None:
        if not pa.types.is_floating(column.type):
            return None
        return "MariaDB and MySQL have neither NaN nor infinity", pc.invert(pc.is_finite(column)).fill_null(False)

    def same_name(self, one: str, other: str) -> bool:
        return one.lower() == other.lower()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        import pymysql

        try:
            yield
        except (pymysql.Error, OSError) as error:
            raise self._named(error) from None

    def _named(self, error: pymysql.Error | OSError) -> Exception:
        place, code = str(self.target), _code(error)
        if code in _CONFLICTS:
            return ConflictError(place, _CONFLICTS[code], AGAIN)
        if code in _ACCESS:
            return DatabaseAccessError(
                place, f"{_ACCESS[code]} (error {code})", "docs/SECURITY.md lists the rights that an export needs."
            )
        if code in _LOST:
            return DatabaseUnavailableError(place, "the connection was lost", AGAIN)
        hint = "a row is larger than the server's max_allowed_packet" if code == 1153 else type(error).__name__
        if code == 1062 and (index := _INDEX.search(str(error.args[-1]))):
            hint = f"{hint}, unique index {index[1]}"
        kind = DuplicateKeyError if code == 1062 else DatabaseFailedError
        return kind(
            place,
            f"the database refused a statement: error {code}, {hint}",
            "Nothing was exported. `perror` and the documentation of the server explain the number.",
        )


def _tls(target: DatabaseTarget) -> dict[str, Any]:
    if target.tls == "off":
        return {"ssl_disabled": True}
    context = ssl.create_default_context(cafile=target.tls_ca)
    if target.tls == "on":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return {"ssl": context}


def _not_connected(target: DatabaseTarget, error: Exception) -> Exception:
    code = _code(error)
    if code in _ACCESS:
        return DatabaseAccessError(
            target.server,
            f"{_ACCESS[code]} (user {target.user})",
            "Check the settings url, user and password of the section jdbc.",
        )
    cause = getattr(error, "original_exception", None) or error
    reason = cause.strerror if isinstance(cause, OSError) and cause.strerror else f"error {code}"
    return DatabaseUnavailableError(
        target.server,
        f"the server cannot be reached: {reason}",
        "Check the settings url and tls, and that the server runs.",
    )


def _code(error: Exception) -> int:
    """The number of an error; 0 if the connection was lost."""
    return next((each for each in error.args[:1] if isinstance(each, int)), 0) if not isinstance(error, OSError) else 0


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _value_cell(text: pa.Array, kind: pa.DataType) -> pa.Array:
    if is_bytes(kind):
        return pc.binary_join_element_wise("x'", text, "'", "")
    if pa.types.is_string(kind) or pa.types.is_nested(kind):
        text = escaped(text, _ESCAPES)
    return pc.binary_join_element_wise("'", text, "'", "")


def _in_statements(lines: Sequence[str], most_bytes: int) -> Iterator[str]:
    """The rows of a batch, in as few lists of values as fit into statements of this size."""
    values: list[str] = []
    size = 0
    for line in lines:
        length = len(line.encode()) + 3
        if values and size + length > most_bytes:
            yield ",".join(values)
            values, size = [], 0
        values.append(f"({line})")
        size += length
    if values:
        yield ",".join(values)
