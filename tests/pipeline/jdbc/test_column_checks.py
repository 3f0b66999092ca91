"""Columns of tables that a user created or altered. An export refuses each column that would stop it later, before it
reads a record. Columns that the database fills by itself do not disturb the export.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from pipeline.jdbc.database import ColumnRuleError, ColumnTypeError
from pipeline.settings.jdbc_settings import DatabaseKind
from tests.pipeline.delta.order_models import OrderWithPrice
from tests.pipeline.jdbc.shop import Shop, sql

POSTGRESQL, LIKE_MYSQL = (DatabaseKind.POSTGRESQL,), (DatabaseKind.MARIADB, DatabaseKind.MYSQL)
TYPES = {
    DatabaseKind.POSTGRESQL: {"text": "text", "key": "bytea", "moment": "timestamp with time zone", "float": "double precision"},
    DatabaseKind.MARIADB: {
        "text": "longtext character set utf8mb4", "key": "varbinary(2048)", "moment": "datetime(6)", "float": "double",
    },
}  # fmt: skip
TYPES[DatabaseKind.MYSQL] = TYPES[DatabaseKind.MARIADB]
GENERATED = {DatabaseKind.POSTGRESQL: "GENERATED ALWAYS AS (7) STORED"} | dict.fromkeys(LIKE_MYSQL, "AS (7)")


def create(shop: Shop, *more: str, **changed: str) -> None:
    """Create the table of an export of orders.

    more: more columns.
    changed: other definitions of columns; an empty definition leaves the column out.
    """
    kinds = TYPES[shop.target.kind]
    columns = {
        "_key": f"{kinds['key']} PRIMARY KEY", "number": "bigint", "colour": kinds["text"], "_partition": "integer",
        "_offset": "bigint", "_timestamp": kinds["moment"], "_stale_since": f"{kinds['moment']} NULL",
        "_stale_partition": "integer", "_stale_offset": "bigint",
    } | changed  # fmt: skip
    defined = [f"{name} {kind}" for name, kind in columns.items() if kind]
    sql(shop.target, f"CREATE TABLE {shop.table} ({', '.join([*defined, *more])})")


def refused(shop: Shop, kind: type[Exception]) -> str:
    """Run an export that must be refused, and return the error after the name of the table."""
    shop.log.add(b"a", 1)
    with pytest.raises(kind) as raised:
        shop.run(fill_tables=lambda plan, staging: pytest.fail("records were read"))
    assert shop.rows("_key") == []
    assert shop.staging_tables() == []
    return str(raised.value).removeprefix(f"{shop.target}: ")


@dataclass(frozen=True)
class Case:
    """A column that is refused. `{word}` stands for a type of the database."""

    name: str
    definition: str
    error: type[Exception]
    problem: str
    remedy: str
    only: tuple[DatabaseKind, ...] = tuple(DatabaseKind)


END = "or export to another table. Nothing was exported."
NULL_TOO = "is NOT NULL, but the export also writes null into this column"
UNFILLED = "is NOT NULL and has no default, but the export does not write this column"
ALLOW, FILL = f"Allow null in the column, {END}", f"Give the column a default, allow null in it, {END}"
AUTOMATIC = (
    "the database writes column {} by itself (a generated column, a counter or ON UPDATE), but the export writes this"
    " column"
)
CHANGE, ORDINARY, ALTER = f"Alter the table, {END}", f"Make it an ordinary column, {END}", f"Alter the column, {END}"
ONLY_UTF8 = "which cannot store every text; the export needs utf8mb4"
CASES = {
    "another column without a default": Case("region", "integer NOT NULL", ColumnRuleError, UNFILLED, FILL),
    "a field that may be null": Case("colour", "{text} NOT NULL", ColumnRuleError, NULL_TOO, ALLOW),
    "a stale place": Case("_stale_offset", "bigint NOT NULL DEFAULT 0", ColumnRuleError, NULL_TOO, ALLOW),
    "a generated field": Case("number", "bigint {generated}", ColumnRuleError, AUTOMATIC, ORDINARY),
    "a generated place": Case("_partition", "integer {generated}", ColumnRuleError, AUTOMATIC, ORDINARY),
    "an identity": Case(
        "number", "bigint GENERATED ALWAYS AS IDENTITY", ColumnRuleError, AUTOMATIC, ORDINARY, only=POSTGRESQL
    ),
    "a counter": Case(
        "number", "bigint AUTO_INCREMENT, KEY (number)", ColumnRuleError, AUTOMATIC, ORDINARY, only=LIKE_MYSQL
    ),
    "a time of the last change": Case(
        "_timestamp", "datetime(6) ON UPDATE CURRENT_TIMESTAMP(6)", ColumnRuleError, AUTOMATIC, ORDINARY, only=LIKE_MYSQL
    ),
    "a narrow number": Case(
        "number", "smallint", ColumnTypeError, "has the type smallint; the export needs bigint", CHANGE
    ),
    "an unsigned number": Case(
        "number", "bigint unsigned", ColumnTypeError, "has the type bigint unsigned; the export needs bigint", CHANGE,
        only=LIKE_MYSQL,
    ),
    "a short text": Case(
        "colour", "varchar(20)", ColumnTypeError, "has the type character varying(20); the export needs text", CHANGE,
        only=POSTGRESQL,
    ),
    "whole seconds": Case(
        "_timestamp", "datetime", ColumnTypeError, "has the type datetime; the export needs datetime(6)", CHANGE,
        only=LIKE_MYSQL,
    ),
    "no place": Case(
        "_offset", "", ColumnTypeError, "is missing; the export needs bigint", f"Add the column, {END}"
    ),
    "latin1": Case(
        "colour", "longtext CHARACTER SET latin1", ColumnTypeError, f"has the character set latin1, {ONLY_UTF8}", ALTER,
        only=LIKE_MYSQL,
    ),
    "old utf8": Case(
        "colour", "longtext CHARACTER SET utf8mb3", ColumnTypeError, f"has the character set utf8mb3, {ONLY_UTF8}", ALTER,
        only=LIKE_MYSQL[:1],  # MySQL 8.0.12 still has the old name utf8
    ),
    "a key of text": Case(
        "_key", "varchar(500) CHARACTER SET latin1 PRIMARY KEY", ColumnTypeError,
        "has the type varchar(500); the export needs varbinary(2048)", CHANGE, only=LIKE_MYSQL,
    ),
}  # fmt: skip


APPLICABLE = [pytest.param(kind, name, id=f"{kind}-{name}") for name, case in CASES.items() for kind in case.only]


@pytest.mark.parametrize(("shop", "name"), APPLICABLE, indirect=["shop"])
def test_unfit_column_is_refused_before_a_record_is_read(shop: Shop, name: str) -> None:
    case = CASES[name]
    definition = case.definition.format(generated=GENERATED[shop.target.kind], **TYPES[shop.target.kind])
    create(shop, **{case.name: definition})
    problem = AUTOMATIC.format(case.name) if case.problem == AUTOMATIC else f"column {case.name} {case.problem}"
    assert refused(shop, case.error) == f"{problem}. {case.remedy}"


@pytest.mark.parametrize("shop", POSTGRESQL, indirect=True)
def test_domain_that_forbids_null_is_refused(shop: Shop) -> None:
    sql(shop.target, f"CREATE DOMAIN {shop.target.table}_region AS text NOT NULL")
    create(shop, region=f"{shop.target.table}_region")
    assert refused(shop, ColumnRuleError) == f"column region {UNFILLED}. {FILL}"


def database_of(shop: Shop, encoding: str) -> Shop:
    """The same server, with a new database of PostgreSQL that has this encoding."""
    name = f"{shop.target.table}_{encoding.lower()}"
    sql(shop.target, f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
    return Shop(replace(shop.target, database=name))


@pytest.mark.parametrize("shop", POSTGRESQL, indirect=True)
def test_database_whose_encoding_cannot_store_every_text_is_refused(shop: Shop) -> None:
    other = database_of(shop, "LATIN1")
    other.log.add(b"a", 1)
    with pytest.raises(ColumnTypeError) as raised:
        other.run(fill_tables=lambda plan, staging: pytest.fail("records were read"))
    assert str(raised.value) == (
        f"{other.target}: the database has the encoding LATIN1, which cannot store every text; the export needs UTF8."
        " Export into another database. Nothing was exported."
    )


@pytest.mark.parametrize("shop", POSTGRESQL, indirect=True)
def test_database_without_an_encoding_stores_every_text(shop: Shop) -> None:
    other = database_of(shop, "SQL_ASCII")
    other.log.add(b"a", '{"number": 1, "colour": "žlutá 🟡"}'.encode())
    other.run()
    (found,) = sql(other.target, f"SELECT convert_to(colour, 'SQL_ASCII') FROM {other.table}")
    assert bytes(found[0]).decode() == "žlutá 🟡"


def test_table_that_was_altered_after_an_export_is_refused(shop: Shop) -> None:
    """The model has lost a field whose column now forbids null."""
    shop.log.add(b"a", b'{"number": 1, "colour": "red"}')
    shop.run()
    if shop.target.kind in POSTGRESQL:
        sql(shop.target, f"ALTER TABLE {shop.table} ALTER COLUMN colour SET NOT NULL")
    else:
        sql(shop.target, f"ALTER TABLE {shop.table} MODIFY colour {TYPES[shop.target.kind]['text']} NOT NULL")
    shop.with_model(OrderWithPrice)
    shop.log.add(b"b", b'{"number": 2, "price": 1.5}')
    with pytest.raises(ColumnRuleError, match=f"column colour {UNFILLED}"):
        shop.run()
    assert shop.rows("_key", "colour") == [(b"a", "red")]


def test_column_that_must_have_a_value_in_the_model_may_forbid_null(shop: Shop) -> None:
    create(shop, number="bigint NOT NULL")
    shop.log.add(b"a", 1)
    shop.run()
    assert shop.rows("_key", "number") == [(b"a", 1)]


def test_database_fills_columns_that_the_export_does_not_know(shop: Shop) -> None:
    """A default is for new rows: a row that the export writes again keeps its value. A column that may be null becomes
    null."""
    computed = "GENERATED ALWAYS AS (number * 2) STORED" if shop.target.kind in POSTGRESQL else "AS (number * 2)"
    counted = "bigint GENERATED ALWAYS AS IDENTITY"
    if shop.target.kind in LIKE_MYSQL:
        counted = "bigint NOT NULL AUTO_INCREMENT, KEY (counted)"
    create(shop, region="integer NOT NULL DEFAULT 5", twice=f"bigint {computed}", counted=counted, note="integer")
    shop.log.add(b"a", 1)
    shop.run()
    sql(shop.target, f"UPDATE {shop.table} SET region = 6, note = 7")
    shop.log.add(b"a", 2)
    shop.log.add(b"b", 3)
    shop.run()
    first, second = shop.rows("_key", "number", "region", "twice", "note")
    assert (first, second) == ((b"a", 2, 6, 4, None), (b"b", 3, 5, 6, None))
    numbers = [row[0] for row in shop.rows("counted")]
    assert numbers[0] == 1  # the update has kept it
    assert numbers[1] > 1


@pytest.mark.parametrize("shop", LIKE_MYSQL, indirect=True)
def test_database_writes_the_time_of_the_last_change(shop: Shop) -> None:
    create(shop, changed="datetime NULL ON UPDATE CURRENT_TIMESTAMP")
    shop.log.add(b"a", 1)
    shop.log.add(b"b", 1)
    shop.run()
    assert shop.rows("_key", "changed") == [(b"a", None), (b"b", None)]
    shop.log.add(b"b", 2)
    shop.run()
    (first, second) = shop.rows("number", "changed")
    assert first == (1, None)
    assert second[0] == 2
    assert second[1] is not None


LETTERS: dict[str, tuple[str, type[Exception], str]] = {
    "another column without a default": ("ADD region integer NOT NULL", ColumnRuleError, f"column region {UNFILLED}. {FILL}"),
    "a missing column": (
        "DROP COLUMN headers", ColumnTypeError, "column headers is missing; the export needs {text}. Add the column, " + END,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LETTERS)
def test_altered_table_of_dead_letters_is_refused(shop: Shop, name: str) -> None:
    change, kind, message = LETTERS[name]
    shop.log.add(b"a", 1)
    shop.run()
    letters = replace(shop.target, table=f"{shop.target.table}_dead_letters")
    sql(shop.target, f"ALTER TABLE {shop.name(letters.schema)}.{shop.name(letters.table)} {change}")
    shop.log.add(b"a", 2)
    with pytest.raises(kind) as raised:
        shop.run()
    text = TYPES[shop.target.kind]["text"]
    text += "" if shop.target.kind in POSTGRESQL else " collate utf8mb4_bin"
    assert str(raised.value) == f"{letters}: {message.replace('{text}', text)}"
    assert shop.rows("_key", "number") == [(b"a", 1)]
