"""Dead letters and exports without Spark on a real S3 server: races, lost replies, and refused credentials."""

from __future__ import annotations

import json
import threading
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

import lakelog
from jobs.export import export
from lakelog.delta_options import delta_options
from pipeline.delta.dead_letters import INGEST_DEAD_LETTERS, append_staged_dead_letters
from pipeline.export.export_request import add_export_options
from pipeline.job import run_job
from storage_engine.errors import StorageAccessError, StorageUnavailableError
from storage_engine.storage import Storage
from storage_engine.storage.storage_opening import open_storage
from storage_engine.storage.storage_options import VARIABLE
from tests.servers.faults import DropReply, Rule
from tests.servers.faulty_proxy import FaultyProxy
from tests.servers.object_server import ObjectServer
from tests.stores import environment

TABLE = "tables/dead_letters/ingest/t"


@pytest.fixture
def proxy(proxy: FaultyProxy, s3_bucket: str, monkeypatch: pytest.MonkeyPatch) -> FaultyProxy:
    for name, value in environment(proxy.server, s3_bucket).items():
        monkeypatch.setenv(name, value)
    return proxy


@pytest.fixture
def storage(proxy: FaultyProxy, s3_bucket: str) -> Storage:
    return open_storage(f"s3://{s3_bucket}/root")


def staged(storage: Storage, task: int) -> str:
    letter = {
        "reason": "no_key", "detail": None, "topic": "t", "query_id": "q", "batch_id": 0, "task": task, "row": 0,
        "source": None, "key": None, "value": b"v", "headers": None,
    }  # fmt: skip
    buffer = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist([letter], INGEST_DEAD_LETTERS), buffer)
    key = f"staging/{task}.parquet"
    storage.put_new(key, buffer.getvalue().to_pybytes())
    return key


def read(storage: Storage, table: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = (
        DeltaTable(f"{storage.uri}/{table}", storage_options=delta_options(f"{storage.uri}/{table}"))
        .to_pyarrow_table()
        .to_pylist()
    )
    return rows


def test_dead_letters_of_four_drivers_are_each_in_the_table_once(storage: Storage) -> None:
    batches = 6
    files = [staged(storage, task) for task in range(2 * batches)]

    def drive(query: int) -> None:
        for batch in range(batches):
            append_staged_dead_letters(storage, [files[query * batches + batch]], TABLE, f"query {query}", batch)

    drivers = [threading.Thread(target=drive, args=(query,)) for query in (0, 1, 0, 1)]
    for driver in drivers:
        driver.start()
    for driver in drivers:
        driver.join()
    assert sorted(row["task"] for row in read(storage, TABLE)) == list(range(2 * batches))


@pytest.mark.parametrize("version", [0, 1])
def test_dead_letters_whose_reply_is_lost_are_in_the_table_once(
    storage: Storage, proxy: FaultyProxy, version: int
) -> None:
    files = [staged(storage, task) for task in range(2)]
    proxy.add(Rule(DropReply(), "PUT", f"_delta_log/{version:020}.json", times=1))
    for batch, file in enumerate(files):
        append_staged_dead_letters(storage, [file], TABLE, "query", batch)
    assert sorted(row["task"] for row in read(storage, TABLE)) == [0, 1]


def test_an_error_names_the_table_and_the_answer_but_no_part_of_the_keys(
    storage: Storage, s3: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = staged(storage, 0)
    append_staged_dead_letters(storage, [file], TABLE, "query", 0)
    monkeypatch.setenv(VARIABLE, json.dumps({**s3.config, "aws_secret_access_key": "another"}))
    with pytest.raises(StorageAccessError) as refused:
        append_staged_dead_letters(storage, [file], TABLE, "query", 1)
    assert str(refused.value).startswith(f"{storage.uri}/{TABLE}: cannot be written: the storage answered 403 ")
    assert s3.options["aws_access_key_id"] not in str(refused.value)
    assert refused.value.__cause__ is None


def run_export(root: str, capfd: pytest.CaptureFixture[str], *more: str) -> tuple[int, dict[str, Any]]:
    capfd.readouterr()
    argv = ["--root", root, "--json", "--set", "export.topic=t", "--set", "topics.t.schema=id BIGINT", *more]
    status = run_job("export", "", export, add_export_options, argv, {})
    return status, json.loads(capfd.readouterr().out)


def test_an_export_without_spark_continues_after_a_lost_reply_and_writes_each_record_once(
    storage: Storage, proxy: FaultyProxy, capfd: pytest.CaptureFixture[str]
) -> None:
    topic = lakelog.open(storage.uri, create=True).create_topic("t", partitions=2)
    for first in (0, 10, 20):
        topic.append([{"key": b"%d" % n, "value": b'{"id": %d}' % n} for n in range(first, first + 10)])
        if first == 10:
            proxy.add(Rule(DropReply(), "PUT", "/tables/t/_delta_log/00000000000000000002.json", times=1))
        run_export(storage.uri, capfd)
    status, last = run_export(storage.uri, capfd)
    assert (status, last["records"]) == (0, 0)
    assert sorted(row["id"] for row in read(storage, "tables/t")) == list(range(30))


def test_settings_open_a_root_whose_options_no_message_contains(
    s3: ObjectServer, s3_bucket: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, "{}")
    root = f"s3://{s3_bucket}/root"
    options = [text for name, value in s3.config.items() for text in ("--set", f"storage.options.{name}={value}")]
    status, refused = run_export(root, capfd, *options)
    assert (status, refused["error"].split(":")[0]) == (1, "topic t")
    assert s3.options["aws_secret_access_key"] not in str(refused)
    monkeypatch.setenv(VARIABLE, "{}")
    status, unknown = run_export(root, capfd, *options, "--set", "storage.options.aws_secret=hidden")
    assert status != 0
    assert "hidden" not in str(unknown)


def test_a_store_that_does_not_answer_is_unavailable(
    storage: Storage, s3: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = staged(storage, 0)
    unreachable = {**s3.config, "aws_endpoint_url": "http://127.0.0.1:9", "max_retries": "0"}
    monkeypatch.setenv(VARIABLE, json.dumps(unreachable))
    with pytest.raises(StorageUnavailableError, match="cannot be written: the storage did not answer"):
        append_staged_dead_letters(storage, [file], TABLE, "query", 0)
