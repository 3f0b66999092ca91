"""`lakelog delete-records`: let a partition begin at a later offset, as kafka-delete-records does.

Readers are given nothing below it from now on. The segments that lie below go with the next retention, whatever the
topic's cleanup.policy, and their files file.delete.delay.ms later; readers that hold one go on.
"""

from __future__ import annotations

from typing import Annotated

import typer

from storage_engine.cli.options import ConfOption, RootOption, TopicOption, open_topics, settle_view
from storage_engine.cli.output import write_error, write_line


def delete_records(
    topic: TopicOption,
    partition: Annotated[int, typer.Option("--partition", metavar="N", min=0, help="Of this partition.")],
    offset: Annotated[
        int,
        typer.Option(
            "--offset", metavar="N", min=-1, help="The first offset that stays; -1: none, up to the high watermark."
        ),
    ],
    root: RootOption = None,
    conf: ConfOption = None,
) -> None:
    """Delete the records of a partition below an offset."""
    topics = open_topics(root, conf)
    from storage_engine.topic.retention import delete_records as delete

    done = delete(topics.chain(topic), partition, offset)
    place = f"topic {topic}, partition {partition}"
    if done.after == done.before:
        write_line(f"{place}: begins at offset {done.before} already, nothing was changed")
        return
    settle_view(topics, topic)
    if done.unread_by:
        write_error(f"{place}: {done.unread_by.names} had not read all that went")
    write_line(f"{place}: begins at offset {done.after}, not {done.before}; retention takes the segments below")
