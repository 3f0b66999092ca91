"""Encoding and decoding of Kafka's checkpoint files, compared with files that a 4.3.1 broker wrote."""

import pytest

from storage_engine.errors import CorruptionError
from storage_engine.log.checkpoint import (
    MetaProperties,
    decode_leader_epochs,
    decode_meta_properties,
    decode_offsets,
    decode_partition_metadata,
    encode_leader_epochs,
    encode_meta_properties,
    encode_offsets,
    encode_partition_metadata,
)

BROKERS_OFFSETS = b"0\n5\ncompact_lz4 0 3824\ncompact_delete 0 2513\ncompact 0 3752\ncompact_txn 0 786\nmulti 2 300\n"
BROKERS_EPOCHS = b"0\n2\n0 0\n2 3000\n"
BROKERS_META = (
    b"#\n#Sat Nov 21 01:25:00 UTC 2026\nnode.id=1\ndirectory.id=RfCqr_6JSqs469sDwXdEGA\nversion=1\n"
    b"cluster.id=AAAAAAAAAAAAAAAAAAAAAQ\n"
)
BROKERS_METADATA = b"version: 0\ntopic_id: oVsSIs_rRi-xvrs_EgyHig"


def test_offsets_of_a_broker_are_read() -> None:
    assert decode_offsets(BROKERS_OFFSETS, "f") == {
        ("compact_lz4", 0): 3824,
        ("compact_delete", 0): 2513,
        ("compact", 0): 3752,
        ("compact_txn", 0): 786,
        ("multi", 2): 300,
    }


def test_offsets_have_the_same_lines_as_a_brokers_sorted() -> None:
    encoded = encode_offsets(decode_offsets(BROKERS_OFFSETS, "f"))
    assert sorted(encoded.splitlines()) == sorted(BROKERS_OFFSETS.splitlines())
    assert encoded.splitlines()[2:] == sorted(BROKERS_OFFSETS.splitlines()[2:])
    assert encode_offsets({}) == b"0\n0\n"


def test_partitions_are_sorted_by_number() -> None:
    assert encode_offsets({("t", 10): 1, ("t", 9): 2}) == b"0\n2\nt 9 2\nt 10 1\n"


def test_an_empty_checkpoint_has_no_entries() -> None:
    assert decode_offsets(b"", "f") == {}


def test_leader_epochs_and_metadata_are_a_brokers_byte_for_byte() -> None:
    assert encode_leader_epochs(decode_leader_epochs(BROKERS_EPOCHS, "f")) == BROKERS_EPOCHS
    assert encode_partition_metadata(decode_partition_metadata(BROKERS_METADATA, "f")) == BROKERS_METADATA


def test_meta_properties_of_a_broker_are_read_and_ours_come_back() -> None:
    properties = decode_meta_properties(BROKERS_META, "f")
    assert properties == MetaProperties("AAAAAAAAAAAAAAAAAAAAAQ", "RfCqr_6JSqs469sDwXdEGA", 1)
    assert decode_meta_properties(encode_meta_properties(properties), "f") == properties


@pytest.mark.parametrize(
    ("data", "properties"),
    [
        (b"version=1\ncluster.id=a\nnode.id=3\n", MetaProperties("a", None, 3)),  # before Kafka 3.7
        (b"version=0\ncluster.id=a\nbroker.id=3\n", MetaProperties("a", None, 3)),  # with ZooKeeper
        (b"#\n#Thu\nversion=0\nbroker.id=3\n", MetaProperties(None, None, 3)),
        (b"version=0\n", MetaProperties(None, None, None)),
    ],
)
def test_meta_properties_of_older_brokers_are_read(data: bytes, properties: MetaProperties) -> None:
    assert decode_meta_properties(data, "f") == properties


def test_directories_of_one_node_do_not_contradict_each_other() -> None:
    old, new, third = MetaProperties(None, None, 3), MetaProperties("a", "d", 3), MetaProperties("b", "e", 3)
    assert not old.contradicts(new)
    assert new.contradicts(third)
    assert MetaProperties("a", "f", 4).contradicts(new)


@pytest.mark.parametrize(
    ("data", "position"),
    [
        (b"1\n0\n", 0),
        (b"\n", 0),
        (b"0\n", 2),
        (b"0\nmany\n", 2),
        (b"0\n2\norders 0 5\n", 2),
        (b"0\n1\norders 0 5\norders 1 5\n", 2),
        (b"0\n2\norders 0 5\norders 1\n", 15),
        (b"0\n2\norders 0 5\norders 1 -5\n", 15),
        (b"0\n1\norders zero 5\n", 4),
        (b"0\n1\n\xff\xfe 0\n", 4),
        (b"0\n" + b"9" * 5000 + b"\n", 2),
        (b"0\n1\norders 0 " + b"9" * 5000 + b"\n", 4),
        (b"0\n1\norders 0 9223372036854775808\n", 4),
        (b"0\n1\norders 2147483648 0\n", 4),
    ],
)
def test_a_malformed_checkpoint_is_refused_with_file_and_position(data: bytes, position: int) -> None:
    with pytest.raises(CorruptionError) as caught:
        decode_offsets(data, "log/recovery-point-offset-checkpoint")
    assert caught.value.file == "log/recovery-point-offset-checkpoint"
    assert caught.value.position == position


@pytest.mark.parametrize(
    "data", [b"0\n1\n0\n", b"0\n1\nx 0\n", b"0\n1\n0 0 0\n", b"2\n1\n0 0\n", b"0\n1\n2147483648 0\n"]
)
def test_malformed_leader_epochs_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptionError):
        decode_leader_epochs(data, "f")


@pytest.mark.parametrize("data", [b"", b"version: 1\ntopic_id: a", b"version: 0\n", b"\xff"])
def test_malformed_partition_metadata_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptionError):
        decode_partition_metadata(data, "f")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"version=2\ncluster.id=a\nnode.id=1\ndirectory.id=b\n",
        b"cluster.id=a\nnode.id=1\n",
        b"version=0\nbroker.id=-1\n",
        b"version=1\nnode.id=1\n",
        b"version=1\ncluster.id=a\ndirectory.id=b\nnode.id=" + b"1" * 5000,
    ],
)
def test_malformed_meta_properties_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptionError):
        decode_meta_properties(data, "f")
