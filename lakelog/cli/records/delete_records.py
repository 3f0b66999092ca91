"""`lakelog delete-records`: moves the start of a partition to a later offset, as kafka-delete-records does.

Readers get no records below the offset any more. The next retention drops the segments that are completely below the
offset, whatever the topic's cleanup.policy is. The files of these segments are deleted after a delay of
file.delete.delay.ms, so running readers can finish.

With --offset-json-file, the output is the same as the output of Kafka's tool. Each partition is a separate commit: if
the offset of one partition is refused, the command still deletes the records of the other partitions.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakelog.cli.options import ConfOption, RootOption, open_topics, settle_view
from lakelog.cli.output import write_error, write_line
from storage_engine.errors import ExitStatus, LogError, UsageError

if TYPE_CHECKING:
    from storage_engine.topic.clean.topic_retention import DeletedRecords
    from storage_engine.topic.topics import Topics


def delete_records(
    topic: Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="Name of the topic.")] = None,
    partition: Annotated[int | None, typer.Option("--partition", metavar="N", min=0, help="The partition.")] = None,
    offset: Annotated[
        int | None,
        typer.Option(
            "--offset",
            metavar="N",
            min=-1,
            help="Delete all records below this offset; -1: all up to the high watermark.",
        ),
    ] = None,
    offset_json_file: Annotated[
        Path | None,
        typer.Option(
            "--offset-json-file",
            metavar="FILE",
            help="Instead of the three options: a JSON file in the format of kafka-delete-records, with an offset for"
            " each partition.",
        ),
    ] = None,
    root: RootOption = None,
    conf: ConfOption = None,
) -> None:
    """Delete all records of a partition that are below a given offset.

    Give --topic, --partition and --offset; or give --offset-json-file.
    """
    if offset_json_file is not None:
        if (topic, partition, offset) != (None, None, None):
            raise UsageError(
                "--offset-json-file",
                "--topic, --partition or --offset is given, too",
                "The file already names the topics, partitions and offsets.",
            )
        _delete_as_in_file(offset_json_file, root, conf)
        return
    if topic is None or partition is None or offset is None:
        raise UsageError(
            "lakelog delete-records", "an option is missing",
            "Give --topic, --partition and --offset, or --offset-json-file.",
        )  # fmt: skip
    topics = open_topics(root, conf)
    done = _delete(topics, topic, partition, offset)
    place = f"topic {topic}, partition {partition}"
    if done.after == done.before:
        write_line(f"{place}: already begins at offset {done.before}, nothing was changed")
        return
    settle_view(topics, topic)
    write_line(
        f"{place}: now begins at offset {done.after}, not {done.before}; retention deletes the segments below"
        " this offset"
    )


def _delete_as_in_file(file: Path, root: str | None, conf: Path | None) -> None:
    from lakelog.cli.kafka_tools.offset_file import read_offset_file

    wanted = read_offset_file(file)
    topics = open_topics(root, conf)
    write_line("Executing records delete operation")
    lines, changed = [], set()
    for (topic, partition), offset in wanted.items():
        try:
            done = _delete(topics, topic, partition, offset)
        except LogError as error:
            lines.append((topic, partition, "error", str(error)))
        else:
            lines.append((topic, partition, "low_watermark", str(done.after)))
            changed |= {topic} if done.after > done.before else set()
    if changed:
        settle_view(topics, *sorted(changed))
    write_line("Records delete operation completed:")
    for topic, partition, what, found in lines:
        write_line(f"partition: {topic}-{partition}\t{what}: {found}")
    failures = sum(what == "error" for _, _, what, _ in lines)
    if failures:
        raise typer.Exit(ExitStatus.PARTIAL if failures < len(lines) else ExitStatus.ERROR)


def _delete(topics: Topics, topic: str, partition: int, offset: int) -> DeletedRecords:
    from storage_engine.topic.clean.topic_retention import delete_records as delete

    done = delete(topics.chain(topic), partition, offset)
    if done.after > done.before and done.unread_by:
        write_error(
            f"topic {topic}, partition {partition}: {done.unread_by.names} had not read all of the deleted records"
        )
    return done
