"""Committed bytes that have changed. Operations that need these bytes report the place of the damage, and all
other operations succeed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import deltalake
import numpy as np
import pytest

from storage_engine.clock import SystemClock
from storage_engine.config import BrokerConfig
from storage_engine.errors import CorruptionError
from storage_engine.record.batch import scan_batches
from storage_engine.record.encoding import seal_batches
from storage_engine.record.header import (
    CRC_POSITION,
    HEADER_BYTES,
    LAST_OFFSET_DELTA_POSITION,
    LENGTH_POSITION,
    MAGIC_POSITION,
)
from storage_engine.storage.posix import PosixStorage
from storage_engine.topic.clean.topic_compaction import CompactionResult, compact_topic
from storage_engine.topic.topics import Topics
from tests.bad_input.conftest import Lakelog, RunJob, contents, said
from tests.lakelog.cli.conftest import line
from tests.storage_engine.topic.chain.signed_documents import change_fields

pytestmark = pytest.mark.posix("damages the files of a local root")

CODEC_POSITION = 22
COUNT_POSITION = 57
RECORDS = 20
BATCH = 1
"""The batch that is damaged, of those in the first segment."""


@pytest.fixture(params=["uncompressed", "zstd"])
def filled(lakelog: Lakelog, request: pytest.FixtureRequest) -> Lakelog:
    """Topic t, compacted: two partitions with several batches and segments each."""
    settings = {"cleanup.policy": "compact", "segment.bytes": "1024", "max.message.bytes": "500"}
    settings["compression.type"] = request.param
    options = [word for key, value in settings.items() for word in ("--config", f"{key}={value}")]
    lakelog("topics", "create", "t", "--partitions", "2", *options)
    chance = np.random.default_rng(7)
    for partition in ("0", "1"):
        rows = [line(b"%d" % (number % 9), chance.bytes(120)) for number in range(RECORDS)]
        assert lakelog("append", "--topic", "t", "--partition", partition, stdin=rows).status == 0
    return lakelog


def first_log(root: Path) -> Path:
    return min(root.glob("data/*/0/*.log"))


def set_byte(field: int, value: int) -> Callable[[bytearray, int, int], None]:
    def damage(data: bytearray, position: int, size: int) -> None:
        data[position + field] = value

    return damage


def behind_a_good_crc(field: int, value: bytes) -> Callable[[bytearray, int, int], None]:
    """What a writer with a defect would leave: the checksum is right and the content is not."""

    def damage(data: bytearray, position: int, size: int) -> None:
        batch = np.frombuffer(data, np.uint8)[position : position + size]
        batch[field : field + len(value)] = np.frombuffer(value, np.uint8)
        seal_batches(batch, np.array([size]))

    return damage


TWO_GIB = bytes.fromhex("feffffff0f")  # the varint of 2 GiB - 1
DAMAGES = {
    "length": set_byte(LENGTH_POSITION, 0x7F),  # about 2 GiB
    "negative length": set_byte(LENGTH_POSITION, 0xFF),
    "magic": set_byte(MAGIC_POSITION, 1),
    "crc": set_byte(CRC_POSITION, 0),
    "last offset delta": set_byte(LAST_OFFSET_DELTA_POSITION, 0x7F),
    "codec": behind_a_good_crc(CODEC_POSITION, b"\x07"),
    "count": behind_a_good_crc(COUNT_POSITION, (2**31 - 1).to_bytes(4, "big")),
    "records": set_byte(HEADER_BYTES + 20, 0xEE),
    "records behind a good crc": behind_a_good_crc(HEADER_BYTES, TWO_GIB),
}


def compact(root: Path) -> CompactionResult:
    topics = Topics(PosixStorage(root), BrokerConfig(), SystemClock())
    config = topics.config(topics.state("t"))
    return compact_topic(topics.storage, topics.chain("t"), config, topics.broker, topics.clock, force=True)


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damage_is_named_by_those_who_meet_it_and_stops_nobody_else(
    filled: Lakelog, root: Path, damage: Callable[[bytearray, int, int], None]
) -> None:
    log = first_log(root)
    key = str(log.relative_to(root))
    whole = filled("read", "--topic", "t")
    good = log.read_bytes()
    table = scan_batches(np.frombuffer(good, np.uint8), key)
    position, size = int(table.positions[BATCH]), int(table.sizes[BATCH])
    bad = bytearray(good)
    damage(bad, position, size)
    log.write_bytes(bad)
    before = contents(root)

    ended = filled("read", "--topic", "t", "--partition", "0")
    assert (ended.status, ended.err.count("\n")) == (1, 1)
    assert ended.err.startswith(f"lakelog: {key} at position {position}: expected ")
    assert ended.records == whole.records[: len(ended.records)], "what was printed before the damage is right"
    assert filled("read", "--topic", "t", "--partition", "1").status == 0
    assert filled("offsets", "--topic", "t").status == 0
    assert contents(root) == before

    result = compact(root)
    (failure,) = result.failed
    assert failure.partition == 0
    assert isinstance(failure.error, CorruptionError)
    assert (failure.error.file, failure.error.position) == (key, position)
    assert [each.partition for each in result.cleaned] == [1]
    assert {name: data for name, data in contents(root).items() if "/0/" in name} == {
        name: data for name, data in before.items() if "/0/" in name
    }, "no byte of the damaged partition has changed"

    log.write_bytes(good)
    records = [record for record in whole.records if record["partition"] == 0]
    assert filled("read", "--topic", "t", "--partition", "0").records == records
    assert not compact(root).failed


@pytest.mark.parametrize("left", [0, 1, 60, -1], ids=["nothing", "one byte", "half a header", "all but one byte"])
def test_a_log_that_lost_committed_bytes_is_named(filled: Lakelog, root: Path, left: int) -> None:
    log = first_log(root)
    good = log.read_bytes()
    log.write_bytes(good[:left])
    before = contents(root)
    for ended in (filled("topics", "settle"), filled("read", "--topic", "t", "--max", "1")):
        message = said(ended, str(log.relative_to(root)))
        assert f"{len(good)} committed bytes" in message
        assert "Restore the file from a backup." in message
    assert filled("read", "--topic", "t", "--partition", "1").status == 0
    assert contents(root) == before
    log.write_bytes(good)
    assert filled("topics", "settle").status == 0
    assert len(filled("read", "--topic", "t").records) == 2 * RECORDS


def newest_state(root: Path) -> Path:
    return max((root / "meta/t").glob("*.json"))


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: "[" * 100_000,
        lambda text: text.replace('"high_watermark":', '"high_watermark":-'),
        lambda text: text.replace('"high_watermark":', '"high_watermark":1' + 30 * "0"),
        lambda text: text.replace('"size":', '"bytes":').replace('"deleted":false', '"deleted":"perhaps"'),
        lambda text: text.replace('"topic":"t"', '"topic":"u"'),
        lambda text: text.replace('"version":', '"version":1'),
        lambda text: text.replace('"format":2', '"format":99'),
        lambda text: text.replace('"high_watermark":1', '"high_watermark":0'),
        lambda text: text.replace('"format":2', '"format":1').rpartition(',"digest"')[0] + "}",
    ],
    ids=[
        "empty",
        "half",
        "deep",
        "negative",
        "beyond 64 bits",
        "no truth",
        "another topic",
        "another version",
        "newer",
        "one digit",
        "without a digest",
    ],
)
def test_a_damaged_state_is_named_and_nothing_is_changed(
    lakelog: Lakelog, root: Path, damage: Callable[[str], str]
) -> None:
    lakelog("topics", "create", "t")
    lakelog("append", "--topic", "t", stdin=[line(b"k", b"v")])
    state = newest_state(root)
    good = state.read_text()
    state.write_text(damage(good))
    before = contents(root)
    for command in (
        ("topics", "list"), ("topics", "describe", "t"), ("topics", "alter", "t", "--partitions", "2"),
        ("topics", "delete", "t"), ("topics", "settle"), ("append", "--topic", "t"), ("read", "--topic", "t"),
        ("offsets", "--topic", "t"),
    ):  # fmt: skip
        said(lakelog(*command, stdin=[line(b"k", b"v")]), f"{state.relative_to(root)} at position ")
    assert contents(root) == before
    state.write_text(good)
    assert lakelog("append", "--topic", "t", stdin=[line(b"k", b"v")]).status == 0
    assert len(lakelog("read", "--topic", "t").records) == 2


@pytest.mark.parametrize("name", ["../../../outside", "/outside", "x/../../../../outside"])
def test_a_state_that_names_a_file_outside_the_root_reaches_nothing_there(
    lakelog: Lakelog, root: Path, tmp_path: Path, name: str
) -> None:
    lakelog("topics", "create", "t", "--config", "file.delete.delay.ms=0", "--config", "retention.ms=1")
    lakelog("append", "--topic", "t", stdin=[line(b"k", b"v", timestamp=1)])
    outside = tmp_path / "outside.log"
    outside.write_bytes(first_log(root).read_bytes())
    state = newest_state(root)
    partitions = json.loads(state.read_text())["partitions"]
    partitions[0]["segments"][0][1] = name
    change_fields(PosixStorage(root), str(state.relative_to(root)), partitions=partitions)
    for command in (("read", "--topic", "t"), ("topics", "settle")):
        ended = lakelog(*command)
        assert ended.status == 1
        assert ended.out == ""
    assert "the key names a place outside of the root" in lakelog("read", "--topic", "t").err
    assert outside.read_bytes()


@pytest.mark.parametrize("filled", ["uncompressed"], indirect=True)
def test_jobs_do_the_other_partitions_and_export_leaves_its_table(
    filled: Lakelog, root: Path, job: RunJob, spark: object
) -> None:
    export = ("export", "--set", "export.topic=t")
    assert job(*export).status == 0
    table = deltalake.DeltaTable(root / "tables/t")
    log = first_log(root)
    key = str(log.relative_to(root))
    filled("append", "--topic", "t", "--partition", "0", stdin=[line(b"new", b"v")])
    newest = max(root.glob("data/*/0/*.log"))
    position = int(scan_batches(np.fromfile(log, np.uint8), key).positions[-1])
    for path in (log, newest):
        path.write_bytes(path.read_bytes()[:-1] + b"\xee")
    before = contents(root)

    message = said(job(*export), f"export: {newest.relative_to(root)} at position ")
    assert "expected a batch with CRC-32C" in message
    assert deltalake.DeltaTable(root / "tables/t").version() == table.version()
    assert contents(root) == before

    ended = job("compaction")
    assert ended.status == 4
    assert f"compaction: failed: topic t, partition 0: {key} at position {position}: expected a batch" in ended.err
    assert "partitions compacted 1" in ended.out
    assert "Traceback" not in ended.err
