"""Runs all benchmarks (`make bench`), or the named ones: `python -m bench codec logs`.

Some benchmarks have options for smaller runs. A smaller run prints the figures, but does not write them to
bench/results/. To give options, run the module of the benchmark: `python -m bench.reading.reads --records 100000`.

    codec              encoding and decoding of record batches, compared with Kafka's Java classes and other libraries
    commits            the time, the syncs and the storage calls of a commit
    compaction         compaction, compared with Kafka's cleaner
    decisions          decisions about a partition of many segments
    compaction_memory  the memory of a compaction with many keys
    ingest             the ingest, compared with Spark's Parquet writer and Kafka sink
    sink               df.write.format("lakelog"), compared with the ingest
    reads              spark.read.format("lakelog"), compared with Spark's Kafka source and Parquet scan
    consumer           Topic.read into Arrow, compared with confluent-kafka's consumer
    filtered_reads     the bytes that Topic.read(where=...) reads for 1% of a topic
    following          the delay of Topic.follow after a commit
    exports            small exports, with and without Spark
    whole_exports      exports of whole topics by Spark, compared with Spark's Kafka source and Delta
    deletion_vectors   upserts of a few records into a large table, with and without deletion vectors
    logs               verifying, recovering, opening and searching logs
    partitions         thousands of partitions
    pages              the pages of `lakelog ui` for a topic with thousands of partitions
    latency            micro-batches of an ingest if each request to an S3 server takes 30 ms longer
    operations         the basic operations of each kind of storage
    small_files        the objects and the state of a topic that a stream feeds for a day, in an object store
    s3                 the ingest and the read of a root in an S3 server, compared with Spark's Parquet writer and reader
"""

from __future__ import annotations

import sys

from bench import (
    codec,
    commits,
    compaction,
    compaction_memory,
    decisions,
    exports,
    ingest,
    logs,
    pages,
    partitions,
    sink,
)
from bench.exporting import deletion_vectors, whole_exports
from bench.reading import consumer, filtered_reads, following, reads
from bench.stores import latency, operations, s3, small_files

BENCHMARKS = {
    "codec": codec.main,
    "commits": commits.main,
    "compaction": compaction.main,
    "decisions": decisions.main,
    "compaction_memory": compaction_memory.main,
    "ingest": ingest.main,
    "sink": sink.main,
    "reads": reads.main,
    "consumer": consumer.main,
    "filtered_reads": filtered_reads.main,
    "following": following.main,
    "exports": exports.main,
    "whole_exports": whole_exports.main,
    "deletion_vectors": deletion_vectors.main,
    "logs": logs.main,
    "partitions": partitions.main,
    "pages": pages.main,
    "latency": latency.main,
    "operations": operations.main,
    "small_files": small_files.main,
    "s3": s3.main,
}

if __name__ == "__main__":
    chosen = sys.argv[1:] or list(BENCHMARKS)
    unknown = [name for name in chosen if name not in BENCHMARKS]
    if unknown:
        sys.exit(f"bench: there is no benchmark {unknown[0]}; the benchmarks are {', '.join(BENCHMARKS)}")
    for name in chosen:
        print(f"== {name}", flush=True)
        BENCHMARKS[name]()
