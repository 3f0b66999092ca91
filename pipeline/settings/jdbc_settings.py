"""Declares the settings of an export into a database: the section `export.jdbc`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field

from pipeline.settings.section import Section
from pipeline.settings.values import Noun, Text, mistake

_URL: Final = re.compile(
    r"jdbc:(?P<kind>[a-z0-9]+)://(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?"
    r"/(?P<database>[^/?#;@\s]+)"
)
_EXAMPLE = "Write jdbc:postgresql://host:5432/database or jdbc:mariadb://host:3306/database."
LONGEST_TABLE: Final = 50
"""The longest name of a table, in bytes. PostgreSQL cuts a name after 63 bytes, and the suffix `_dead_letters` has 13."""


class DatabaseKind(StrEnum):
    """The kinds of databases, with the names that JDBC URLs have for them."""

    POSTGRESQL = "postgresql"
    MARIADB = "mariadb"
    MYSQL = "mysql"

    @property
    def default_port(self) -> int:
        return 5432 if self is DatabaseKind.POSTGRESQL else 3306


@dataclass(frozen=True)
class DatabaseTarget:
    """A table of a database, and how to reach it.

    schema: the schema in PostgreSQL. In MariaDB and MySQL, which have no schemas, the database.
    """

    kind: DatabaseKind
    host: str
    port: int
    database: str
    schema: str
    table: str
    user: str
    password: str = field(repr=False, default="")
    tls: str = "off"
    tls_ca: str | None = None

    @property
    def server(self) -> str:
        """The name of the database in messages."""
        return f"jdbc:{self.kind}://{self.host}:{self.port}/{self.database}"

    def __str__(self) -> str:
        schema = f"{self.schema}." if self.kind is DatabaseKind.POSTGRESQL else ""
        return f"{self.server} {schema}{self.table}"


def _url(value: str) -> str:
    # The value may contain a password, so no message shows it.
    found = _URL.fullmatch(value)
    if found is None:
        if "@" in value or "?" in value or ";" in value:
            raise mistake(
                "the URL has a user, a password or parameters; it is not shown, because errors and reports contain URLs",
                "Use the keys user, password and tls of this section.",
            )
        raise mistake("expected the JDBC URL of a database", _EXAMPLE)
    if found["kind"] not in list(DatabaseKind):
        raise mistake(
            f"found the database {found['kind']}", f"Lakelog exports to PostgreSQL, MariaDB and MySQL. {_EXAMPLE}"
        )
    if found["port"] and not 0 < int(found["port"]) <= 65535:
        raise mistake(f"found the port {found['port']}", _EXAMPLE)
    return value


def _name(value: str) -> str:
    if "\0" in value or len(value.encode()) > LONGEST_TABLE:
        raise mistake(f"found a name of {len(value.encode())} bytes", f"Use a name of at most {LONGEST_TABLE} bytes.")
    return value


class JdbcSettings(Section):
    """The database of an export: PostgreSQL, MariaDB or MySQL."""

    url: Annotated[str, Noun("a JDBC URL"), AfterValidator(_url)] = Field(
        description="Server and database: `jdbc:postgresql://host:port/database`, or the same with `mariadb` or `mysql`."
        " The URL must not contain a user, a password or parameters."
    )
    table: Annotated[Text, AfterValidator(_name)] = Field(
        description=f"Name of the table, of at most {LONGEST_TABLE} bytes. Lakelog uses the name exactly as written: no"
        " character has a special meaning."
    )
    schema_: Annotated[Text, AfterValidator(_name)] | None = Field(
        default=None, alias="schema", description="PostgreSQL's schema of the table. Default: `public`."
    )
    user: Text = Field(description="User of the database.")
    password: Annotated[str, Noun("text")] = Field(
        default="",
        repr=False,
        description="Password of the user. Set the password in the environment, with LAKELOG_EXPORT_JDBC_PASSWORD; for the"
        " export `orders` of the section `exports`, with LAKELOG_EXPORTS_ORDERS_JDBC_PASSWORD.",
    )
    tls: Annotated[Literal["off", "on", "verified"], Noun("off, on or verified")] = Field(
        default="off",
        description="off: the connection is not encrypted. on: the connection is encrypted. verified: the connection is"
        " encrypted, and the server's certificate must be valid for its host.",
    )
    tls_ca: Text | None = Field(
        default=None,
        alias="tls.ca",
        description="File with the certificates of the authorities that `tls: verified` trusts. Default: the"
        " certificates of the system.",
    )

    def target(self) -> DatabaseTarget:
        """The table that the settings describe."""
        found = _URL.fullmatch(self.url)
        assert found is not None, "the setting was checked"
        kind = DatabaseKind(found["kind"])
        is_postgresql = kind is DatabaseKind.POSTGRESQL
        return DatabaseTarget(
            kind=kind,
            host=found["host"].strip("[]"),
            port=int(found["port"] or kind.default_port),
            database=found["database"],
            schema=(self.schema_ or "public") if is_postgresql else found["database"],
            table=self.table,
            user=self.user,
            password=self.password,
            tls=self.tls,
            tls_ca=self.tls_ca,
        )
