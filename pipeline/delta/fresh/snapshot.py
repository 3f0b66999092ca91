"""Decides what a fresh view of an exported table contains: one version of the table, and the records of the log from
the position of this version to the end of the log.

A reader of the view gets each committed record once, whatever happens meanwhile:

- The version of the table and its position come from the same commit. The end of the log is read after the version
  and the position. So each record is in the table if its offset is below the position, and in the log if not. Commits
  of later exports have no effect on the view.
- If the log changes during the read, and a record can be missing because of the change, the view is planned again
  (`read_whole`). Two changes have this effect: retention deleted a record at or after the position; or compaction
  removed a record because of a newer record after the end.

The view has the rows and the columns that the table would have after the next export. `decide_export` plans the view in
the same way as an export.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from pipeline.delta.export_plan import (
    Export,
    ExportMode,
    ExportPlan,
    ExportRefusedError,
    TableSchemaError,
    decide_export,
    offset_ranges,
)
from pipeline.delta.rows.row_columns import COORDINATES, DIGEST, HEADERS_COLUMN, RAW_VALUE, columns_without_schema
from pipeline.delta.table_history import DeltaLog, find_head
from pipeline.delta.table_properties import TableLayout
from pipeline.delta.table_stamp import Stamp, TableHead
from pipeline.model_changes import NO_SCHEMAS, TopicSchemas, breaking_changes
from schemas.event_schema import EventSchema, writer_schemas
from schemas.key_decoder import is_of_key
from schemas.schema_errors import UnknownSchemaError
from schemas.unknown_fields.extra_column import EXTRA
from schemas.writers.registry import REGISTRY_PASSWORD, REGISTRY_USER
from storage_engine.errors import ConfigError, ConflictError, LogError, UnknownTopicError
from storage_engine.storage import Storage
from storage_engine.topic.chain.state_chain import StateChain
from storage_engine.topic.chain.topic_state import TopicState
from storage_engine.topic.chain.transaction_files import newest_decided

_MOST_ATTEMPTS = 5
_Found = TypeVar("_Found")


class LostRecordsError(ExportRefusedError):
    """Retention deleted records that no export had read, so they are neither in the table nor in the log."""


@dataclass(frozen=True)
class FreshRequest:
    """The table and the topic of a fresh view.

    topic_id: the id that the topic must still have.
    table: path or URI of the table.
    schema: the text of the setting `topics.<topic>.schema`; None: the rows have the values as bytes.
    registry: the text of the setting `topics.<topic>.schema.registry`, if the topic has it. The user and the password of
        a schema registry are in the environment.
    key_schema: the text of the setting `topics.<topic>.key.schema`; None: the rows have only the bytes of the key.
    key_registry: the text of the setting `topics.<topic>.key.schema.registry`, if the topic has it.
    """

    storage: Storage
    chain: StateChain
    topic: str
    topic_id: str
    table: str
    schema: str | None
    registry: str | None = None
    key_schema: str | None = None
    key_registry: str | None = None


@dataclass(frozen=True)
class ExportedHead:
    """A version of a table, and the stamp of its rows."""

    head: TableHead
    stamp: Stamp


@dataclass(frozen=True)
class Snapshot:
    """What a fresh view contains.

    plan: the records that the next export of `head` would read.
    state: the state of the topic with the end of the log.
    """

    export: Export
    head: TableHead
    plan: ExportPlan
    state: TopicState

    def was_retained(self, newest: TopicState) -> bool:
        """Whether retention has deleted a record at or after the position since the view was planned."""
        return newest.topic_id == self.state.topic_id and any(
            newest.partitions[number].log_start_offset > self.plan.start[number] for number in self.plan.waiting
        )

    def was_compacted(self, newest: TopicState) -> bool:
        """Whether compaction may have removed a record before the end because of a record after the end, or a tombstone
        that is not in the table."""
        return newest.topic_id == self.state.topic_id and any(
            (newest.partitions[number].first_dirty_offset or 0) > self.plan.end[number]
            or newest.partitions[number].tombstones_end
            > max(self.plan.start[number], self.state.partitions[number].tombstones_end)
            for number in self.plan.waiting
        )


def table_uri(storage: Storage, table: str) -> str:
    """The path or URI of a table. A relative path begins at the root."""
    return table if "://" in table or table.startswith("/") else f"{storage.uri}/{table}"


def exported_head(table: str, version: int | None = None) -> ExportedHead:
    """A version of the table at a path or URI, with the stamp of its rows.

    Args:
        version: None: the newest. If the table's log no longer has this version, it is an error.

    Raises:
        ExportRefusedError: there is no table, or the position of its rows is not known.
        StorageError: the table cannot be read.
    """
    log = DeltaLog(table)
    if log.newest is None:
        raise ExportRefusedError(table, "there is no table", "Check the path, or run the export first.")
    if version is not None and version not in log.versions:
        raise log.without_commit(version)
    commits = (commit for commit in log.commits() if version is None or commit.version <= version)
    head = find_head(commits, lambda: log.versions[-1], lambda _: True)
    if head.current is None:
        raise ExportRefusedError(
            table,
            "its log does not say up to which offsets the topic was exported, so Lakelog cannot know which records"
            " are new",
            "Read a table that an export has written. If the table was restored, run the export first: the commit"
            " of the export contains the offsets.",
        )
    return ExportedHead(head, head.current)


def snapshot_of(
    request: FreshRequest, exported: ExportedHead, columns: Sequence[str], partition_by: Sequence[str]
) -> Snapshot:
    """What a fresh view of this version of the table contains.

    Args:
        columns: the columns of the table.
        partition_by: the columns by which the table is partitioned.

    Raises:
        LostRecordsError: retention deleted records that are not in the table.
        ExportRefusedError: the table belongs to another topic, or is ahead of the log.
        ConfigError: the schema cannot be used, or the table needs a schema.
        RegistryError: the schema registry does not answer, or refuses access.
        UnknownTopicError: the topic was deleted.
    """
    state = _newest(request)
    if state.deleted or state.topic_id != request.topic_id:
        raise UnknownTopicError(f"topic {request.topic}", "was deleted", "`lakelog topics list` shows the topics.")
    export = existing_export(
        state, request.table, exported.stamp, columns, partition_by, _schemas(request, state, columns)
    )
    plan = decide_export(export, exported.head, exported.stamp.positions, offset_ranges(state))
    if plan.gaps:
        gap = plan.gaps[0]
        raise LostRecordsError(
            request.table,
            f"retention deleted the offsets {gap.from_offset} to {gap.to_offset - 1} of {state.topic}-{gap.partition}"
            " before they were exported, so a view of the table and the log would lack these records",
            "Run the export. Its error names the options with which it continues after these records.",
        )
    return Snapshot(export, exported.head, plan, state)


def existing_export(
    state: TopicState,
    table: str,
    stamp: Stamp,
    columns: Sequence[str],
    partition_by: Sequence[str],
    schemas: TopicSchemas,
) -> Export:
    """The export that made a table, as far as the table tells it.

    Args:
        table: path or URI.
        stamp: of the table's rows.
        columns: the columns of the table.
        partition_by: the columns by which the table is partitioned.
        schemas: the schemas with which the rows are decoded.
    """
    return Export(
        topic=state.topic,
        topic_id=state.topic_id,
        mode=ExportMode(stamp.mode),
        schema=schemas.values and replace(schemas.values, has_extra=EXTRA.name in columns),
        table=table,
        dead_letters="",
        asked_by="the table",
        headers=HEADERS_COLUMN in columns,
        digest=DIGEST.name in columns and stamp.chain is not None,
        key_schema=schemas.keys,
        layout=TableLayout(partition_by=tuple(partition_by)),
    )


def _newest(request: FreshRequest) -> TopicState:
    return newest_decided(request.storage, request.chain)


def _schemas(request: FreshRequest, state: TopicState, columns: Sequence[str]) -> TopicSchemas:
    """The schemas that the request names, after a check that an export with them would be accepted."""
    arguments = "schema", "key_schema"
    require_schemas(
        state, request.table, columns, arguments,
        has_values=request.schema is not None, has_keys=request.key_schema is not None,
    )  # fmt: skip
    values, keys = (
        None if text is None else _loaded(argument, text, registry, of_key=argument == "key_schema")
        for argument, text, registry in (
            ("schema", request.schema, request.registry), ("key_schema", request.key_schema, request.key_registry)
        )
    )  # fmt: skip
    schemas = TopicSchemas(values, keys)
    require_compatible(state, schemas, arguments)
    return schemas


def require_schemas(
    state: TopicState,
    table: str,
    columns: Sequence[str],
    arguments: tuple[str, str],
    *,
    has_values: bool,
    has_keys: bool,
) -> None:
    """Check that a schema is named if the rows of a table are decoded with one.

    Args:
        columns: the columns of the table.
        arguments: the names of the arguments for the schemas of values and of keys.
        has_values, has_keys: whether these arguments name a schema.

    Raises:
        TableSchemaError: no export has written the table.
        ConfigError: a schema is missing.
    """
    if missing := [name for name in COORDINATES.names if name not in columns]:
        raise TableSchemaError(
            table, f"is not an exported table: it has no column {', '.join(missing)}", "Check the path."
        )
    if not has_values and (RAW_VALUE not in columns or columns_without_schema(state.model, columns)):
        raise ConfigError(
            arguments[0],
            f"the export decodes the rows of {table} with a schema, but the argument {arguments[0]} names none",
            f"Give the text of the setting topics.{state.topic}.schema.",
        )
    if not has_keys and state.model is not None and any(map(is_of_key, state.model.fields)):
        raise ConfigError(
            arguments[1],
            f"the keys of topic {state.topic} have a schema, but the argument {arguments[1]} names none",
            f"Give the text of the setting topics.{state.topic}.key.schema.",
        )


def require_compatible(state: TopicState, schemas: TopicSchemas, arguments: tuple[str, str]) -> None:
    """Check that an export with these schemas would be accepted.

    Args:
        arguments: as in `require_schemas`.

    Raises:
        ConfigError: a schema is not compatible with the recorded model.
    """
    if schemas != NO_SCHEMAS and (breaking := breaking_changes(state.model, schemas)):
        raise ConfigError(
            arguments[1] if all(map(is_of_key, breaking)) else arguments[0],
            f"is not compatible with the model that is recorded in topic {state.topic}: {'; '.join(breaking)}",
            "Give the text of the setting with which the topic is exported.",
        )


def _loaded(argument: str, text: str, registry: str | None, *, of_key: bool = False) -> EventSchema:
    try:
        writers = None
        if registry is not None:
            user, password = (os.environ.get(name, "") for name in (REGISTRY_USER, REGISTRY_PASSWORD))
            writers = writer_schemas(registry, user, password)
        return EventSchema(text, writers=writers, of_key=of_key).loaded()
    except UnknownSchemaError as error:
        raise ConfigError(argument, error.problem, error.remedy) from error


def read_whole(
    request: FreshRequest, plan: Callable[[ExportedHead], Snapshot], read: Callable[[Snapshot], _Found]
) -> _Found:
    """Plan a fresh view and read its records. Repeat this if the log has changed meanwhile so that records may be missing.

    Args:
        plan: plans the view of a version of the table, with `snapshot_of`.
        read: reads the records of the view.

    Raises:
        ConflictError: the log changed during each attempt.
        LogError: `plan` or `read` failed for another reason.
    """
    for _ in range(_MOST_ATTEMPTS):
        exported = exported_head(request.table)
        snapshot = None
        try:
            snapshot = plan(exported)
            found = read(snapshot)
        except LostRecordsError:
            # An export may have committed the records before retention deleted them.
            if exported_head(request.table).head.version == exported.head.version:
                raise
        except LogError:
            if snapshot is None or not snapshot.was_retained(_newest(request)):
                raise
        else:
            if not snapshot.was_compacted(_newest(request)):
                return found
    raise ConflictError(
        request.table,
        f"retention or compaction changed the log of topic {request.topic} during each of {_MOST_ATTEMPTS} attempts to"
        " read the records that are not yet in the table",
        "Run the export, so that fewer records are missing in the table, and try again.",
    )
