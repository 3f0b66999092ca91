"""Damages files in such a way that many checks still succeed. So readers get far into a damaged file.

A batch of a log is changed in its header, in its compressed bytes, or in its records before they are compressed. Then
its length, its CRC and the CRCs inside its records are nearly always corrected. The CRCs of small binary files are
corrected, too. In text files, numbers become larger than any integer type, or bytes become invalid text.
"""

from __future__ import annotations

import gzip
import random
import zlib
from collections.abc import Callable, Sequence

from crc32c import crc32c

from storage_engine.record.compression import Codec, compress
from storage_engine.record.header import BATCH_HEADER, CRC_START, HEADER_BYTES
from tests.storage_engine.fuzz.corpus import Sample, batches_of
from tests.storage_engine.record_tables import decompress

_MOST_PLAIN = 64 * 1024
_HUGE_VARINTS = [
    bytes.fromhex(text) for text in ("feffffff0f", "ffffffff0f", "ffffffffffffffffff01", "ff" * 11, "01", "80")
]
_TEXTS = [
    b"9" * 30,
    b"9" * 5000,
    b"-1",
    b"0",
    b" ",
    b"\n",
    b"\n\n",
    b"\0",
    b"\xff\xfe",
    b"1e9",
    b"_1",
    b"\t7",
    "²".encode(),
]
_FIELDS = [(position, dtype.itemsize) for dtype, position, *_ in (BATCH_HEADER.fields or {}).values()]


def mutated(sample: Sample, others: Sequence[Sample], chance: random.Random) -> bytes:
    """The sample's bytes with one or several mutations; `others` are of its kind and may lend some of theirs."""
    mutate = _MUTATORS.get(sample.kind, _mutated_log)
    return mutate(sample.data, others, chance)


def _mutated_log(data: bytes, others: Sequence[Sample], chance: random.Random) -> bytes:
    batches = [data[start:end] for start, end in batches_of(data)]
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        at = chance.randrange(len(batches))
        if chance.random() < 0.9:
            batches[at] = _mutated_batch(batches[at], others, chance)
        else:
            batches = _rearranged(batches, at, others, chance) or batches
    log = b"".join(batches)
    return log[: chance.randrange(len(log) + 1)] if chance.random() < 0.03 else log


def _rearranged(batches: list[bytes], at: int, others: Sequence[Sample], chance: random.Random) -> list[bytes]:
    """A batch lost, twice there, elsewhere, or beside one from another log."""
    match chance.randrange(4):
        case 0:
            return batches[:at] + batches[at + 1 :]
        case 1:
            return [*batches[: at + 1], *batches[at:]]
        case 2:
            return [*batches[at:], *batches[:at]]
        case _:
            return [*batches[: at + 1], chance.choice(others).data, *batches[at + 1 :]]


def _mutated_batch(batch: bytes, others: Sequence[Sample], chance: random.Random) -> bytes:
    if len(batch) < HEADER_BYTES or batch[16] < 2:
        return _sealed(_mutated_bytes(batch, others, chance), chance)
    header, records = bytearray(batch[:HEADER_BYTES]), batch[HEADER_BYTES:]
    kind = chance.random()
    if kind < 0.35:
        position, size = chance.choice(_FIELDS)
        header[position : position + size] = _number(size, chance)
    elif kind < 0.55 or not records:
        records = _mutated_bytes(records, others, chance)
    else:
        codec = Codec(header[22] & 7) if header[22] & 7 <= 4 else Codec.NONE
        try:
            plain = decompress(codec, records)[:_MOST_PLAIN]
        except ValueError:
            plain = records
        plain = _mutated_bytes(plain, others, chance)
        if chance.random() < 0.2:
            codec = chance.choice(list(Codec))
            header[22] = header[22] & ~7 | codec
        records = gzip.compress(plain, 1) if codec is Codec.GZIP else compress(codec, plain)
    return _sealed(bytes(header) + records, chance)


def _sealed(batch: bytes, chance: random.Random) -> bytes:
    """The batch with a length and a CRC that fit, with some exceptions."""
    sealed = bytearray(batch)
    if len(sealed) < HEADER_BYTES:
        return batch
    if chance.random() < 0.95:
        sealed[8:12] = (len(sealed) - 12).to_bytes(4, "big")
    if chance.random() < 0.95:
        if sealed[16] < 2:
            sealed[12:16] = zlib.crc32(sealed[16:]).to_bytes(4, "big")
        else:
            sealed[17:21] = crc32c(sealed[CRC_START:]).to_bytes(4, "big")
    return bytes(sealed)


def _mutated_snapshot(data: bytes, others: Sequence[Sample], chance: random.Random) -> bytes:
    changed = bytearray(_mutated_bytes(data, others, chance))
    if len(changed) >= 10 and chance.random() < 0.9:
        if chance.random() < 0.7:
            changed[6:10] = max(0, (len(changed) - 10) // 46).to_bytes(4, "big")
        changed[2:6] = crc32c(changed[6:]).to_bytes(4, "big")
    return bytes(changed)


def _mutated_text(data: bytes, others: Sequence[Sample], chance: random.Random) -> bytes:
    if chance.random() < 0.4:
        return _mutated_bytes(data, others, chance)
    for _ in range(chance.choice((1, 1, 2))):
        start = chance.randrange(len(data) + 1)
        data = data[:start] + chance.choice(_TEXTS) + data[start + chance.choice((0, 0, 1, 1, 8)) :]
    return data


def _mutated_bytes(data: bytes, others: Sequence[Sample], chance: random.Random) -> bytes:
    """Mutations that know nothing of what they hit."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4))):
        start = chance.randrange(len(changed) + 1)
        length = min(len(changed) - start, chance.choice((1, 1, 2, 4, 8, 40, 500)))
        match chance.randrange(9):
            case 0 | 1:
                for _ in range(chance.choice((1, 1, 3, 8))):
                    if changed:
                        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
            case 2 | 3:
                size = chance.choice((1, 2, 4, 8))
                changed[start : start + size] = _number(size, chance)
            case 4:
                varint = chance.choice(_HUGE_VARINTS)
                changed[start : start + chance.choice((1, len(varint)))] = varint
            case 5:
                del changed[start : start + length]
            case 6:
                changed[start:start] = changed[start : start + length] * chance.choice((1, 1, 50))
            case 7:
                donor = chance.choice(others).data
                there = chance.randrange(len(donor) + 1)
                changed[start : start + length] = donor[there : there + chance.choice((length, 1, 30))]
            case _:
                del changed[start:]
    return bytes(changed)


def _number(size: int, chance: random.Random) -> bytes:
    """A number that one gets wrong easily."""
    most = 1 << (8 * size - 1)
    number = chance.choice((0, 1, -1, 2, most - 1, -most, most // 2, 127, -128, chance.randrange(-most, most)))
    return max(-most, min(most - 1, number)).to_bytes(size, "big", signed=True)


_MUTATORS: dict[str, Callable[[bytes, Sequence[Sample], random.Random], bytes]] = {
    "index": _mutated_bytes,
    "timeindex": _mutated_bytes,
    "txnindex": _mutated_bytes,
    "snapshot": _mutated_snapshot,
    "epochs": _mutated_text,
    "checkpoint": _mutated_text,
    "partition.metadata": _mutated_text,
    "meta.properties": _mutated_text,
    "state": _mutated_text,
}
