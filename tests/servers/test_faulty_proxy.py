"""Tests that the S3 server keeps its promises, and that a faulty proxy breaks them in the way that a test asks for."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import obstore
import pytest
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import S3Store

from tests.servers.faults import (
    Answer,
    AnswerAfterwards,
    CutReply,
    CutRequest,
    Delay,
    DelayReply,
    DropReply,
    DropRequest,
    Fault,
    Hold,
    IgnoreConditions,
    RandomPlan,
    Repeat,
    RepeatLater,
    Rule,
)
from tests.servers.faulty_proxy import FaultyProxy, longest_chain
from tests.servers.object_server import ObjectServer

WRITERS = 8
RACES = 60


def client(server: ObjectServer, bucket: str, retries: int = 0, timeout: float = 60) -> S3Store:
    options: dict[str, Any] = {
        "config": server.config,
        "client_options": {"allow_http": True, "timeout": timedelta(seconds=timeout)},
        "retry_config": {"max_retries": retries},
    }
    return S3Store.from_url(f"s3://{bucket}/some/prefix", **options)


def creates(store: S3Store, key: str, data: bytes) -> bool:
    """Whether a conditional put wins."""
    try:
        obstore.put(store, key, data, mode="create")
    except AlreadyExistsError:
        return False
    return True


def read(store: S3Store, key: str) -> bytes:
    return bytes(obstore.get(store, key).bytes())


def race(stores: Sequence[S3Store], key: str) -> list[bytes]:
    """Each store puts another value at the same time; the values that won."""
    values = [b"writer %d" % number for number in range(len(stores))]
    with ThreadPoolExecutor(len(stores)) as pool:
        won = list(pool.map(lambda store, value: creates(store, key, value), stores, values))
    return [value for value, has_won in zip(values, won, strict=True) if has_won]


def test_one_of_many_writers_wins_each_name(s3: ObjectServer, s3_bucket: str) -> None:
    stores = [client(s3, s3_bucket) for _ in range(WRITERS)]
    won = [race(stores, f"{number}.json") for number in range(RACES)]
    assert [len(winners) for winners in won] == [1] * RACES
    assert [read(stores[0], f"{number}.json") for number in range(RACES)] == [winner for (winner,) in won]


def test_one_of_many_writers_wins_behind_a_proxy(proxy: FaultyProxy, s3_bucket: str) -> None:
    stores = [client(proxy.server, s3_bucket) for _ in range(WRITERS)]
    assert [len(race(stores, f"{number}.json")) for number in range(RACES)] == [1] * RACES
    statuses = [each.status for each in proxy.exchanges]
    assert (statuses.count(200), len(statuses)) == (RACES, RACES * WRITERS)


def test_all_writers_win_if_a_proxy_removes_the_condition(proxy: FaultyProxy, s3_bucket: str) -> None:
    store = client(proxy.server, s3_bucket)
    proxy.add(Rule(IgnoreConditions(), "PUT", conditional=True))
    assert [creates(store, "a.json", value) for value in (b"first", b"second")] == [True, True]
    assert read(store, "a.json") == b"second"


def test_objects_of_all_sizes_pass_a_proxy(proxy: FaultyProxy, s3: ObjectServer, s3_bucket: str) -> None:
    store, direct = client(proxy.server, s3_bucket), client(s3, s3_bucket)
    values = {f"{size} äß+%.log": random.Random(size).randbytes(size) for size in (0, 1, 70_000, 12_000_000)}
    for key, value in values.items():
        obstore.put(store, key, value, chunk_size=5 << 20)  # the largest value is put in parts
    assert {key: read(direct, key) for key in values} == values
    assert {key: read(store, key) for key in values} == values
    assert bytes(obstore.get_range(store, "70000 äß+%.log", start=10, length=7)) == values["70000 äß+%.log"][10:17]
    listed = [meta for page in obstore.list(store) for meta in page]
    assert {meta["path"]: meta["size"] for meta in listed} == {key: len(value) for key, value in values.items()}
    assert obstore.head(store, "70000 äß+%.log")["size"] == 70_000
    obstore.delete(store, list(values))
    assert [meta for page in obstore.list(direct) for meta in page] == []


@pytest.mark.parametrize(
    ("fault", "executed", "raised"),
    [
        (DropRequest(), False, BaseError),
        (DropReply(), True, BaseError),
        (Hold(), False, BaseError),
        (CutRequest(), False, BaseError),
        (Repeat(), True, AlreadyExistsError),
        (RepeatLater(), True, None),
        (Answer(409), False, AlreadyExistsError),
        (Answer(412), False, AlreadyExistsError),
        (Answer(429), False, BaseError),
        (Answer(500), False, BaseError),
        (Answer(503), False, BaseError),
        (AnswerAfterwards(412), True, AlreadyExistsError),
        (AnswerAfterwards(503), True, BaseError),
        (Delay(0.01), True, None),
        (DelayReply(0.01), True, None),
    ],
    ids=str,
)
def test_a_fault_executes_a_put_and_answers_as_it_says(
    proxy: FaultyProxy, s3: ObjectServer, s3_bucket: str, fault: Fault, executed: bool, raised: type[Exception] | None
) -> None:
    rule = Rule(fault, "PUT", "a.json", times=1)
    proxy.add(rule)
    outcome = error_of(lambda: obstore.put(client(proxy.server, s3_bucket), "a.json", b"12345678", mode="create"))
    assert (outcome is None) if raised is None else isinstance(outcome, raised)
    assert keys(client(s3, s3_bucket)) == ({"a.json": 8} if executed else {})
    assert [(each.method, each.path, each.fault) for each in proxy.exchanges] == [
        ("PUT", f"/{s3_bucket}/some/prefix/a.json", fault)
    ]


def error_of(act: Callable[[], object]) -> BaseError | None:
    try:
        act()
    except BaseError as error:
        return error
    return None


def keys(store: S3Store) -> dict[str, int]:
    return {meta["path"]: meta["size"] for page in obstore.list(store) for meta in page}


def test_a_client_that_retries_after_a_lost_reply_is_told_that_the_name_is_taken(
    proxy: FaultyProxy, s3_bucket: str
) -> None:
    proxy.add(Rule(AnswerAfterwards(503), "PUT", times=1))
    store = client(proxy.server, s3_bucket, retries=3)
    assert not creates(store, "a.json", b"mine")
    assert read(store, "a.json") == b"mine"
    assert [(each.method, each.status) for each in proxy.exchanges] == [("PUT", 503), ("PUT", 412), ("GET", 200)]


def test_a_late_request_arrives_after_the_client_has_given_up(proxy: FaultyProxy, s3_bucket: str) -> None:
    store = client(proxy.server, s3_bucket)
    proxy.add(Rule(Hold(), "PUT", times=1))
    with pytest.raises(BaseError):
        obstore.put(store, "a.json", b"old")
    obstore.put(store, "a.json", b"new")
    assert [reply.status for reply in proxy.release()] == [200]
    assert read(store, "a.json") == b"old"


def test_a_request_is_repeated_after_other_requests(proxy: FaultyProxy, s3_bucket: str) -> None:
    store = client(proxy.server, s3_bucket)
    proxy.add(Rule(RepeatLater(), "PUT", times=1))
    assert creates(store, "a.json", b"first")
    obstore.delete(store, "a.json")
    assert [reply.status for reply in proxy.release()] == [200]
    assert read(store, "a.json") == b"first"


def test_a_reply_that_ends_early_is_an_error(proxy: FaultyProxy, s3_bucket: str) -> None:
    store = client(proxy.server, s3_bucket)
    obstore.put(store, "a.log", bytes(100_000))
    proxy.add(Rule(CutReply(), "GET", times=1))
    with pytest.raises(BaseError):
        read(store, "a.log")
    assert read(store, "a.log") == bytes(100_000)


def test_a_client_gives_up_when_a_reply_is_late(proxy: FaultyProxy, s3: ObjectServer, s3_bucket: str) -> None:
    proxy.add(Rule(DelayReply(3), "PUT", times=1))
    with pytest.raises(BaseError):
        obstore.put(client(proxy.server, s3_bucket, timeout=0.5), "a.json", b"1", mode="create")
    assert keys(client(s3, s3_bucket)) == {"a.json": 1}


def test_a_rule_chooses_requests(proxy: FaultyProxy, s3_bucket: str) -> None:
    store = client(proxy.server, s3_bucket)
    proxy.add(Rule(Answer(503), "PUT", "/a", skip=1, times=2), Rule(Answer(500), "PUT", "/c", conditional=True))
    for key in ("a1", "a2", "b", "a3", "a4", "c"):
        error_of(lambda key=key: obstore.put(store, key, b""))  # type: ignore[misc]
    error_of(lambda: obstore.put(store, "c", b"", mode="create"))
    assert [each.status for each in proxy.exchanges] == [200, 503, 200, 503, 200, 200, 500]
    proxy.clear()
    assert creates(store, "d", b"")


def test_requests_are_counted(proxy: FaultyProxy, s3_bucket: str) -> None:
    store = client(proxy.server, s3_bucket)
    for key in ("a", "b"):
        obstore.put(store, key, b"1")
    read(store, "a")
    assert (proxy.count(), proxy.count("PUT"), proxy.count("GET", "/a"), proxy.count("GET", "/b")) == (3, 2, 1, 0)
    assert [each.method for each in proxy.forget()] == ["PUT", "PUT", "GET"]
    assert proxy.count() == 0


def test_the_longest_chain_leaves_out_requests_that_overlap(proxy: FaultyProxy, s3_bucket: str) -> None:
    proxy.latency_seconds = 0.3
    store = client(proxy.server, s3_bucket)
    for key in ("a", "b"):
        obstore.put(store, key, b"1")
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda _: read(store, "a"), range(6)))
    assert proxy.count() == 8
    assert longest_chain(proxy.exchanges) == 3


def test_a_random_plan_does_the_same_again(proxy: FaultyProxy, s3_bucket: str) -> None:
    seed = int(os.environ.get("SEED", time.time_ns()))
    plan = RandomPlan(seed, 0.5, [Answer(503), AnswerAfterwards(503), DropReply(), DropRequest()])
    proxy.add(plan)
    store = client(proxy.server, s3_bucket)
    runs = []
    for order in (range(30), reversed(range(30))):
        plan.seen.clear()
        for number in order:
            error_of(lambda number=number: obstore.put(store, f"{number:02}", b""))  # type: ignore[misc]
        runs.append(sorted((each.path, str(each.fault), each.status) for each in proxy.forget()))
    assert runs[0] == runs[1], plan
    assert 0 < sum(fault != "None" for _, fault, _ in runs[0]) < 30, plan


def test_a_server_that_has_ended_looks_like_a_closed_connection(proxy: FaultyProxy, s3_bucket: str) -> None:
    gone = proxy.server.behind("http://127.0.0.1:9")
    with FaultyProxy(gone) as dead_end, pytest.raises(BaseError):
        obstore.put(client(dead_end.server, s3_bucket), "a", b"")
    assert [each.status for each in dead_end.exchanges] == [None]
