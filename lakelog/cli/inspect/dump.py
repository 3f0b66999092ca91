"""`lakelog dump`: prints the files of a Kafka log as Kafka's own tool (kafka-dump-log) does.

The command takes paths, not topics: files of the view under log/, of a plain Kafka directory, or of an export. As in
Kafka's tool, contradictions are printed to standard error at the end: gaps between offsets, and index entries that do
not match their batch. There is one difference: in a key, a value or a header, characters that a terminal would
interpret are printed as escapes. --format jsonl prints all bytes. kafka_tools/tool_options.py lists all differences.

If a file is damaged, its readable part is printed. If a file is damaged, is missing or does not belong to a log, the
command prints the file's name to standard error, and continues with the next file. In these cases, the exit status is
PARTIAL, or ERROR if no file could be printed completely.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from lakelog.cli.inspect.dump_options import (
    ClusterMetadataDecoderOption,
    DeepIterationOption,
    DumpFormat,
    FilesArgument,
    FilesOption,
    FormatOption,
    IndexSanityCheckOption,
    KeyDecoderClassOption,
    MaxBytesOption,
    MaxMessageSizeOption,
    OffsetsDecoderOption,
    PrintDataLogOption,
    SkipRecordMetadataOption,
    TransactionLogDecoderOption,
    ValueDecoderClassOption,
    VerifyIndexOnlyOption,
)
from lakelog.cli.output import write, write_error
from lakelog.terminal.text import shown_json, shown_lines
from storage_engine.errors import ExitStatus, LogError, UsageError

if TYPE_CHECKING:
    from lakelog.dump import DumpOptions, TopicDecoder, ValueDecoder


def dump(
    names: FilesArgument = None,
    files: FilesOption = None,
    print_data_log: PrintDataLogOption = False,
    deep_iteration: DeepIterationOption = False,
    skip_record_metadata: SkipRecordMetadataOption = False,
    max_bytes: MaxBytesOption = None,
    index_sanity_check: IndexSanityCheckOption = False,
    verify_index_only: VerifyIndexOnlyOption = False,
    max_message_size: MaxMessageSizeOption = None,
    offsets_decoder: OffsetsDecoderOption = False,
    transaction_log_decoder: TransactionLogDecoderOption = False,
    cluster_metadata_decoder: ClusterMetadataDecoderOption = False,
    key_decoder_class: KeyDecoderClassOption = None,
    value_decoder_class: ValueDecoderClassOption = None,
    form: FormatOption = DumpFormat.TEXT,
) -> None:
    """Print the files of a log as Kafka's dump tool does.

    --offsets-decoder prints the groups of a broker: the committed offsets, the members and their assignments. Each
    option whose name contains `decoder` also has the effect of --print-data-log.
    """
    from lakelog.dump import DumpOptions, TopicDecoder

    paths = [*(names or ()), *(files.split(",") if files else ())]
    if not paths:
        raise UsageError("lakelog dump", "no file is given", "Name files, for example log/orders-0/*.log.")
    given = {
        TopicDecoder.OFFSETS: offsets_decoder,
        TopicDecoder.TRANSACTIONS: transaction_log_decoder,
        TopicDecoder.METADATA: cluster_metadata_decoder,
    }
    decoders = [decoder for decoder, is_given in given.items() if is_given]
    classes = [name for name in (key_decoder_class, value_decoder_class) if name is not None]
    _check(decoders, classes, form, skip_record_metadata)
    contents = print_data_log or bool(decoders or classes)
    wanted = DumpOptions(
        records=contents or deep_iteration,
        contents=contents,
        jsonl=form is DumpFormat.JSONL,
        decoder=decoders[0] if decoders else None,
        key_decoder=_value_decoder("--key-decoder-class", key_decoder_class),
        value_decoder=_value_decoder("--value-decoder-class", value_decoder_class),
        skip_metadata=skip_record_metadata,
        max_bytes=max_bytes,
        verify_only=verify_index_only,
        sanity_only=index_sanity_check,
        max_message_bytes=max_message_size,
    )
    _dump(paths, wanted)


def _dump(paths: list[str], wanted: DumpOptions) -> None:
    from lakelog.dump import DumpedFile, Mismatches, dump_file

    shown = shown_json if wanted.jsonl else shown_lines
    findings = Mismatches()
    failures = 0
    for name in paths:
        try:
            for lines in dump_file(DumpedFile.of(name), wanted, findings):
                write(shown(lines.decode(errors="replace")).encode())
        except LogError as error:
            failures += 1
            write_error(error)
    for text in findings.text():
        print(shown_lines(text), file=sys.stderr)
    if failures:
        raise typer.Exit(ExitStatus.PARTIAL if failures < len(paths) else ExitStatus.ERROR)


def _check(decoders: list[TopicDecoder], classes: list[str], form: DumpFormat, skips_metadata: bool) -> None:
    """Refuse options that contradict one another."""
    if len(decoders) + bool(classes) > 1:
        raise UsageError("lakelog dump", "several decoders are given", "Dump the files of each topic with one command.")
    if form is DumpFormat.JSONL and (classes or skips_metadata):
        option = "a decoder class" if classes else "--skip-record-metadata"
        raise UsageError(
            "--format jsonl", f"{option} is given, too", "The JSON output has all fields, and bytes in base64."
        )


def _value_decoder(option: str, name: str | None) -> ValueDecoder:
    from lakelog.dump import ValueDecoder

    try:
        return ValueDecoder.STRING if name is None else ValueDecoder(name)
    except ValueError:
        raise UsageError(
            option, f"found {name!r}, but Lakelog cannot run classes of Java",
            f"Use {', '.join(ValueDecoder)}. Or use --print-data-log --format jsonl, which prints all bytes.",
        ) from None  # fmt: skip
