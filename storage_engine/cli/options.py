"""What every command takes: where the topics lie, and which broker keys hold.

--root beats LAKELOG_ROOT beats `root` in the file that --conf names. Of that file only `root` and `broker` are read, so
the settings of a job serve here as they are. Without --conf Kafka's own defaults hold.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from storage_engine.errors import ConfigError, LogError, UsageError

if TYPE_CHECKING:
    from storage_engine.topic.topics import Topics

RootOption = Annotated[
    str | None,
    typer.Option("--root", envvar="LAKELOG_ROOT", metavar="URI", help="Where the topics lie. Else root of --conf."),
]
ConfOption = Annotated[
    Path | None,
    typer.Option("--conf", metavar="FILE", help="YAML settings, of which root and broker count here."),
]
TopicOption = Annotated[str, typer.Option("--topic", metavar="TOPIC", help="Name of the topic.")]
PartitionOption = Annotated[int | None, typer.Option("--partition", metavar="N", min=0, help="Only this partition.")]


def open_topics(root: str | None, conf: Path | None) -> Topics:
    """The topics under the root that the options name.

    Raises:
        UsageError: no root is named.
        ConfigError: the file is wrong.
    """
    from storage_engine.clock import SystemClock
    from storage_engine.config import BrokerConfig
    from storage_engine.storage.opening import open_storage
    from storage_engine.topic.topics import Topics

    broker = BrokerConfig()
    if conf is not None:
        from storage_engine.config import shown
        from storage_engine.settings_document import read_broker, read_document

        document = read_document(conf)
        broker = read_broker(document)
        named = document.values.get("root")
        if named is not None and not isinstance(named, str):
            raise ConfigError(document.place(("root",)), f"expected a path; found {shown(named)}")
        root = root or named
    if not root:
        raise UsageError("--root", "no root is given, which says where the topics lie", "Give --root or LAKELOG_ROOT.")
    return Topics(open_storage(root), broker, SystemClock())


def chosen_partitions(topic: str, count: int, partition: int | None) -> Sequence[int]:
    """The partition asked for, or all of them in order.

    Raises:
        UnknownTopicError: the topic has no such partition.
    """
    from storage_engine.errors import UnknownTopicError

    if partition is None:
        return range(count)
    if not 0 <= partition < count:
        raise UnknownTopicError(f"topic {topic}", f"has partitions 0 to {count - 1}, found --partition {partition}")
    return (partition,)


def settle_view(topics: Topics, topic: str) -> None:
    """Bring log/ up to what a command has committed.

    The commit stands, whatever becomes of the view: a failure is a warning, and the next settling makes up for it.
    """
    from storage_engine.topic.view import settle

    try:
        settle(topics, [topic])
    except LogError as error:
        print(f"lakelog: committed, but log/ does not show it yet: {error}", file=sys.stderr)
