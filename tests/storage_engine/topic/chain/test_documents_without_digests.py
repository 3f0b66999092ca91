"""A new root has no documents of format 1, which have no digest. Tests that a document in this format counts as damage
in a new root, for every kind of document.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from storage_engine.clock import ManualClock
from storage_engine.config import BrokerConfig
from storage_engine.errors import AmbiguousPutError, CorruptionError
from storage_engine.kafka_dir.log_directory import LogDirectory
from storage_engine.storage import Storage
from storage_engine.topic.append.staged_list import StagedBatch, pending_lists, put_list
from storage_engine.topic.append.topic_writer import BatchIdentity
from storage_engine.topic.append.transaction_writer import TransactionWriter
from storage_engine.topic.broker_settings import put_broker_settings, read_broker_settings
from storage_engine.topic.chain.transaction_files import decide, read_begun, read_ended
from storage_engine.topic.kafka.kafka_import import import_topic
from storage_engine.topic.readers.consumer_files import put_positions, read_consumers
from storage_engine.topic.topics import Topics
from storage_engine.verify.root.damaged_documents import damaged_documents
from tests.storage_engine.record_tables import Row, to_table
from tests.stores import storage_at

GOLDEN = Path(__file__).parents[3] / "golden"
CLOCK = ManualClock(1_700_000_000_000)
RECORD = "meta/@root/format.json"


def without_digest(storage: Storage, key: str) -> None:
    """What a document of format 1 with these fields is."""
    document = json.loads(storage.read(key)) | {"format": 1}
    del document["digest"]
    storage.replace(key, json.dumps(document, separators=(",", ":")).encode())


def consumers(storage: Storage, topics: Topics) -> object:
    found = read_consumers(storage, topics.chain("t").newest())
    for error in found.damaged:
        raise error
    return found.known


READS: dict[str, Callable[[Storage, Topics], object]] = {
    "meta/t/00000000000000000000.json": lambda storage, topics: topics.chain("t").at(0),
    "meta/t/00000000000000000001.json": lambda storage, topics: topics.state("t"),
    "meta/t/groups/": consumers,
    "begun.json": lambda storage, topics: read_begun(storage, transaction_of(storage)),
    "ended.json": lambda storage, topics: read_ended(storage, transaction_of(storage)),
    "staging/batches/": lambda storage, topics: list(pending_lists(storage)),
    "meta/@broker/": lambda storage, topics: read_broker_settings(storage),
}


def transaction_of(storage: Storage) -> int:
    return int(next(storage.list("meta/@transactions/")).key.split("/")[2].split(".")[0])


@pytest.mark.parametrize("part", READS)
def test_a_document_without_its_digest_is_damage_in_a_root_of_today_and_none_in_an_old_one(
    tmp_path: Path, part: str
) -> None:
    storage = storage_at(tmp_path / "root")
    topics = Topics(storage, BrokerConfig(), CLOCK)
    topics.create("t", 1, {})
    transaction = TransactionWriter(topics)
    transaction.append("t", to_table([Row(b"k", b"v")]))
    assert transaction.producer_id is not None
    decide(storage, CLOCK, transaction.producer_id, committed=True)
    put_positions(storage, topics.state("t"), "audit", "reader", {0: 0}, 7, holds_back=True)
    put_list(storage, StagedBatch(BatchIdentity("q", 0, "0" * 64), ()))
    put_broker_settings(storage, {"log.retention.hours": "9"})
    (key,) = (file.key for folder in ("meta/", "staging/batches/") for file in storage.list(folder) if part in file.key)
    read = READS[part]
    before = read(storage, topics)
    without_digest(storage, key)
    with pytest.raises(
        CorruptionError, match=f"ends with its digest, like every document of this root, found none.*remove {RECORD}"
    ):
        read(storage, Topics(storage, BrokerConfig(), CLOCK))
    assert [error.file for error in damaged_documents(storage)] == [key]
    storage.delete(RECORD)
    if "00001" not in part:  # whose parent is of format 2
        again = read(storage, Topics(storage, BrokerConfig(), CLOCK))
        assert str(again).replace("format=1", "format=2") == str(before)


def test_a_root_is_told_to_be_of_today_by_whoever_puts_its_first_document(tmp_path: Path) -> None:
    made = [storage_at(tmp_path / name) for name in ("created", "imported", "altered")]
    Topics(made[0], BrokerConfig(), CLOCK).create("t", 1, {})
    import_topic(Topics(made[1], BrokerConfig(), CLOCK), LogDirectory(GOLDEN / "idem" / "data"), "idem")
    put_broker_settings(made[2], {"log.retention.hours": "9"})
    for storage in made:
        document = json.loads(storage.read(RECORD))
        assert (document["format"], document["first"]) == (2, 2)


def test_a_put_that_nobody_can_tell_of_is_reported_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unclear(_storage: Storage, key: str, _data: bytes) -> None:
        raise AmbiguousPutError(key, "no reply", "Try again.")

    storage = storage_at(tmp_path / "root")
    monkeypatch.setattr(type(storage), "put_new", unclear)
    with pytest.raises(AmbiguousPutError, match="no reply"):
        put_broker_settings(storage, {"log.retention.hours": "9"})
