"""Digests of rows: the documented form, and what does not change a digest."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pipeline.delta.chain.digest_sums import sums_by_partition
from pipeline.delta.chain.hash_kernels import hash_values
from pipeline.delta.chain.row_digest import row_digests
from pipeline.delta.chain.stamp_chain import RowSum
from storage_engine.errors import UnsupportedError

WHOLE, DOUBLE, DECIMAL, BYTES, STRUCT, FIELD, LIST, ITEM, MAP, ENTRY = range(1, 11)
ALL_ONES = 2**64 - 1


def murmur(data: bytes, seed: int) -> bytes:
    """MurmurHash3_x64_128, written from its description."""
    one, other = 0x87C37B91114253D5, 0x4CF5AD432745937F

    def rotated(value: int, bits: int) -> int:
        return ((value << bits) | (value >> (64 - bits))) & ALL_ONES

    def mixed(value: int) -> int:
        for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
            value = ((value ^ (value >> 33)) * factor) & ALL_ONES
        return value ^ (value >> 33)

    def scrambled(value: int, first: int, bits: int, second: int) -> int:
        return rotated(value * first & ALL_ONES, bits) * second & ALL_ONES

    h1 = h2 = seed
    blocks = len(data) // 16
    for number in range(blocks):
        k1, k2 = struct.unpack_from("<QQ", data, 16 * number)
        h1 = ((rotated(h1 ^ scrambled(k1, one, 31, other), 27) + h2) * 5 + 0x52DCE729) & ALL_ONES
        h2 = ((rotated(h2 ^ scrambled(k2, other, 33, one), 31) + h1) * 5 + 0x38495AB5) & ALL_ONES
    tail = data[16 * blocks :]
    h1 ^= scrambled(int.from_bytes(tail[:8], "little"), one, 31, other)
    h2 ^= scrambled(int.from_bytes(tail[8:], "little"), other, 33, one)
    h1, h2 = h1 ^ len(data), h2 ^ len(data)
    h1 = (h1 + h2) & ALL_ONES
    h1, h2 = mixed(h1), mixed((h2 + h1) & ALL_ONES)
    h1 = (h1 + h2) & ALL_ONES
    return struct.pack("<QQ", h1, (h2 + h1) & ALL_ONES)


def total(hashes: list[bytes]) -> bytes:
    return (sum(int.from_bytes(each, "little") for each in hashes) % 2**128).to_bytes(16, "little")


def digest_of(value: Any) -> bytes:
    """The hash of a value, as the table in pipeline.delta.chain.row_digest describes it."""
    if isinstance(value, bool | int) and -(2**63) <= value < 2**63:
        return murmur(struct.pack("<q", value), WHOLE)
    if isinstance(value, float):
        if (
            math.isfinite(value)
            and value == int(value)
            and -(2**63) <= value < 2**63
            and math.copysign(1, value) + value != -1
        ):
            return digest_of(int(value))
        return murmur(struct.pack("<d", math.nan if math.isnan(value) else value), DOUBLE)
    if isinstance(value, Decimal):
        sign, parts, exponent = value.as_tuple()
        digits = (-1) ** sign * int("".join(map(str, parts))) * 10 ** max(0, int(exponent))
        places = max(0, -int(exponent))
        while places > 0 and digits % 10 == 0:
            digits, places = digits // 10, places - 1
        if places == 0 and -(2**63) <= digits < 2**63:
            return digest_of(digits)
        return murmur(digits.to_bytes(16, "little", signed=True) + struct.pack("<q", places), DECIMAL)
    if isinstance(value, datetime):
        return digest_of((value - datetime(1970, 1, 1, tzinfo=UTC)) // (datetime.resolution))
    if isinstance(value, date):
        return digest_of((value - date(1970, 1, 1)).days)
    if isinstance(value, dict):
        fields = [
            murmur(murmur(name.lower().encode(), BYTES) + digest_of(each), FIELD)
            for name, each in value.items()
            if each is not None
        ]
        return murmur(total(fields), STRUCT)
    if isinstance(value, list) and value and all(isinstance(each, tuple) for each in value):
        entries = [
            murmur(digest_of(key) + (bytes(16) if each is None else digest_of(each)), ENTRY) for key, each in value
        ]
        return murmur(struct.pack("<q", len(value)) + total(entries), MAP)
    if isinstance(value, list):
        items = [
            murmur(struct.pack("<q", number) + (bytes(16) if each is None else digest_of(each)), ITEM)
            for number, each in enumerate(value)
        ]
        return murmur(struct.pack("<q", len(value)) + total(items), LIST)
    return murmur(value.encode() if isinstance(value, str) else value, BYTES)


KINDS: dict[str, tuple[pa.DataType, Callable[[random.Random], Any]]] = {
    "whole": (pa.int64(), lambda chance: chance.choice([0, -1, 2**63 - 1, -(2**63), chance.randrange(10**6)])),
    "number": (pa.int32(), lambda chance: chance.randrange(-(2**31), 2**31)),
    "flag": (pa.bool_(), lambda chance: chance.random() < 0.5),
    "real": (
        pa.float64(),
        lambda chance: chance.choice([0.0, -0.0, 2.0, -7.0, 1e308, 2.0**63, -(2.0**63), math.inf, chance.random()]),
    ),
    "price": (
        pa.decimal128(38, 4),
        lambda chance: chance.choice(
            [Decimal(0), Decimal("1.5000"), Decimal("-20.0000"), Decimal(f"{chance.randrange(-(10**37), 10**37)}e-4")]
        ),
    ),
    "text": (pa.string(), lambda chance: "ä" * chance.randrange(40)),
    "raw": (pa.binary(), lambda chance: chance.randbytes(chance.randrange(40))),
    "day": (pa.date32(), lambda chance: date.fromordinal(chance.randrange(1, 3_000_000))),
    "moment": (
        pa.timestamp("us", "UTC"),
        lambda chance: datetime.fromtimestamp(chance.randrange(-(10**9), 10**9) + 0.5, UTC),
    ),
    "part": (
        pa.struct([("a", pa.int64()), ("B", pa.list_(pa.string()))]),
        lambda chance: {"a": chance.choice([None, 1]), "B": chance.choice([None, [], ["x", None], [None, "x"]])},
    ),
    "map": (
        pa.map_(pa.string(), pa.struct([("a", pa.float64())])),
        lambda chance: [
            (key, chance.choice([None, {"a": 2.0}, {"a": None}]))
            for key in chance.sample("abcdefg", chance.randrange(1, 5))
        ],
    ),
    "parts": (
        pa.list_(pa.struct([("a", pa.int64())])),
        lambda chance: [chance.choice([None, {"a": None}, {"a": 7}]) for _ in range(chance.randrange(4))],
    ),
}


@pytest.mark.parametrize("seed", range(3))
def test_digests_have_the_documented_form(seed: int) -> None:
    chance = random.Random(seed)
    rows = [
        {name: make(chance) if chance.random() < 0.8 else None for name, (_, make) in KINDS.items()} for _ in range(60)
    ]
    schema = pa.schema([(name, kind) for name, (kind, _) in KINDS.items()])
    table = pa.Table.from_pylist(rows, schema=schema)
    wanted = [digest_of(row) for row in rows]
    assert row_digests(table).to_pylist() == wanted
    assert row_digests(table.slice(7, 20)).to_pylist() == wanted[7:27]
    cut = table.to_batches()[0].slice(30)
    assert row_digests(cut).to_pylist() == wanted[30:]
    assert len(set(wanted)) == len({repr(row) for row in rows})


def test_the_hash_is_murmur3() -> None:
    fox = b"The quick brown fox jumps over the lazy dog"
    out = np.zeros(2, np.uint64)
    hash_values(np.frombuffer(fox, np.uint8), np.array([0, len(fox)], np.int64), np.uint64(0), out)
    assert [f"{each:016x}" for each in out] == ["e34bbc7bbc071b6c", "7a433ca9c49a9347"]


def one_row(**columns: pa.Array) -> bytes:
    (digest,) = row_digests(pa.record_batch(columns)).to_pylist()
    return bytes(digest)


def test_new_columns_other_types_and_the_order_change_no_digest() -> None:
    before = one_row(number=pa.array([5]), home=pa.array([{"distance": 3}]))
    wider = pa.array([{"distance": 3.0, "stop": None}], pa.struct([("stop", pa.string()), ("distance", pa.float64())]))
    for number in (pa.array([5.0]), pa.array([Decimal("5.00")]), pa.array([5], pa.int32())):
        after = {"colour": pa.nulls(1, pa.string()), "home": wider, "Number": number, "map": pa.nulls(1)}
        assert one_row(**after) == before
    assert one_row(number=pa.array([5]), home=pa.array([{"distance": 3}]), _stale_since=pa.array([1])) == before
    assert one_row(number=pa.array([5]), home=pa.array([{"distance": 3}]), _digest=pa.array([b"x"])) == before


def test_different_rows_have_different_digests() -> None:
    rows = [
        {"a": pa.array([1])}, {"b": pa.array([1])}, {"a": pa.array([2])}, {"a": pa.array(["1"])}, {"a": pa.array([0.5])},
        {"a": pa.array([0.0])}, {"a": pa.array([-0.0])}, {"a": pa.array([Decimal("0.5")])},
        {"a": pa.array([1]), "b": pa.array([2])}, {"a": pa.array([2]), "b": pa.array([1])}, {"a": pa.array([[1, 2]])},
        {"a": pa.array([[2, 1]])}, {"a": pa.array([[]], pa.list_(pa.int64()))},
        {"a": pa.array([[None]], pa.list_(pa.int64()))}, {"a": pa.array([{"a": 1}])}, {"a": pa.array([None])},
        {"a": pa.array([[[1], [2]]])}, {"a": pa.array([[[1, 2], []]])},
        {"a": pa.array([[]], pa.map_(pa.string(), pa.int64()))}, {"a": pa.array([{"k": 1}], pa.map_(pa.string(), pa.int64()))},
    ]  # fmt: skip
    assert len({one_row(**row) for row in rows}) == len(rows)


def test_the_order_of_a_map_changes_no_digest() -> None:
    kind = pa.map_(pa.string(), pa.int64())
    one = one_row(a=pa.array([[("k", 1), ("l", None)]], kind))
    assert one == one_row(a=pa.array([[("l", None), ("k", 1)]], kind))
    assert one != one_row(a=pa.array([[("l", 1), ("k", None)]], kind))


def test_a_type_that_no_export_writes_is_refused() -> None:
    batch = pa.record_batch({"odd": pa.array([1], pa.duration("s"))})
    with pytest.raises(UnsupportedError, match=r"column odd: has the type duration\[s\], which no export writes"):
        row_digests(batch)


def test_sums_count_each_row() -> None:
    large = (2**128 - 1).to_bytes(16, "little")
    digests = pa.array([large, large, b"\x01" + bytes(15), None, b"short"], pa.binary())
    partitions = pa.array([0, 0, 1, 1, 0], pa.int32())
    assert sums_by_partition(partitions, digests) == {0: RowSum(3, 2**128 - 2), 1: RowSum(2, 1)}
    assert sums_by_partition(pa.array([], pa.int32()), pa.array([], pa.binary())) == {}
    assert RowSum(1, 5) - RowSum(2, 7) + RowSum(1, 2) == RowSum()
