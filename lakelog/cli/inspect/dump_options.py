"""Declares the options of `lakelog dump`. Most options have the same names as in kafka-dump-log."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

_INT_MAX = 2**31 - 1


class DumpFormat(StrEnum):
    """The output format of entries."""

    TEXT = "text"
    JSONL = "jsonl"


FilesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FILE]...",
        help=(
            "A file: a .log, .index, .timeindex, .txnindex or .snapshot; a checkpoint; a snapshot of"
            " __cluster_metadata; a partition.metadata or meta.properties."
        ),
    ),
]
FilesOption = Annotated[
    str | None, typer.Option("--files", metavar="FILE,...", help="Files, separated by commas, as in Kafka's tool.")
]
PrintDataLogOption = Annotated[
    bool, typer.Option("--print-data-log", help="Print the records of a .log with their keys and values.")
]
DeepIterationOption = Annotated[
    bool, typer.Option("--deep-iteration", help="Print the records of a .log, without keys and values.")
]
SkipRecordMetadataOption = Annotated[
    bool, typer.Option("--skip-record-metadata", help="Print only the key and the value of each record.")
]
MaxBytesOption = Annotated[
    int | None,
    typer.Option(
        "--max-bytes",
        metavar="BYTES",
        min=0,
        max=_INT_MAX,
        help="Read only this number of bytes at the start of a .log. Default: all.",
    ),
]
IndexSanityCheckOption = Annotated[
    bool,
    typer.Option(
        "--index-sanity-check",
        help="Only print whether a broker that starts would accept the index, or would rebuild the index.",
    ),
]
VerifyIndexOnlyOption = Annotated[
    bool, typer.Option("--verify-index-only", help="Compare an index with its .log, but do not print its entries.")
]
MaxMessageSizeOption = Annotated[
    int | None,
    typer.Option(
        "--max-message-size",
        metavar="BYTES",
        min=1,
        max=_INT_MAX,
        help="If an index entry belongs to a batch that is larger than this, report an error. Default: no limit.",
    ),
]
OffsetsDecoderOption = Annotated[
    bool,
    typer.Option("--offsets-decoder", help="Print the records of a .log that belongs to the topic __consumer_offsets."),
]
TransactionLogDecoderOption = Annotated[
    bool,
    typer.Option(
        "--transaction-log-decoder", help="Print the records of a .log that belongs to the topic __transaction_state."
    ),
]
ClusterMetadataDecoderOption = Annotated[
    bool,
    typer.Option(
        "--cluster-metadata-decoder",
        help="Print the records of a .log or a snapshot that belongs to the topic __cluster_metadata.",
    ),
]
KeyDecoderClassOption = Annotated[
    str | None,
    typer.Option(
        "--key-decoder-class",
        metavar="CLASS",
        help="Print the records of a .log. Decode the keys of the records as this Java class of Kafka does.",
    ),
]
ValueDecoderClassOption = Annotated[
    str | None,
    typer.Option(
        "--value-decoder-class",
        metavar="CLASS",
        help="Print the records of a .log. Decode the values of the records as this Java class of Kafka does.",
    ),
]
FormatOption = Annotated[
    DumpFormat,
    typer.Option("--format", help="text: like Kafka's tool. jsonl: one JSON object per entry, bytes in base64."),
]
