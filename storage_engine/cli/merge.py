"""`lakelog merge`: the merging of small segments that the maintenance job does, without Spark, one run after another.

Neighbours become one segment where that is worth the copying and nothing gets coarser by it than the topic's settings
allow (storage_engine.cleaner.merging). A damaged run is named, and the others are merged all the same.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from storage_engine.cli.options import ConfOption, RootOption, open_topics, settle_view
from storage_engine.cli.output import write_line
from storage_engine.errors import ExitStatus
from storage_engine.progress_display import display_on_stderr
from storage_engine.quantities import counted, shown_size


def merge(
    topic: Annotated[
        list[str] | None, typer.Option("--topic", metavar="TOPIC", help="Only this topic; may be given several times.")
    ] = None,
    root: RootOption = None,
    conf: ConfOption = None,
) -> None:
    """Merge small neighbouring segments now, as the maintenance job does, without Spark."""
    topics = open_topics(root, conf)
    states = [topics.state(name) for name in (dict.fromkeys(topic) if topic else topics.names())]
    from storage_engine.topic.merging import merge_topic

    failed = False
    changed = []
    with display_on_stderr().work("merge") as progress:
        for state in states:
            done = merge_topic(
                topics.storage, topics.chain(state.topic), topics.config(state), progress,
                topics.broker.log_cleaner_io_max_bytes_per_second,
            )  # fmt: skip
            for each in done.cleaned:
                place = f"topic {state.topic}, partition {each.partition}"
                count = counted(len(each.replaced), "segment")
                write_line(
                    f"{place}: {count} from offset {each.replaced[0].base_offset} on merged,"
                    f" {shown_size(each.bytes_after)}"
                )
            for failure in done.failed:
                print(f"lakelog: topic {state.topic}, {failure}", file=sys.stderr)
            failed |= bool(done.failed)
            changed += [state.topic] if done.cleaned else []
    for name in changed:
        settle_view(topics, name)
    if failed:
        raise typer.Exit(ExitStatus.PARTIAL)
