"""Declares the settings of ingest, export and maintenance that are numbers or choices. As in the declarations of Kafka's
keys, each setting has a type, a unit, a default and bounds. `pipeline.settings.model` turns these settings into fields of
its sections.
"""

from __future__ import annotations

from typing import Final

from storage_engine.config import ConfigKey

DEFAULT_BATCH_BYTES: Final = 1_000_000
DEFAULT_PUBLISH_SPARK_BYTES: Final = 1024**3
DEFAULT_CODEC: Final = "uncompressed"
DEFAULT_STORAGE_RETRY_MS: Final = 120_000
DEFAULT_MAX_SHARE: Final = 0.05
DEFAULT_SPARK_RECORDS: Final = 50_000
DEFAULT_SMALL_FILES: Final = 15
DEFAULT_SMALL_BYTES: Final = 32 << 20

BATCH_SIZE: Final = ConfigKey(
    key="batch.size",
    scope="producer",
    kind="int",
    unit="bytes",
    default=DEFAULT_BATCH_BYTES,
    minimum=1,
    doc="Size of a record batch, before compression. When a batch has this many bytes of records, ingest begins the"
    " next batch.",
    cost="Existing records do not change. Larger batches compress better and are read faster. max.message.bytes also limits a"
    " batch.",
)
PUBLISH_SPARK_BYTES: Final = ConfigKey(
    key="publish.spark.bytes",
    scope="producer",
    kind="long",
    unit="bytes",
    default=DEFAULT_PUBLISH_SPARK_BYTES,
    minimum=0,
    doc="If a micro-batch has at least this many staged bytes, a Spark job copies the bytes into the topic's files,"
    " with one task per partition. If the micro-batch is smaller, threads of the driver copy the bytes. The Spark job"
    " begins new segments.",
    cost="Existing records do not change. A small value makes many small segments.",
)
COMPRESSION_TYPE: Final = ConfigKey(
    key="compression.type",
    scope="producer",
    kind="choice",
    default=DEFAULT_CODEC,
    choices=("uncompressed", "gzip", "snappy", "lz4", "zstd"),
    doc="Codec of the batches, if the topic's compression.type is producer. With any other compression.type, the"
    " topic's codec is used.",
    cost="Existing records do not change.",
)
STORAGE_RETRY_TIMEOUT: Final = ConfigKey(
    key="storage.retry.timeout.ms",
    scope="producer",
    kind="long",
    unit="ms",
    default=DEFAULT_STORAGE_RETRY_MS,
    minimum=0,
    doc="How long a micro-batch waits for a storage that is full or unreachable. The ingest tries again after pauses that grow"
    " from 1 to 30 seconds. After this time, the ingest ends with the storage's error. 0: the ingest does not wait.",
    cost="Existing records do not change.",
)

SPARK_RECORDS: Final = ConfigKey(
    key="spark.records",
    scope="producer",
    kind="long",
    unit="records",
    default=DEFAULT_SPARK_RECORDS,
    minimum=0,
    doc="An export of at least this many records runs on Spark. Offsets of aborted transactions and of markers can count,"
    " too. An export of fewer records starts no JVM and takes about two seconds. The table is the same with and without"
    " Spark. An export also runs on Spark if the records have more than 64 MiB, if the table's columns or older rows must"
    " be changed, or if the table has a column that the model and the settings no longer have. 0: every export runs on"
    " Spark.",
    cost="Existing records do not change. A large value takes more memory on the driver.",
)

MAX_DEAD_LETTER_SHARE: Final = ConfigKey(
    key="max.dead.letter.share",
    scope="producer",
    kind="double",
    default=DEFAULT_MAX_SHARE,
    minimum=0,
    maximum=1,
    doc="If more than this share of the records cannot be decoded, the export commits nothing and fails. The share is"
    " computed over the records to export and the thousand records before them. Tombstones are not counted. 1: every share"
    " is accepted.",
    cost="Existing records do not change.",
)

SMALL_FILES: Final = ConfigKey(
    key="tables.small.files",
    scope="producer",
    kind="int",
    unit="files",
    default=DEFAULT_SMALL_FILES,
    minimum=1,
    doc="If a table has more small files than this number, maintenance joins them in one commit. No row changes."
    " Maintenance joins a file only if the smaller files together are as large as this file. So each row is copied only"
    " a few times.",
    cost="Existing records do not change. A small value copies more rows. A large value makes tables slower to read.",
)
SMALL_BYTES: Final = ConfigKey(
    key="tables.small.bytes",
    scope="producer",
    kind="long",
    unit="bytes",
    default=DEFAULT_SMALL_BYTES,
    minimum=1,
    doc="A file of a table is small if it has fewer bytes than this. Joined files have up to twice this size.",
    cost="Existing records do not change.",
)
