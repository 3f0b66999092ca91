"""PostgreSQL, with the driver psycopg. Rows are loaded with COPY, which is PostgreSQL's fastest way to load rows."""

from __future__ import annotations

import hashlib
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
    import psycopg

_CONFLICTS = {
    "40001": "another session changed the same rows",
    "40P01": "this session and another one waited for each other",
    "55P03": f"another session holds a lock for more than {LOCK_SECONDS} seconds",
    "42P01": "another run dropped a table of this run",
}
_ACCESS = {
    "28000": "the server does not accept this user",
    "28P01": "the user or the password is wrong",
    "3D000": "there is no such database",
    "3F000": "there is no such schema",
    "42501": "the user lacks a right",
}
_COPY_ESCAPES = [("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r")]
_TYPES = {
    pa.string(): "text",
    pa.int8(): "smallint",
    pa.int16(): "smallint",
    pa.int32(): "integer",
    pa.int64(): "bigint",
    pa.float32(): "real",
    pa.float64(): "double precision",
    pa.bool_(): "boolean",
    pa.binary(): "bytea",
    pa.date32(): "date",
}
_ALSO_ACCEPTED = {
    "text": {"character varying"},
    "smallint": {"integer", "bigint", "numeric"},
    "integer": {"bigint", "numeric"},
    "bigint": {"numeric"},
    "real": {"double precision"},
}
_NUMERIC = re.compile(r"numeric\((\d+),(\d+)\)")


