"""The snappy kernels: decoders of others read their output, and they stay inside their arrays."""

from __future__ import annotations

import subprocess
import sys

import cramjam
import numpy as np
import pyarrow as pa

from storage_engine.record.batch import scan_batches
from storage_engine.record.compression import Codec, compress
from storage_engine.record.crc import check_crcs
from storage_engine.record.decoding import decode_batches
from storage_engine.record.encoding import encode_records
from storage_engine.record.header import HEADER_BYTES
from tests.storage_engine.record_tables import Row, decompress, to_rows, to_table
from tests.storage_engine.snappy_samples import samples

HEAD_BYTES = 16
BETWEEN_GUARDS = """
import ctypes, mmap
import numpy as np
from storage_engine.record.compression import compress_bound
from storage_engine.record.kernels.snappy_kernels import SLOTS, compress_stream
from tests.storage_engine.snappy_samples import samples

libc = ctypes.CDLL(None, use_errno=True)

def guarded(size):
    '''Memory whose next byte belongs to no one: a read or write there ends the process.'''
    pages = -(-size // mmap.PAGESIZE)
    memory = np.frombuffer(mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE), np.uint8)
    end = pages * mmap.PAGESIZE
    assert libc.mprotect(ctypes.c_void_p(memory.ctypes.data + end), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    return memory[:end]

source, target = (guarded(compress_bound(1 << 18)) for _ in range(2))
table = guarded(2 * SLOTS).view(np.uint16)[-SLOTS:]
for count, sample in enumerate(samples(2, 300), 1):
    data = source[len(source) - len(sample):]
    data[:] = np.frombuffer(sample, np.uint8)
    compress_stream(data, table, target[len(target) - compress_bound(len(sample)):])
print(count)
"""


def blocks(stream: bytes) -> list[bytes]:
    """The raw blocks of a stream."""
    found = []
    position = HEAD_BYTES
    while position < len(stream):
        size = int.from_bytes(stream[position : position + 4], "big")
        position += 4 + size
        found.append(stream[position - size : position])
    assert position == len(stream)
    return found


def test_other_decoders_read_the_blocks() -> None:
    theirs = pa.Codec("snappy")
    for sample in samples(3, 200):
        found = blocks(compress(Codec.SNAPPY, sample))
        parts = [sample[start : start + 32 * 1024] for start in range(0, len(sample), 32 * 1024)]
        assert [bytes(cramjam.snappy.decompress_raw(block)) for block in found] == parts
        sizes = [len(part) for part in parts]
        assert [bytes(theirs.decompress(*each)) for each in zip(found, sizes, strict=True)] == parts
        assert decompress(Codec.SNAPPY, compress(Codec.SNAPPY, sample)) == sample


def test_the_kernel_stays_inside_its_arrays() -> None:
    done = subprocess.run([sys.executable, "-c", BETWEEN_GUARDS], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1805\n", "")


def test_a_block_has_the_elements_that_snappy_chooses() -> None:
    text = b"0123456789abcdef" * 4 + b"-0123456-" + bytes(100) + b"0123456789abcdef"
    (block,) = blocks(compress(Codec.SNAPPY, text))
    expected = [
        b"\xbd\x01",  # 189 bytes
        b"\x3c0123456789abcdef",
        b"\xbe\x10\x00",  # 48 bytes from 16 bytes before
        b"\x00-",
        b"\x0d\x31",  # 7 bytes from 49 bytes before: only the start of the 48 bytes was entered in the table
        b"\x04-\x00",
        b"\xfe\x01\x00",  # 64 zeros
        b"\x8a\x01\x00",  # 35 zeros
        b"\x0d\x6c",  # 7 bytes from 108 bytes before
        b"\x20789abcdef",  # in the last bytes, nothing is searched
    ]
    assert block == b"".join(expected)


def test_only_batches_that_become_smaller_are_compressed() -> None:
    chance = np.random.default_rng(1)
    codecs = []
    for zeros in range(60):
        rows = [Row(None, bytes(zeros) + chance.bytes(120))]
        plain = encode_records(to_table(rows), 10_000).data.tobytes()
        records = compress(Codec.SNAPPY, plain[HEADER_BYTES:])
        size = HEADER_BYTES + len(records)
        run = encode_records(to_table(rows), 10, Codec.SNAPPY)
        assert run.data[HEADER_BYTES:].tobytes() == (records if size < len(plain) else plain[HEADER_BYTES:])
        larger = encode_records(to_table(rows), size, Codec.SNAPPY)
        assert larger.data[HEADER_BYTES:].tobytes() == (plain[HEADER_BYTES:] if size == len(plain) else records)
        for each in (run, larger):
            table = scan_batches(each.data, "batches")
            check_crcs(each.data, table, "batches")
            codecs += table.codecs.tolist()
            assert to_rows(decode_batches(each.data, table, "batches")) == rows
    assert 20 < sum(codec == Codec.NONE for codec in codecs) < 60


def test_many_batches_are_compressed_one_after_another() -> None:
    given = [Row(b"key", sample) for sample in samples(4, 20)]
    plain = encode_records(to_table(given), 40_000)
    run = encode_records(to_table(given), 40_000, Codec.SNAPPY)
    start = end = 0
    for size, compressed in zip(plain.sizes.tolist(), run.sizes.tolist(), strict=True):
        records = plain.data[start + HEADER_BYTES : start + size].tobytes()
        expected = compress(Codec.SNAPPY, records)
        stored = records if len(expected) >= len(records) and size > 40_000 else expected
        assert run.data[end + HEADER_BYTES : end + compressed].tobytes() == stored
        start, end = start + size, end + compressed
    assert (start, end) == (len(plain.data), len(run.data))
    assert len(run.sizes) > 5
