"""`lakelog configs`: describes and alters the settings of topics with the options and the output of kafka-configs.

    Dynamic configs for topic orders are:
      retention.ms=60000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=60000}

The synonyms are the values of the setting in three places, and the first value applies. The places are: the topic's own
settings, the settings that are stored in the root (a broker's dynamic defaults in Kafka), and Kafka's defaults.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakelog.cli.options import (
    ConfOption,
    RootOption,
    deleted_keys,
    given_overrides,
    open_root,
    open_topics,
    settle_view,
)
from lakelog.cli.output import write_line
from storage_engine.errors import ExitStatus, UsageError

if TYPE_CHECKING:
    from storage_engine.config import ConfigKey
    from storage_engine.topic.chain.topic_state import TopicState
    from storage_engine.topic.topics import Topics

_TOPICS = "topics"
_OUTSIDE_BRACKETS = r"(?=[^\]]*(?:\[|$))"
"""Only text with an even number of brackets before it."""


def configs(
    describe: Annotated[bool, typer.Option("--describe", help="Print the settings.")] = False,
    alter: Annotated[bool, typer.Option("--alter", help="Change the settings of a topic.")] = False,
    entity_type: Annotated[
        str, typer.Option("--entity-type", metavar="topics",
            help="The type can only be topics: no other type has such settings.")
    ] = _TOPICS,
    entity_name: Annotated[str | None, typer.Option("--entity-name", metavar="TOPIC", help="Name of the topic.")] = None,
    topic: Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="The same as --entity-name.")] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="With --describe: also print settings that have their default value.")
    ] = False,
    add_config: Annotated[
        str | None,
        typer.Option(
            "--add-config", metavar="KEY=VALUE,...",
            help="With --alter: new values, with Kafka's keys. Put a value with commas in brackets: k=[v1,v2].",
        ),
    ] = None,
    add_config_file: Annotated[
        Path | None, typer.Option("--add-config-file", metavar="FILE", help="With --alter: a properties file with new values.")
    ] = None,
    delete_config: Annotated[
        list[str] | None,
        typer.Option("--delete-config", metavar="KEY,...", help="With --alter: set these keys back to their defaults."),
    ] = None,
    root: RootOption = None,
    conf: ConfOption = None,
) -> None:  # fmt: skip
    """Describe or alter the settings of topics, as kafka-configs does.

    `lakelog topics alter` changes the same settings. `lakelog broker` changes the settings of the root.
    """
    if describe == alter:
        raise UsageError("lakelog configs", "--describe or --alter is required, and not both", "Give one of the two.")
    if entity_type != _TOPICS:
        raise UsageError(
            "--entity-type", f"expected {_TOPICS}; found {entity_type!r}",
            "`lakelog broker` describes and alters the settings of the root.",
        )  # fmt: skip
    if topic is not None and entity_name is not None:
        raise UsageError("--topic", "--entity-name is given, too", "Give only one of the two.")
    name = topic if topic is not None else entity_name
    if describe:
        if add_config is not None or add_config_file is not None or delete_config:
            raise UsageError("--describe", "an option of --alter is given, too", "Give --alter to change settings.")
        _describe(open_topics(root, conf), name, everything, root, conf)
        return
    if name is None:
        raise UsageError("lakelog configs --alter", "no topic is given", "Give --entity-name.")
    if everything:
        raise UsageError("--all", "--alter is given, too", "--all belongs to --describe.")
    changes = _changes(add_config, add_config_file, delete_config or [])
    topics = open_topics(root, conf)
    topics.alter(name, None, changes)
    settle_view(topics, name)
    write_line(f"Completed updating config for topic {name}.")


def _changes(add: str | None, file: Path | None, delete: list[str]) -> dict[str, str | None]:
    """The new values by key; None for a key that is set back to its default."""
    if add is not None and file is not None:
        raise UsageError("--add-config-file", "--add-config is given, too", "Give only one of the two.")
    if file is not None:
        from storage_engine.config.properties_file import read_properties

        pairs = [f"{key}={found.value}" for key, found in read_properties(file).items()]
    else:
        pairs = [_pair(text) for text in re.split(f",{_OUTSIDE_BRACKETS}", add or "") if add]
    changes: dict[str, str | None] = dict(given_overrides(pairs, option="--add-config"))
    for key in deleted_keys([key.strip() for text in delete for key in text.split(",")]):
        if key in changes:
            raise UsageError(
                "--delete-config", f"{key} is given to --add-config, too",
                "Specify the key in only one of the two options.",
            )  # fmt: skip
        changes[key] = None
    if not changes:
        raise UsageError(
            "lakelog configs --alter", "no change is given", "Give --add-config, --add-config-file or --delete-config."
        )
    return changes


def _pair(text: str) -> str:
    """KEY=VALUE of one part of --add-config, without brackets."""
    key, equals, value = text.partition("=")
    return f"{key.strip()}{equals}{re.sub(r'[][]', '', value).strip()}"


def _describe(topics: Topics, name: str | None, everything: bool, root: str | None, conf: Path | None) -> None:
    from lakelog.inspection.states import readable_states

    states, errors = readable_states(topics, None if name is None else [name])
    _, settings = open_root(root, conf)
    in_force = settings.in_force
    for state in states:
        write_line(f"{'All' if everything else 'Dynamic'} configs for topic {state.topic} are:")
        for line in _lines(topics, state, in_force, everything):
            write_line(f"  {line}")
    if errors:
        from lakelog.cli.output import write_error

        for error in errors:
            write_error(error)
        raise typer.Exit(ExitStatus.PARTIAL if states else ExitStatus.ERROR)


def _lines(topics: Topics, state: TopicState, in_force: dict[str, str], everything: bool) -> Iterator[str]:
    """A line for each setting, in the order of the keys."""
    from storage_engine.config import TOPIC_KEYS, as_text

    config = topics.config(state)
    for key, declared in sorted(TOPIC_KEYS.items()):
        if everything or key in state.configs:
            value = as_text(getattr(config, declared.name))
            places = ", ".join(_synonyms(declared, state.configs.get(key), in_force))
            yield f"{key}={value} sensitive=false synonyms={{{places}}}"


def _synonyms(declared: ConfigKey, own: str | None, in_force: dict[str, str]) -> Iterator[str]:
    from storage_engine.config import BROKER_KEYS, acting_broker_key, as_text

    if own is not None:
        yield f"DYNAMIC_TOPIC_CONFIG:{declared.key}={own}"
    if not declared.synonyms:
        return
    first = declared.synonyms[0].key
    acting = acting_broker_key(in_force, first)
    if acting is not None:
        yield f"DYNAMIC_DEFAULT_BROKER_CONFIG:{acting}={in_force[acting]}"
    default = BROKER_KEYS[first].default
    if default is not None:
        yield f"DEFAULT_CONFIG:{first}={as_text(default)}"
