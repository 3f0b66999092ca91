"""`lakelog schema`: shows the model that is recorded in a topic, compares a schema with it, and accepts a schema.

An ingest and an export record the fields of the topic's schemas in the topic's state. At their next start, they refuse a
schema that breaks older records or their readers. `lakelog schema check` makes the same comparison before a job starts.
`lakelog schema accept` records a schema that they would refuse, as their option --accept-schema does.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakelog.cli.options import ConfOption, RootOption, open_topics
from lakelog.cli.output import write_line, write_table
from lakelog.cli.tables.table_options import (
    GivenSchemas,
    KeyRegistryOption,
    KeySchemaOption,
    RegistryOption,
    SchemaOption,
    SettingsOption,
    in_checkout,
    settings_with_schemas,
)
from storage_engine.errors import ExitStatus, UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from pipeline.model_changes import TopicSchemas
    from storage_engine.topic.chain.topic_state import RecordedModel
    from storage_engine.topic.topics import Topics

app = typer.Typer(help="Show the schema that a topic has recorded; compare a schema with it, or accept a schema.")

TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as one line of JSON.")]


@app.command("show")
def show(topic: TopicArgument, as_json: JsonOption = False, root: RootOption = None, conf: ConfOption = None) -> None:
    """Show the fields that the last ingest or export has recorded.

    A field is required if each value must have it. It is nullable if it may be null.
    """
    model = open_topics(root, conf).state(topic).model
    if as_json:
        write_line(json.dumps({"topic": topic, "model": None if model is None else _document(model)}))
    elif model is None:
        write_line(f"topic {topic}: no schema is recorded; the next ingest or export with a schema records it")
    else:
        write_line(f"topic {topic}: model {model.name}, {len(model.fields)} fields")
        write_table(_table(model))


@app.command("check")
def check(
    topic: TopicArgument,
    schema: SchemaOption = None,
    registry: RegistryOption = None,
    key_schema: KeySchemaOption = None,
    key_registry: KeyRegistryOption = None,
    as_json: JsonOption = False,
    root: RootOption = None,
    conf: SettingsOption = None,
) -> None:
    """Compare a schema with the recorded one, as an ingest and an export do at their start. Nothing is changed.

    Each change is listed. The exit status is 1 if a change breaks older records or their readers. If the topic has schemas
    of values and of keys, name both, or name the settings file of its jobs with --conf.
    """
    with in_checkout("lakelog schema"):
        from pipeline.model_changes import model_changes

        topics, schemas = _schemas(topic, GivenSchemas(schema, registry, key_schema, key_registry), root, conf)
        changes = model_changes(topics.state(topic).model, schemas)
    if as_json:
        found = {"compatible": changes.compatible, "breaking": changes.breaking}
        write_line(json.dumps({"topic": topic, **found}))
    else:
        _print_changes(topic, changes.compatible, changes.breaking)
    if changes.breaking:
        raise typer.Exit(ExitStatus.ERROR)


@app.command("accept")
def accept(
    topic: TopicArgument,
    schema: SchemaOption = None,
    registry: RegistryOption = None,
    key_schema: KeySchemaOption = None,
    key_registry: KeyRegistryOption = None,
    root: RootOption = None,
    conf: SettingsOption = None,
) -> None:
    """Record a schema, even if it breaks older records or their readers. The next ingest or export then accepts it.

    The command prints the changes. If the topic has schemas of values and of keys, name both, as for `lakelog schema
    check`. If the columns of an exported table do not fit the new schema, also make the table
    again with `export --rebuild`.
    """
    with in_checkout("lakelog schema"):
        from pipeline.model_changes import model_changes, recordable_model
        from pipeline.topic_model import record_model

        topics, schemas = _schemas(topic, GivenSchemas(schema, registry, key_schema, key_registry), root, conf)
        state = topics.state(topic)
        changes, model = model_changes(state.model, schemas), recordable_model(schemas)
        if state.model is not None and state.model.fingerprint == model.fingerprint:
            write_line(f"topic {topic}: this schema is recorded already")
            return
        record_model(topics, state, model)
    _print_changes(topic, changes.compatible, changes.breaking)
    write_line(f"topic {topic}: recorded model {model.name}")


def _schemas(topic: str, given: GivenSchemas, root: str | None, conf: Path | None) -> tuple[Topics, TopicSchemas]:
    """The topics under the root, and the schemas of the options.

    Raises:
        UsageError: the options and the file name no schema.
    """
    from pipeline.job import JobContext
    from pipeline.model_changes import NO_SCHEMAS
    from pipeline.topic_model import topic_schemas

    settings = settings_with_schemas(topic, given, root, conf)
    schemas = topic_schemas(settings, topic)
    if schemas == NO_SCHEMAS:
        raise UsageError("--schema", "no schema is given", "Give --schema, or --conf with a file that names it.")
    return JobContext.of("schema", settings).topics, schemas


def _print_changes(topic: str, compatible: Sequence[str], breaking: Sequence[str]) -> None:
    for change in compatible:
        write_line(f"compatible: {change}")
    for change in breaking:
        write_line(f"breaking: {change}")
    if not compatible and not breaking:
        write_line(f"topic {topic}: no recorded field changes")


def _document(model: RecordedModel) -> dict[str, object]:
    return {"name": model.name, "fields": {path: field.model_dump() for path, field in model.fields.items()}}


def _table(model: RecordedModel) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("field", "type", "required", "nullable"):
        table.add_column(column)
    for path, field in model.fields.items():
        table.add_row(path, field.type, *("yes" if each else "no" for each in (field.required, field.nullable)))
    return table
