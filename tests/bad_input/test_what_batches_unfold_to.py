"""Small batches that become very large when they are decompressed. A command that would decompress such a batch refuses
the batch, with bounded memory, and says what the user can do.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import cramjam
import numpy as np
import pytest
import zstandard

from storage_engine.clock import ManualClock
from storage_engine.config import BrokerConfig
from storage_engine.record.batch_limit import VARIABLE
from storage_engine.record.compression import Codec, compress
from storage_engine.record.encoding import encode_records, seal_batches
from storage_engine.record.header import BATCH_HEADER, HEADER_BYTES
from storage_engine.storage.posix import PosixStorage
from storage_engine.topic.append.appending import Append
from storage_engine.topic.topics import Topics
from tests.bad_input.test_claims_of_gibibytes import MIB, batch_with, zstd_bomb
from tests.storage_engine.record_tables import Row, to_table

BOUND = 64 * MIB
SIZE = 512 * MIB
OWN = 64 * MIB
"""By how much the commands grow with small batches."""
Run = Callable[..., tuple[list[tuple[int, str]], int]]


def xerial(size: int) -> bytes:
    block = cramjam.snappy.compress_raw(bytes(32 * 1024))
    part = len(block).to_bytes(4, "big") + bytes(block)
    return compress(Codec.SNAPPY, b"")[:16] + part * (size // (32 * 1024))


def lz4(size: int) -> bytes:
    whole = compress(Codec.LZ4, bytes(64 * 1024))
    return whole[:7] + whole[7:-4] * (size // (64 * 1024)) + bytes(4)


def gzipped(size: int) -> bytes:
    stream = zlib.compressobj(1, zlib.DEFLATED, 31)
    return b"".join(stream.compress(bytes(MIB)) for _ in range(size // MIB)) + stream.flush()


def tiny_records(count: int) -> bytes:
    """A batch of records of seven bytes, which take ten times as much in columns."""
    record = bytes([12, 0, 0, 0, 1, 1, 0])
    data = np.frombuffer(batch_with(Codec.ZSTD, compress(Codec.ZSTD, record * count)), np.uint8).copy()
    header = data[:HEADER_BYTES].view(BATCH_HEADER)
    header["records_count"] = count
    header["last_offset_delta"] = count - 1
    seal_batches(data, np.array([len(data)]))
    return data.tobytes()


def legacy_wrapper(codec: Codec, content: bytes, magic: int) -> bytes:
    attributes = bytes([magic, codec]) + (bytes(8) if magic else b"")
    body = attributes + (-1).to_bytes(4, "big", signed=True) + len(content).to_bytes(4, "big") + content
    crc = zlib.crc32(body).to_bytes(4, "big")
    return bytes(8) + (len(body) + 4).to_bytes(4, "big") + crc + body


BOMBS: dict[str, Callable[[], bytes]] = {
    "gzip": lambda: batch_with(Codec.GZIP, gzipped(SIZE)),
    "gzip in two members": lambda: batch_with(Codec.GZIP, gzipped(SIZE) + gzip.compress(b"")),
    "snappy": lambda: batch_with(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(bytes(SIZE // 4)))),
    "snappy, framed": lambda: batch_with(Codec.SNAPPY, xerial(SIZE // 4)),
    "lz4": lambda: batch_with(Codec.LZ4, lz4(SIZE)),
    "zstd": lambda: batch_with(Codec.ZSTD, zstd_bomb(SIZE)),
    "zstd that tells its size": lambda: batch_with(Codec.ZSTD, compress_whole(SIZE)),
    "small records": lambda: tiny_records(8_000_000),
    "magic 0": lambda: legacy_wrapper(Codec.GZIP, gzipped(SIZE), 0),
    "magic 1": lambda: legacy_wrapper(Codec.SNAPPY, xerial(SIZE // 4), 1),
}


def compress_whole(size: int) -> bytes:
    return zstandard.ZstdCompressor().compress(bytes(size))


def log_directory(path: Path, batch: bytes) -> Path:
    folder = path / "t-0"
    folder.mkdir(parents=True)
    (folder / f"{0:020}.log").write_bytes(batch)
    return path


_PROGRAM = """
import contextlib, io, json, sys
from pathlib import Path
from lakelog import cli

def run(command):
    sys.argv[1:] = command
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            cli.main()
        except SystemExit as end:
            return int(end.code or 0), said.getvalue()

def resident(what):
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(what))
    return 1024 * int(line.split()[1])

