"""`lakelog delete-records`: moves the start of a partition to a later offset, as kafka-delete-records does.

Readers get no records below the offset any more. The next retention drops the segments that are completely below the
offset, whatever the topic's cleanup.policy is. The files of these segments are deleted after a delay of
file.delete.delay.ms, so running readers can finish.
"""

from __future__ import annotations

from typing import Annotated

import typer

from lakelog.cli.options import ConfOption, RootOption, TopicOption, open_topics, settle_view
from lakelog.cli.output import write_error, write_line


def delete_records(
    topic: TopicOption,
    partition: Annotated[int, typer.Option("--partition", metavar="N", min=0, help="The partition.")],
    offset: Annotated[
        int,
        typer.Option(
            "--offset",
            metavar="N",
            min=-1,
            help="Delete all records below this offset; -1: all up to the high watermark.",
        ),
    ],
    root: RootOption = None,
    conf: ConfOption = None,
) -> None:
    """Delete all records of a partition that are below a given offset."""
    topics = open_topics(root, conf)
    from storage_engine.topic.clean.topic_retention import delete_records as delete

    done = delete(topics.chain(topic), partition, offset)
    place = f"topic {topic}, partition {partition}"
    if done.after == done.before:
        write_line(f"{place}: already begins at offset {done.before}, nothing was changed")
        return
    settle_view(topics, topic)
    if done.unread_by:
        write_error(f"{place}: {done.unread_by.names} had not read all of the deleted records")
    write_line(f"{place}: now begins at offset {done.after}, not {done.before}; retention deletes the segments below")
