"""Requests to an S3 server that arrive after their sender has given up."""

from __future__ import annotations

import pytest

from storage_engine.clock import ManualClock
from storage_engine.config import BrokerConfig
from storage_engine.errors import AmbiguousPutError, FencedError
from storage_engine.log.holds import Holds
from storage_engine.storage.objects import object_storage
from storage_engine.storage.storage_opening import open_storage
from storage_engine.topic.append.appending import append_records
from storage_engine.topic.broker_settings import put_broker_settings, read_broker_settings
from storage_engine.topic.chain.version_files import version_key
from storage_engine.topic.readers.consumer_files import read_consumers
from storage_engine.topic.readers.membership import Membership, find_group, join
from storage_engine.topic.topics import Topics
from tests.servers.faults import Answer, Fault, Hold, Rule
from tests.servers.faulty_proxy import FaultyProxy
from tests.servers.object_server import ObjectServer
from tests.storage_engine.record_tables import Row, to_table
from tests.stores import environment, new_bucket

START = 1_700_000_000_000


@pytest.fixture
def topics(proxy: FaultyProxy, s3: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> Topics:
    """A root whose requests pass the proxy, with five records in the topic t."""
    bucket = new_bucket(s3)
    for name, value in environment(proxy.server, bucket).items():
        monkeypatch.setenv(name, value)
    topics = Topics(open_storage(f"s3://{bucket}/root"), BrokerConfig(), ManualClock(START))
    topics.create("t", 1, {})
    append(topics)
    return topics


def append(topics: Topics) -> None:
    rows = [Row(b"k", b"v", (), START) for _ in range(5)]
    config = topics.config(topics.state("t"))
    append_records(topics.storage, topics.chain("t"), config, topics.clock, to_table(rows), 0)


def member_of(topics: Topics, member: str) -> Membership:
    return join(topics.storage, topics.state("t"), "g", member, "host", START, holds_back=True)


@pytest.mark.parametrize(
    ("fault", "answer", "statuses"), [(Hold(), "", [200] + 5 * [412]), (Answer(503), " (it answered 503 SlowDown)", [])]
)
def test_an_append_without_an_answer_is_possibly_committed(
    proxy: FaultyProxy,
    topics: Topics,
    monkeypatch: pytest.MonkeyPatch,
    fault: Fault,
    answer: str,
    statuses: list[int],
) -> None:
    monkeypatch.setattr(object_storage, "PAUSES", (0.0,))
    proxy.add(Rule(fault, "PUT", "/meta/t/0"))
    with pytest.raises(AmbiguousPutError) as caught:
        append(topics)
    assert str(caught.value) == (
        f"{topics.storage.uri}/{version_key('t', 2)}: version 2 of topic t may have been put: the store did not answer"
        f" whether it created the file{answer}. The change may be committed. Check with `lakelog topics describe` before"
        " you repeat the change."
    )
    proxy.clear()
    assert [reply.status for reply in proxy.release()] == statuses
    assert topics.state("t").partitions[0].high_watermark == (10 if statuses else 5)


def test_a_put_of_settings_that_arrives_late_does_not_undo_a_later_change(proxy: FaultyProxy, topics: Topics) -> None:
    """The late put replaces settings that are equal to the present settings."""
    put_broker_settings(topics.storage, {"log.retention.ms": "7"})
    proxy.add(Rule(Hold(), "PUT", "settings.json", times=1))
    put_broker_settings(topics.storage, {"log.retention.ms": "1"})
    put_broker_settings(topics.storage, {"log.retention.ms": "7"})
    assert [reply.status for reply in proxy.release()] == [412]
    assert read_broker_settings(topics.storage) == {"log.retention.ms": "7"}


def test_if_the_put_of_a_joining_member_arrives_late_no_committed_position_is_lost(
    proxy: FaultyProxy, topics: Topics
) -> None:
    first = member_of(topics, "m")
    first.commit(topics.state("t"), {0: 2}, START)
    proxy.add(Rule(Hold(), "PUT", "/groups/"))
    with pytest.raises(AmbiguousPutError):
        member_of(topics, "n")
    proxy.clear()
    first.commit(topics.state("t"), {0: 4}, START)
    assert {reply.status for reply in proxy.release()} == {200, 412}
    found = find_group(topics.storage, topics.state("t"), "g")
    assert found == first.consumer
    assert read_consumers(topics.storage, topics.state("t")).holds(0) == Holds({"g": 4})
    with pytest.raises(FencedError):
        first.commit(topics.state("t"), {0: 5}, START)
    assert member_of(topics, "o").consumer.positions == {0: 4}