class PostgreSql(Database):
    """A connection to PostgreSQL, from version 12 on."""

    key_type = "bytea"
    text_type = "text"
    bytes_type = "bytea"
    moment_type = "timestamp with time zone"
    flag_type = "boolean"
    true = "true"
    name_type = "text"
    system_columns = frozenset({"ctid", "xmin", "xmax", "cmin", "cmax", "tableoid"})

    def __init__(self, target: DatabaseTarget) -> None:
        super().__init__(target)
        with optional("psycopg", "psycopg[binary]", "An export into PostgreSQL"):
            import psycopg
        options: dict[str, Any] = {
            "sslmode": {"off": "disable", "on": "require", "verified": "verify-full"}[target.tls]
        }
        if target.tls == "verified":
            options["sslrootcert"] = target.tls_ca or ssl.get_default_verify_paths().cafile or "system"
        try:
            self._connection: psycopg.Connection[tuple[Any, ...]] = psycopg.connect(
                host=target.host, port=target.port, dbname=target.database, user=target.user, password=target.password,
                autocommit=True, connect_timeout=10, client_encoding="UTF8", application_name="lakelog",
                keepalives=1, keepalives_idle=60, keepalives_interval=10, keepalives_count=6, **options,
            )  # fmt: skip
        except psycopg.OperationalError as error:
            raise _not_connected(target, error) from None
        self.run(f"SET TIME ZONE 'UTC'; SET lock_timeout = '{LOCK_SECONDS}s'; SET standard_conforming_strings = on")

        # The session is idle while tasks work, and the merge takes its time.
        since = {"statement_timeout": 12, "idle_in_transaction_session_timeout": 12, "idle_session_timeout": 14,
                 "transaction_timeout": 17}  # fmt: skip
        server = self._connection.info.server_version // 10_000
        self.run("; ".join(f"SET {name} = 0" for name, version in since.items() if server >= version))

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with self._errors():
            return self._connection.execute(sql.encode()).fetchall()

    def run(self, sql: str) -> int:
        with self._errors():
            return self._connection.execute(sql.encode()).rowcount

    def load(self, table: str, batch: pa.RecordBatch) -> None:
        columns = ", ".join(self.name(each) for each in batch.schema.names)
        lines = lines_of(batch, _copy_cell, "\\N", "\t")
        statement = f"COPY {table} ({columns}) FROM STDIN".encode()
        with self._errors(), self._connection.cursor() as cursor, cursor.copy(statement) as copy:
            copy.write("\n".join([*lines, ""]).encode())

    def commit(self) -> None:
        self.run("COMMIT")

    def roll_back(self) -> None:
        import psycopg

        with suppress(psycopg.Error):
            self._connection.execute("ROLLBACK")

    def close(self) -> None:
        self._connection.close()

    def analyze(self, table: str) -> None:
        self.run(f"ANALYZE {table}")

    def name(self, identifier: str) -> str:
        return '"' + identifier.replace('"', '""') + '"'

    def literal(self, text: str) -> str:
        return "'" + text.replace("'", "''") + "'"

    def upsert(self, columns: Sequence[str]) -> str:
        changes = ", ".join(f"{self.name(each)} = excluded.{self.name(each)}" for each in columns)
        return f"ON CONFLICT (_key) DO UPDATE SET {changes}"

    def lock_run(self, name: str) -> bool:
        return bool(self.rows(f"SELECT pg_try_advisory_lock({_lock_number(name)})")[0][0])

    def unlock_run(self, name: str) -> None:
        self.rows(f"SELECT pg_advisory_unlock({_lock_number(name)})")

    def lossy_encoding(self) -> str | None:
        encoding = self._connection.info.parameter_status("server_encoding")
        return None if encoding in ("UTF8", "SQL_ASCII") else encoding  # SQL_ASCII stores the bytes of UTF-8 unchanged

    def columns(self, table: str) -> Mapping[str, Column] | None:
        # The type of a column can be a domain, which has rules of its own.
        found = self.rows(
            "SELECT a.attname, format_type(a.atttypid, a.atttypmod), NOT (a.attnotnull OR t.typnotnull), a.atthasdef OR"
            " t.typdefault IS NOT NULL OR a.attidentity <> '', a.attgenerated <> '' OR a.attidentity = 'a' FROM pg_class c"
            " JOIN pg_namespace n ON n.oid = c.relnamespace LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0"
            " AND NOT a.attisdropped LEFT JOIN pg_type t ON t.oid = a.atttypid WHERE n.nspname ="
            f" {self.literal(self.target.schema)} AND c.relname = {self.literal(table)} ORDER BY a.attnum"
        )
        return {name: Column(*facts) for name, *facts in found if name is not None} if found else None

    def problem_of(self, table: str) -> str | None:
        kind = self.rows(f"SELECT c.relkind::text FROM pg_class c WHERE c.oid = {self._oid(table)}")[0][0]
        return None if kind in ("r", "p") else "is not a table"

    def unique_indexes(self, table: str) -> Mapping[str, bool]:
        # ON CONFLICT cannot use an index that is deferrable or invalid.
        found = self.rows(
            "SELECT c.relname, i.indisunique AND i.indimmediate AND i.indisvalid AND i.indnkeyatts = 1 AND i.indpred IS"
            " NULL AND coalesce(a.attname = '_key', false) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid LEFT"
            " JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]"
            f" WHERE i.indrelid = {self._oid(table)} AND (i.indisunique OR i.indisexclusion) ORDER BY c.relname"
        )
        return dict(found)

    def _oid(self, table: str) -> str:
        return f"{self.literal(self.table(table))}::regclass"

    def tables_like(self, prefix: str) -> list[str]:
        found = self.rows(
            "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind = 'r' AND"
            f" n.nspname = {self.literal(self.target.schema)} AND starts_with(c.relname, {self.literal(prefix)})"
        )
        return [name for (name,) in found]

    def type_of(self, kind: pa.DataType) -> str:
        if pa.types.is_decimal(kind):
            return f"numeric({kind.precision},{kind.scale})"
        if pa.types.is_timestamp(kind):
            return "timestamp with time zone" if kind.tz else "timestamp without time zone"
        return "text" if pa.types.is_nested(kind) else _TYPES[kind]

    def accepts(self, found: str, kind: pa.DataType) -> bool:
        wanted = self.type_of(kind)
        if found == wanted or found in _ALSO_ACCEPTED.get(wanted, ()):
            return True
        if not pa.types.is_decimal(kind):
            return False
        numbers = _NUMERIC.fullmatch(found)
        if numbers is None:
            return found == "numeric"
        precision, scale = int(numbers[1]), int(numbers[2])
        return bool(scale >= kind.scale and precision - scale >= kind.precision - kind.scale)

    def unfit(self, column: pa.Array) -> tuple[str, pa.BooleanArray] | None:
        if not pa.types.is_string(column.type):
            return None
        return "PostgreSQL cannot store a text with U+0000", pc.match_substring(column, "\0").fill_null(False)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        import psycopg

        try:
            yield
        except psycopg.Error as error:
            raise self._named(error) from None

    def _named(self, error: psycopg.Error) -> Exception:
        place, code = str(self.target), error.sqlstate
        if code in _CONFLICTS:
            return ConflictError(place, _CONFLICTS[code], AGAIN)
        if code in _ACCESS:
            return DatabaseAccessError(
                place, f"{_ACCESS[code]} (SQLSTATE {code})", "docs/SECURITY.md lists the rights that an export needs."
            )
        if self._connection.closed or code is None or code.startswith(("08", "57P")):
            return DatabaseUnavailableError(place, "the connection was lost", AGAIN)
        names = {"column": error.diag.column_name, "constraint": error.diag.constraint_name}
        where = "".join(f", {what} {name}" for what, name in names.items() if name)
        kind = DuplicateKeyError if code == "23505" else DatabaseFailedError
        return kind(
            place,
            f"the database refused a statement: SQLSTATE {code}, {type(error).__name__}{where}",
            "Nothing was exported. The log of the database has more details.",
        )


def _not_connected(target: DatabaseTarget, error: psycopg.OperationalError) -> Exception:
    said = str(error)
    for code, words in (("28P01", "password authentication failed"), ("28000", "pg_hba.conf"), ("3D000", "database ")):
        if error.sqlstate == code or (words in said and (code != "3D000" or "does not exist" in said)):
            return DatabaseAccessError(
                target.server,
                f"{_ACCESS[code]} (user {target.user})",
                "Check the settings url, user and password of the section jdbc.",
            )
    reason = said.strip().splitlines()[0] if said.strip() else "no reason given"
    if target.password and target.password in reason:
        reason = "the reason is not shown, because it contains the password"
    return DatabaseUnavailableError(
        target.server,
        f"the server cannot be reached: {reason}",
        "Check the settings url and tls, and that the server runs.",
    )


def _lock_number(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big", signed=True)


def _copy_cell(text: pa.Array, kind: pa.DataType) -> pa.Array:
    if is_bytes(kind):
        return pc.binary_join_element_wise("\\\\x", text, "")
    if pa.types.is_timestamp(kind) and kind.tz:
        return pc.binary_join_element_wise(text, "+00", "")
    return escaped(text, _COPY_ESCAPES) if pa.types.is_string(kind) or pa.types.is_nested(kind) else text