commands = json.loads(sys.argv[1])
sys.argv[0] = "lakelog"
assert run(commands[0]) == (0, "")
before = resident("VmRSS:")
Path("/proc/self/clear_refs").write_text("5")  # VmHWM, the largest size, begins again
ended = list(map(run, commands[1:]))
print(json.dumps((ended, resident("VmHWM:") - before)), file=sys.stderr)
"""


@pytest.fixture(name="lakelog")
def fixture_lakelog(tmp_path: Path) -> Run:
    """Runs commands in one process, which has read a small log before, so that numba and all else is loaded. Returns how
    each command ended, with its status and standard error, and by how many bytes the process grew at most."""
    small = reading(log_directory(tmp_path / "small", encode_records(to_table([Row(b"k", b"v")]), MIB).data.tobytes()))

    def run(*commands: list[object], most: int = BOUND) -> tuple[list[tuple[int, str]], int]:
        words = [[str(word) for word in command] for command in (small, *commands)]
        ended = subprocess.run(
            [sys.executable, "-c", _PROGRAM, json.dumps(words)],
            capture_output=True, check=True, text=True, timeout=120, env=os.environ | {VARIABLE: str(most)},
        )  # fmt: skip
        of_each, grown = json.loads(ended.stderr.splitlines()[-1])
        return [(status, said) for status, said in of_each], grown

    return run


def reading(directory: Path) -> list[object]:
    return ["read", "--kafka-dir", directory, "--topic", "t"]


def test_a_small_batch_that_unfolds_to_much_is_refused_in_little_memory(tmp_path: Path, lakelog: Run) -> None:
    bombs = {name: make() for name, make in BOMBS.items()}
    directories = [log_directory(tmp_path / name, batch) for name, batch in bombs.items()]
    ended, grown = lakelog(*map(reading, directories))
    for name, (status, said) in zip(bombs, ended, strict=True):
        assert (status, len(said.splitlines())) == (1, 1), name
        assert f"{0:020}.log at position 0: expected a batch of at most {BOUND} bytes after decompression" in said, name
        assert "raise batch.max.uncompressed.bytes. Use `lakelog broker alter`" in said, name
    largest = max(map(len, bombs.values()))
    assert grown <= OWN + BOUND + 4 * largest, f"{grown / MIB:.0f} MiB"


def test_so_it_is_by_all_commands_that_would_unfold_it(tmp_path: Path, lakelog: Run) -> None:
    directory = log_directory(tmp_path / "kafka", BOMBS["gzip"]())
    root = tmp_path / "root"
    ended, grown = lakelog(
        ["topics", "import", directory, "--root", root],
        ["verify", "--deep", "--kafka-dir", directory],
        ["dump", "--print-data-log", directory / "t-0" / f"{0:020}.log"],
        ["topics", "create", "compacted", "--partitions", "1", "--config", "cleanup.policy=compact", "--root", root],
    )
    assert [status for status, _ in ended] == [1, 4, 1, 0], ended
    assert "bytes after decompression" in ended[0][1]
    assert not (root / "meta/t").exists(), "nothing was taken over"
    assert grown <= OWN + BOUND + 4 * MIB, f"{grown / MIB:.0f} MiB"


def inner_messages(count: int) -> bytes:
    """The value of a wrapper: messages of magic 1 without key and value, at the offsets 0, 2, 4 and so on."""
    body = bytes([1, 0]) + (1_700_000_000_000).to_bytes(8, "big") + b"\xff" * 8
    message = zlib.crc32(body).to_bytes(4, "big") + body
    part = np.dtype([("offset", ">i8"), ("length", ">i4"), ("message", f"V{len(message)}")])
    messages = np.zeros(count, part)
    messages["offset"] = 2 * np.arange(count)
    messages["length"] = len(message)
    messages["message"] = np.void(message)
    return messages.tobytes()


def test_a_dump_of_an_entry_with_many_records_takes_little_memory(tmp_path: Path, lakelog: Run) -> None:
    count = 200_000
    batch = encode_records(to_table([Row(None, None)] * count), 64 * MIB, Codec.ZSTD).data.tobytes()
    gzipped_messages = gzip.compress(inner_messages(count), 1)
    wrapper = legacy_wrapper(Codec.GZIP, gzipped_messages, 1)
    # All lines of an entry at once would take more than `most`. The wrapper has a heading, and a line for each gap.
    for name, entry, form, most, gaps in (
        ("batch", batch, ["--format", "jsonl"], OWN + BOUND, 0),
        ("wrapper", wrapper, [], OWN, count),
    ):
        log = log_directory(tmp_path / name, entry) / "t-0" / f"{0:020}.log"
        ended, grown = lakelog(["dump", "--print-data-log", *form, log])
        assert [(status, len(said.splitlines())) for status, said in ended] == [(0, gaps)]
        assert grown <= most, f"{name}: {grown / MIB:.0f} MiB"


def test_a_compaction_refuses_it_and_unfolds_no_more_batches_at_once_than_one_may(tmp_path: Path, lakelog: Run) -> None:
    topics = Topics(PosixStorage(tmp_path / "root"), BrokerConfig(), ManualClock(1_700_000_000_000))
    rows = [[Row(b"%d" % number, bytes(8 * MIB))] for number in range(40)]
    topics.create("t", 1, {"cleanup.policy": "compact", "compression.type": "gzip", "max.message.bytes": str(9 * MIB)})
    for half in (rows[:20], rows[20:]):
        with Append(topics.storage, topics.chain("t"), topics.config(topics.state("t")), topics.clock) as append:
            for each in half:
                append.stage(to_table(each))
            append.commit()
    compact = ["compact", "--topic", "t", "--force", "--root", tmp_path / "root"]
    ((status, said),), _ = lakelog(compact, most=4 * MIB)
    assert status == 4
    assert "at most 4194304 bytes after decompression" in said
    ended, grown = lakelog(compact, ["topics", "describe", "t", "--root", tmp_path / "root"], most=32 * MIB)
    assert [status for status, _ in ended] == [0, 0], ended
    assert grown <= OWN + 128 * MIB + 4 * 32 * MIB, f"{grown / MIB:.0f} MiB"


def test_who_raises_the_bound_reads_it(tmp_path: Path, lakelog: Run) -> None:
    row = Row(b"k", bytes(9 * MIB))
    directory = log_directory(tmp_path, encode_records(to_table([row]), 10 * MIB, Codec.ZSTD).data.tobytes())
    ((status, said),), _ = lakelog(reading(directory), most=MIB)
    assert status == 1
    assert "at most 1048576 bytes after decompression" in said
    assert lakelog(reading(directory), most=16 * MIB)[0] == [(0, "")]
