"""Encode and decode of record batches beside aiokafka's C extension and kafka-python, for each codec."""

from __future__ import annotations

from contextlib import ExitStack

from bench.codec_peer import PEERS
from bench.results import Ratio, write_results
from bench.turns import ROUNDS, Peer, take_turns

CODECS = ("uncompressed", "gzip", "snappy", "lz4", "zstd")
VALUE_BYTES = (100, 1024)
BATCH_BYTES = (16 * 1024, 1024 * 1024)
WANTED = {("encode", "uncompressed"): 3.0, ("decode", "uncompressed"): 1.8}
WANTED_OF_CODECS = 0.95


def main() -> None:
    rows = []
    ratios = []
    with ExitStack() as stack:
        peers = {name: stack.enter_context(Peer("bench.codec_peer", name)) for name in PEERS}
        for what in ("encode", "decode"):
            for codec in CODECS:
                for value_bytes in VALUE_BYTES:
                    for batch_bytes in BATCH_BYTES:
                        case = {"what": what, "codec": codec, "value_bytes": value_bytes, "batch_bytes": batch_bytes}
                        rates = take_turns(peers, case)
                        name = f"{what} {codec}, {value_bytes} B, {batch_bytes // 1024} KiB"
                        rows.append([name, *(f"{rate:.2f}" for rate in rates.values())])
                        beside = {peer: rates["lakelog"] / rates[peer] for peer in ("aiokafka", "kafka-python")}
                        wanted = WANTED.get((what, codec), WANTED_OF_CODECS)
                        ratios.append(Ratio(f"{name}: lakelog / aiokafka", beside["aiokafka"], at_least=wanted))
                        print(
                            f"{name:38}" + "".join(f"{rate:8.2f}" for rate in rates.values())
                            + f"{beside['aiokafka']:8.2f}{beside['kafka-python']:8.1f}", flush=True,
                        )  # fmt: skip
    write_results(
        "codec",
        "Encode and decode",
        f"Million records per second on one thread, median of {ROUNDS} rounds. Each peer is a process of its own; in"
        " each round they take turns. Keys of 10 bytes, values of text that compresses to about a third, batches of"
        " the given size before compression. Encoding includes the CRC, decoding checks it. Lakelog encodes Arrow"
        " columns and decodes into them, some 8 MiB at a time; the others take and give records one by one.",
        ["", *PEERS],
        rows,
        ratios,
    )


if __name__ == "__main__":
    main()
