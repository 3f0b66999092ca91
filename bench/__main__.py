"""Runs all benchmarks (`make bench`), or the named ones: `python -m bench codec logs`."""

from __future__ import annotations

import sys

from bench import codec, commits, compaction, compaction_memory, decisions, ingest, logs, partitions

BENCHMARKS = {
    "codec": codec.main,
    "commits": commits.main,
    "compaction": compaction.main,
    "decisions": decisions.main,
    "compaction_memory": compaction_memory.main,
    "ingest": ingest.main,
    "logs": logs.main,
    "partitions": partitions.main,
}

if __name__ == "__main__":
    chosen = sys.argv[1:] or list(BENCHMARKS)
    unknown = [name for name in chosen if name not in BENCHMARKS]
    if unknown:
        sys.exit(f"bench: there is no benchmark {unknown[0]}; there are {', '.join(BENCHMARKS)}")
    for name in chosen:
        print(f"== {name}", flush=True)
        BENCHMARKS[name]()
