"""`lakelog broker`: shows and changes the broker settings that are stored in a root. Lakelog has no broker, but uses
Kafka's broker keys.

Every job and command uses the settings stored in its root. Settings that are given to a single run override the stored
settings in that run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from lakelog.cli.options import (
    ConfOption,
    DeleteConfigOption,
    RootOption,
    deleted_keys,
    given_overrides,
    open_root,
)
from lakelog.cli.output import write_error, write_line, write_table
from storage_engine.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from storage_engine.topic.topics import Topics

app = typer.Typer(help="Describe and alter the broker settings that are stored in a root.", no_args_is_help=True)


class BrokerFormat(StrEnum):
    """The output format of settings."""

    TABLE = "table"
    JSON = "json"


@app.command("describe")
def describe(
    everything: Annotated[bool, typer.Option("--all", help="Show each setting that applies, and its source.")] = False,
    form: Annotated[
        BrokerFormat, typer.Option("--format", help="table: for people. json: one document.")
    ] = BrokerFormat.TABLE,
    root: RootOption = None,
    conf: ConfOption = None,
) -> None:
    """Show the broker settings that are stored in the root."""
    from storage_engine.topic.broker_settings import effective_settings

    _, settings = open_root(root, conf)
    shown = (
        list(effective_settings(settings))
        if everything
        else [(key, value, "root") for key, value in (settings.kept or {}).items()]
    )
    if form is BrokerFormat.JSON:
        write_line(
            json.dumps({"settings": [{"key": key, "value": value, "from": source} for key, value, source in shown]})
        )
    elif shown:
        from rich import box
        from rich.table import Table

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for column in ("key", "value", "from"):
            table.add_column(column, overflow="fold")
        for row in shown:
            table.add_row(*row)
        write_table(table)
    else:
        write_line("no broker settings are stored in the root: Kafka's defaults apply")


@app.command("alter")
def alter(
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config", metavar="KEY=VALUE", help="A broker setting, with Kafka's key; may be given several times."
        ),
    ] = None,
    delete_config: DeleteConfigOption = None,
    root: RootOption = None,
    conf: ConfOption = None,
) -> None:
    """Set or remove broker settings, for every job and command that uses the root.

    A key replaces its synonyms: log.retention.hours replaces log.retention.ms. If two commands alter the settings at
    the same time, the last command wins.
    """
    from storage_engine.clock import SystemClock
    from storage_engine.config import BrokerConfig, broker_key, normalise_broker_settings, over_broker_settings
    from storage_engine.topic.broker_settings import put_broker_settings
    from storage_engine.topic.topics import Topics

    given = given_overrides(config or (), broker_key, "log.retention.hours=24")
    removed = set(deleted_keys(delete_config or (), broker_key))
    if both := sorted(removed & given.keys()):
        raise UsageError(
            "--delete-config", f"{both[0]} is given to --config, too", "Specify the key in only one of the two options."
        )
    if not given and not removed:
        raise UsageError("lakelog broker alter", "no change is given", "Give --config or --delete-config.")
    storage, settings = open_root(root, conf)
    stays = {key: value for key, value in (settings.kept or {}).items() if key not in removed}
    try:
        altered = normalise_broker_settings(over_broker_settings(stays, given), "lakelog broker alter")
        broker = BrokerConfig.from_mapping(altered)
    except ConfigError as error:
        raise UsageError(error.place, error.problem, error.remedy) from None
    _check_topics(Topics(storage, broker, SystemClock()))
    put_broker_settings(storage, altered)
    write_line(f"altered the broker's settings: {_shown(altered)}")


def _check_topics(topics: Topics) -> None:
    """Refuse broker settings that contradict a topic's own settings.

    Raises:
        UsageError: a topic's settings contradict the broker settings.
    """
    states, unreadable = topics.states()
    for error in unreadable.values():
        write_error(error)
    for state in states:
        try:
            topics.config(state)
        except ConfigError as error:
            raise UsageError(error.place, error.problem, error.remedy) from None


def _shown(settings: Mapping[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in sorted(settings.items())) or "Kafka's defaults apply"
