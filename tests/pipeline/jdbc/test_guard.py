"""An export writes each row exactly once, even if two runs work at the same time, or if a run is paused or killed. Also
tests tables to which an export must not write.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from lakelog.optional import MissingPackageError
from pipeline.delta.dead_letter_share import TooManyDeadLettersError
from pipeline.delta.export_plan import (
    ExportBounds,
    ExportPlan,
    OffsetRefusedError,
    PartitionOffsets,
    PositionAheadError,
    TopicRecreatedError,
)
from pipeline.delta.reads.lost_records import RecordsLostError
from pipeline.delta.reads.whole_reads import LogChangedError
from pipeline.jdbc.connecting import connected
from pipeline.jdbc.database import (
    ColumnTypeError,
    DatabaseAccessError,
    DatabaseUnavailableError,
    NotExportedTableError,
)
from pipeline.jdbc.staging import Filled, Staging, create_staging, fill
from pipeline.settings.jdbc_settings import DatabaseKind, DatabaseTarget
from storage_engine.errors import ConflictError, LogError
from tests.free_ports import free_ports
from tests.pipeline.delta.order_models import WideOrder
from tests.pipeline.jdbc.shop import Shop, sql
from tests.servers.local_server import CERTIFICATE


@pytest.mark.parametrize("is_first", [True, False])
def test_run_that_was_paused_before_its_transaction_loses(shop: Shop, is_first: bool) -> None:
    shop.log.add(b"a", 1)
    if not is_first:
        shop.run()
    shop.log.add(b"a", 2)
    shop.log.add(b"b", b"{}")

    def other_run() -> None:
        shop.run()
        shop.log.add(b"a", None)
        shop.log.add(b"c", 3)
        shop.run()

    with pytest.raises(ConflictError, match="another run"):
        shop.run(meanwhile=other_run)
    assert shop.rows("_key", "number") == [(b"c", 3)]
    assert shop.letters("offset") == [(2,)]
    assert shop.staging_tables() == []
    assert shop.run().records == 0


def test_a_run_does_not_commit_without_a_tombstone_that_was_removed_while_it_read(shop: Shop) -> None:
    shop.log.add(b"a", 1)
    shop.log.add(b"b", 2)
    shop.run()
    position = shop.position()
    shop.log.add(b"b", None)
    shop.log.add(b"c", 3)
    cleaned = {0: PartitionOffsets(0, 4, tombstones_end=3)}

    def without_the_tombstone(plan: ExportPlan, staging: Staging) -> Sequence[Filled]:
        return [fill(shop.export, staging, shop.log.read_batches({0: 3}, plan.end, {}))]

    with pytest.raises(
        LogChangedError, match="compaction removed tombstones of orders-0 while this partition was read"
    ):
        shop.run(fill_tables=without_the_tombstone, newest=lambda: cleaned)
    assert shop.rows("_key", "number") == [(b"a", 1), (b"b", 2)]
    assert (shop.position(), shop.staging_tables()) == (position, [])

    def what_is_left(plan: ExportPlan, staging: Staging) -> Sequence[Filled]:
        return [fill(shop.export, staging, shop.log.read_batches({0: at}, {0: at + 1}, {})) for at in (0, 3)]

    again = shop.run(ranges=cleaned, fill_tables=what_is_left, newest=lambda: cleaned)
    assert (again.plan.reread, again.deleted) == ((0,), 1)
    assert shop.rows("_key", "number") == [(b"a", 1), (b"c", 3)]


@pytest.mark.parametrize("is_first", [True, False])
def test_one_of_two_runs_at_once_loses(shop: Shop, is_first: bool) -> None:
    shop.log.add(b"a", 0)
    if not is_first:
        shop.run()
    for number in range(50):
        shop.log.add(b"%d" % number, number)
    together = threading.Barrier(2)
    ends: list[int | LogError] = []

    def run() -> None:
        try:
            ends.append(shop.run(meanwhile=lambda: together.wait(60)).records)
        except LogError as error:
            ends.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    [records] = [each for each in ends if isinstance(each, int)]
    [lost] = [each for each in ends if not isinstance(each, int)]
    assert isinstance(lost, ConflictError), lost
    assert records == (51 if is_first else 50)
    assert len(shop.rows("_key")) == 51
    assert len(shop.position()) == 1


def wait_for_end(staging: Staging) -> None:
    """Wait until the database has noticed that the connection of a run is closed."""
    with connected(staging.target) as database:
        while not database.lock_run(staging.lock):
            time.sleep(0.01)
        database.unlock_run(staging.lock)


def test_staging_tables_of_dead_runs_are_dropped_by_the_next_run(shop: Shop) -> None:
    shop.log.add(b"a", 1)
    living, dead = Staging(shop.target), Staging(shop.target)
    with ExitStack() as life:
        create_staging(life.enter_context(connected(shop.target)), shop.export, living)
        with connected(shop.target) as database:
            create_staging(database, shop.export, dead)
        assert shop.staging_tables() == sorted([*living.names, *dead.names])
        wait_for_end(dead)
        shop.run()
        assert shop.staging_tables() == sorted(living.names)
    wait_for_end(living)
    shop.log.add(b"a", 2)
    shop.run()
    assert shop.staging_tables() == []


def test_task_of_a_run_that_counts_as_dead_is_told(shop: Shop) -> None:
    shop.log.add(b"a", 1)

    def without_tables(plan: Any, staging: Staging) -> Any:
        for name in staging.names:
            sql(shop.target, f"DROP TABLE {shop.name(shop.target.schema)}.{shop.name(name)}")
        return shop.fill_tables(plan, staging)

    with pytest.raises(ConflictError, match="dropped a table of this run"):
        shop.run(fill_tables=without_tables)
    assert shop.run().records == 1


# --- Tables and topics that do not fit ----------------------------------------------------------------------------


def test_topic_with_another_id_is_refused(shop: Shop) -> None:
    shop.log.add(b"a", 1)
    shop.run()
    shop.export = replace(shop.export, topic_id="BBBBBBBBBBBBBBBBBBBBBB")
    with pytest.raises(TopicRecreatedError, match="AAAAAAAAAAAAAAAAAAAAAA"):
        shop.run()


def test_log_that_is_shorter_than_the_position_is_refused(shop: Shop) -> None:
    for number in range(3):
        shop.log.add(b"a", number)
    shop.run()
    with pytest.raises(PositionAheadError, match="up to offset 3, but the log ends at offset 2"):
        shop.run(up_to={0: 2})


def test_lost_records_are_refused_until_the_loss_is_accepted(shop: Shop) -> None:
    for number in range(6):
        shop.log.add(b"%d" % number, number)
    shop.run(up_to={0: 2})
    shop.starts[0] = 4
    with pytest.raises(RecordsLostError, match=r"offsets 0: 2 to 3.*--from-offset 0:4"):
        shop.run()
    with pytest.raises(OffsetRefusedError):
        shop.run(bounds=ExportBounds(from_offsets={0: 5}))
    assert shop.run(bounds=ExportBounds(from_offsets={0: 4})).records == 2
    assert shop.rows("_key") == [(b"0",), (b"1",), (b"4",), (b"5",)]


def test_table_with_rows_of_others_is_refused(shop: Shop) -> None:
    sql(shop.target, f"CREATE TABLE {shop.table} (id integer PRIMARY KEY)")
    sql(shop.target, f"INSERT INTO {shop.table} VALUES (1)")
    shop.log.add(b"a", 1)
    with pytest.raises(NotExportedTableError, match="has rows"):
        shop.run()
    assert sql(shop.target, f"SELECT id FROM {shop.table}") == [(1,)]


def test_rows_that_others_insert_during_the_first_run_are_noticed(shop: Shop) -> None:
    shop.log.add(b"a", 1)
    shop.log.add(b"b", 1)
    shop.run()
    copy = f"{shop.table[:-1]}x{shop.table[-1]}"
    sql(shop.target, f"CREATE TABLE {copy} AS SELECT * FROM {shop.table}")
    sql(shop.target, f"DELETE FROM {shop.table}")
    sql(
        shop.target,
        f"DELETE FROM {shop.name(shop.target.schema)}.lakelog_positions WHERE target = '{shop.target.table}'",
    )
    with pytest.raises(NotExportedTableError, match="has rows"):
        shop.run(meanwhile=lambda: sql(shop.target, f"INSERT INTO {shop.table} SELECT * FROM {copy}"))
    assert shop.position() == []


def test_missing_table_with_a_position_is_refused(shop: Shop) -> None:
    shop.log.add(b"a", 1)
    shop.run()
    sql(shop.target, f"DROP TABLE {shop.table}")
    with pytest.raises(NotExportedTableError, match="the table is gone"):
        shop.run()


def test_column_of_another_type_is_refused(shop: Shop) -> None:
    shop.log.add(b"a", 1)
    shop.run()
    shop.with_model(WideOrder)
    shop.log.add(b"a", 2)
    with pytest.raises(ColumnTypeError, match="column number has the type bigint; the export needs double"):
        shop.run()
    assert shop.rows("number") == [(1,)]


UNFIT_TABLES = {
    "no key column": ("id integer", "column number is missing|no primary key|column _key is missing"),
    "no index": ("_key bytea", "has no primary key or unique index of the column _key"),
}


@pytest.mark.parametrize("case", UNFIT_TABLES)
def test_empty_table_without_the_columns_of_an_export_is_refused(shop: Shop, case: str) -> None:
    columns, message = UNFIT_TABLES[case]
    if shop.target.kind is not DatabaseKind.POSTGRESQL:
        columns = columns.replace("bytea", "varbinary(2048)")
    sql(shop.target, f"CREATE TABLE {shop.table} ({columns})")
    shop.log.add(b"a", 1)
    with pytest.raises((NotExportedTableError, ColumnTypeError), match=message):
        shop.run()


def test_too_many_dead_letters_stop_the_export(shop: Shop) -> None:
    for number in range(8):
        shop.log.add(b"%d" % number, number)
    for _ in range(2):
        shop.log.add(b"a", b"{}", partition=1)
    with pytest.raises(TooManyDeadLettersError, match=r"2 of 10 records.*partition 1 offsets 0 to 1 \(2\)"):
        shop.run(max_share=0.1)
    assert shop.staging_tables() == []
    done = shop.run(max_share=0.1, bounds=ExportBounds(up_to={0: 8, 1: 2}))
    assert (done.records, done.dead_letters) == (10, 2)


# --- Connections ----------------------------------------------------------------------------------------------------


def wrong_targets(target: DatabaseTarget) -> Sequence[tuple[DatabaseTarget, type[LogError], str]]:
    (port,) = free_ports(1)
    return [
        (replace(target, password="wrong-secret"), DatabaseAccessError, "the user or the password is wrong"),
        (replace(target, user="nobody-here"), DatabaseAccessError, "the user or the password is wrong"),
        (replace(target, database="nowhere", schema="nowhere"), DatabaseAccessError, "there is no such database"),
        (replace(target, port=port), DatabaseUnavailableError, "cannot be reached"),
        (replace(target, host="host.invalid"), DatabaseUnavailableError, "cannot be reached"),
    ]


def test_wrong_connections_are_named_without_the_password(shop: Shop) -> None:
    for target, kind, words in wrong_targets(shop.target):
        with pytest.raises(kind, match=words) as raised, connected(target):
            pass
        shown = f"{raised.value}{raised.value!r}{target}{target!r}"
        assert target.password not in shown
        assert f"jdbc:{target.kind}://{target.host}:{target.port}/{target.database}" in shown


def test_connection_is_encrypted_if_the_settings_ask_for_it(shop: Shop) -> None:
    cipher = "SHOW STATUS LIKE 'Ssl_cipher'"
    if shop.target.kind is DatabaseKind.POSTGRESQL:
        cipher = "SELECT 1, cipher FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
    ca = str(CERTIFICATE / "server.crt")
    for tls, trusted, is_encrypted in (("off", None, False), ("on", None, True), ("verified", ca, True)):
        with connected(replace(shop.target, tls=tls, tls_ca=trusted)) as database:
            assert bool(database.rows(cipher)[0][1]) == is_encrypted, tls
    refused = pytest.raises(DatabaseUnavailableError, match="cannot be reached")
    with refused, connected(replace(shop.target, tls="verified")):
        pass


def test_missing_driver_is_named(shop: Shop) -> None:
    driver = "psycopg" if shop.target.kind is DatabaseKind.POSTGRESQL else "pymysql"
    missing = pytest.raises(MissingPackageError, match=f"pip install '{driver}")
    with patch.dict("sys.modules", {driver: None}), missing, connected(shop.target):
        pass


def test_user_without_rights_is_told_before_anything_is_read(shop: Shop) -> None:
    user, password = f"guest_{shop.target.table[-6:]}", "Guest-secret-1"
    if shop.target.kind is DatabaseKind.POSTGRESQL:
        sql(shop.target, f"CREATE USER {user} PASSWORD '{password}'")
    else:
        sql(shop.target, f"CREATE USER {user} IDENTIFIED BY '{password}'")
        sql(shop.target, f"GRANT SELECT ON {shop.target.database}.* TO {user}")
    guest = Shop(replace(shop.target, user=user, password=password))
    guest.log.add(b"a", 1)
    with pytest.raises(DatabaseAccessError, match="lacks a right") as raised:
        guest.run(fill_tables=lambda plan, staging: pytest.fail("records were read"))
    assert password not in str(raised.value)


def test_rights_of_the_security_page_are_enough(shop: Shop) -> None:
    user, password = f"clerk_{shop.target.table[-6:]}", "Clerk-secret-1"
    if shop.target.kind is DatabaseKind.POSTGRESQL:
        schema = f"sales_{shop.target.table[-6:]}"
        sql(shop.target, f"CREATE USER {user} PASSWORD '{password}'")
        sql(shop.target, f"CREATE SCHEMA {schema} AUTHORIZATION {user}")
        clerk = Shop(replace(shop.target, user=user, password=password, schema=schema))
    else:
        database = f"sales_{shop.target.table[-6:]}"
        sql(shop.target, f"CREATE DATABASE {database}")
        sql(shop.target, f"CREATE USER {user} IDENTIFIED BY '{password}'")
        rights = "SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, DROP"
        sql(shop.target, f"GRANT {rights} ON {database}.* TO {user}")
        clerk = Shop(replace(shop.target, user=user, password=password, database=database, schema=database))
    clerk.log.add(b"a", 1)
    clerk.log.add(b"a", b"{}")
    clerk.run()
    clerk.log.add(b"a", 2)
    clerk.run()
    assert clerk.rows("_key", "number") == [(b"a", 2)]


def test_statement_that_fails_shows_no_values(shop: Shop) -> None:
    with connected(shop.target) as database, pytest.raises(LogError) as raised:
        database.run("SELECT 1 +++ secret_value_of_a_record FROM")
    assert "secret_value" not in str(raised.value)
    assert raised.value.__cause__ is None
