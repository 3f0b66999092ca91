"""Declares the rules of `lakelog check`: keys, defaults and meaning. A file with rules is YAML, like a settings file:

    lag.seconds: {warning: 60, critical: 600}
    disk.free.percent: {warning: 20, critical: 10}
    topics:
      archive: {lag.seconds: null}               no limit for this topic

A key that is missing in the file keeps its default. A key in the file replaces both limits of the default. Unknown keys
are refused. docs/MONITORING.md lists all keys; a test compares the page with these classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from storage_engine.config import nearest, shown
from storage_engine.config.settings_document import Document, read_document
from storage_engine.errors import ConfigError, UsageError


class Section(BaseModel):
    """A section of the file; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Limit(Section):
    """Two limits of a number. A limit that is null has no effect."""

    warning: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    critical: float | None = Field(default=None, ge=0, allow_inf_nan=False)


def _no_keys_if_empty(value: object) -> object:
    return {} if value is None else value


def _no_names_if_empty(value: object) -> object:
    return () if value is None else value


_Limit = Annotated[Limit, BeforeValidator(_no_keys_if_empty)]


def _limit(key: str, warning: float | None, critical: float | None, description: str) -> Limit:
    """A field whose default has these limits."""
    default: Limit = Field(default=Limit(warning=warning, critical=critical), alias=key, description=description)
    return default


class TopicRules(Section):
    """The rules that can be set for a single topic."""

    lag_records: _Limit = _limit(
        "lag.records", None, None, "Unread offsets of a group or a stream, over all partitions of the topic."
    )
    lag_seconds: _Limit = _limit(
        "lag.seconds", 900, 3600, "Age of the first record that a group or a stream has not read."
    )
    export_lag_records: _Limit = _limit("export.lag.records", None, None, "Unread offsets of an export.")
    export_lag_seconds: _Limit = _limit(
        "export.lag.seconds", None, None, "Age of the first record that an export has not read."
    )
    export_age_seconds: _Limit = _limit(
        "export.age.seconds", 7200, 86_400,
        "Time since an export last stored a position, or the age of its first unread record if that is shorter. Checked only"
        " if the export has unread records.",
    )  # fmt: skip
    consumer_status: bool = Field(
        default=True,
        alias="consumer.status",
        description="If true, the check also checks the status of each consumer. The status WARN gives a warning. The"
        " statuses STOP, STALL and REWIND are critical.",
    )
    maintenance_age_seconds: _Limit = _limit(
        "maintenance.age.seconds", 10_800, 86_400,
        "The shorter of two times: since maintenance last changed the topic, and since the first segment became due. Checked"
        " only if the next maintenance would drop segments or delete the files of dropped segments.",
    )  # fmt: skip
    partition_segments: _Limit = _limit("partition.segments", 1000, None, "Segments of a partition.")
    waiting_segments: _Limit = _limit(
        "waiting.segments", 10_000, None, "Dropped segments whose files are not deleted yet."
    )
    versions: _Limit = _limit("versions", 3000, None, "Versions of the topic's state in storage.")
    writer_silent_seconds: _Limit = _limit(
        "writer.silent.seconds", 86_400, None, "Time since the last append, if an ingest feeds the topic."
    )
    writer_takeovers: _Limit = _limit(
        "writer.takeovers",
        2,
        5,
        "How often an ingest took over the topic when it started, within writer.takeovers.window.seconds.",
    )
    takeovers_window_seconds: float = Field(
        default=3600,
        alias="writer.takeovers.window.seconds",
        ge=1,
        allow_inf_nan=False,
        description="Length of the time window in which writer.takeovers counts take-overs.",
    )
    ingest_lag_records: _Limit = _limit(
        "ingest.lag.records", None, None, "Records of the source that the ingest had not read when it last reported."
    )
    ingest_report_age_seconds: _Limit = _limit(
        "ingest.report.age.seconds", 3600, None,
        "Time since the ingest last reported. Checked only if the ingest was still running then.",
    )  # fmt: skip
    view_age_seconds: _Limit = _limit(
        "view.age.seconds",
        10_800,
        None,
        "Time since log/ was last brought up to date (settled), if log/ does not show all records of the topic.",
    )
    clock_skew_seconds: _Limit = _limit(
        "clock.skew.seconds", 30, None,
        "Difference between the writer's clock and the storage's clock, or this host's clock, when the newest version was"
        " written.",
    )  # fmt: skip

    @classmethod
    def fields_by_key(cls) -> dict[str, FieldInfo]:
        """The fields, by the key in the file."""
        return {found.alias or name: found for name, found in cls.model_fields.items()}


class Rules(TopicRules):
    """All rules."""

    disk_free_percent: _Limit = _limit("disk.free.percent", 10, 5, "Free space of the root's file system, in percent.")
    disk_free_bytes: _Limit = _limit("disk.free.bytes", None, None, "Free bytes of the root's file system.")
    ignore_consumers: Annotated[tuple[str, ...], BeforeValidator(_no_names_if_empty)] = Field(
        default=(), alias="ignore.consumers", description="Names of groups, exports and streams that are not checked."
    )
    topics: Annotated[
        Mapping[str, Annotated[TopicRules, BeforeValidator(_no_keys_if_empty)]], BeforeValidator(_no_keys_if_empty)
    ] = Field(
        default={},
        description="Rules of single topics, by the topic's name. For the named topic, each of these rules replaces the rule"
        " above with the same key.",
    )

    def of_topic(self, name: str) -> TopicRules:
        """The rules for one topic."""
        own = self.topics.get(name)
        if own is None:
            return self
        return self.model_copy(update={field: getattr(own, field) for field in own.model_fields_set})


def read_rules(file: Path | None) -> Rules:
    """The rules in a file; the defaults if there is no file, or if the file has no keys.

    Raises:
        UsageError: the file cannot be read, or a rule is wrong. The message names the line.
    """
    if file is None:
        return Rules()
    try:
        document = read_document(file, "--rules", may_be_empty=True)
        try:
            rules = Rules.model_validate(document.values)
        except ValidationError as error:
            raise _first_mistake(document, error) from None
        _check_limits(document, (), rules)
        for topic, own in rules.topics.items():
            _check_limits(document, ("topics", topic), own)
        return rules
    except ConfigError as error:
        raise UsageError(error.place, error.problem, error.remedy) from None


def _check_limits(document: Document, path: tuple[str, ...], rules: TopicRules) -> None:
    """Refuse percentages above 100, and limits of which the warning comes after the critical one, and so never."""
    for name, field in type(rules).model_fields.items():
        limit, key = getattr(rules, name), field.alias or name
        if name not in rules.model_fields_set or not isinstance(limit, Limit):
            continue
        for level in (limit.warning, limit.critical):
            if key.endswith(".percent") and level is not None and level > 100:
                raise ConfigError(document.place((*path, key)), f"expected a percentage, at most 100; found {level:g}")
        if limit.warning is None or limit.critical is None:
            continue
        is_least = key.startswith("disk.free.")
        if limit.warning < limit.critical if is_least else limit.warning > limit.critical:
            raise ConfigError(
                document.place((*path, key)),
                f"the warning {limit.warning:g} comes after the critical limit {limit.critical:g}",
                f"Give a warning of at {'least' if is_least else 'most'} {limit.critical:g}.",
            )


def _first_mistake(document: Document, error: ValidationError) -> ConfigError:
    found = error.errors(include_url=False)[0]
    path = tuple(str(part) for part in found["loc"])
    place, key = document.place(path), path[-1]
    if found["type"] == "extra_forbidden" and path[0] == "topics" and key in Rules.fields_by_key():
        return ConfigError(place, f"{key} is no rule of a single topic", "Move it out of the section topics.")
    if found["type"] == "extra_forbidden":
        return ConfigError(place, f"unknown key {key}", f"The nearest valid key is {nearest(key, _keys_beside(path))}.")
    if found["type"] in ("model_type", "mapping_type", "dict_type", "model_attributes_type"):
        expected = "keys with values, such as {warning: 60, critical: 600}"
    elif found["type"].startswith(("float", "greater_than", "finite")):
        declared = Rules.fields_by_key().get(key)
        least = next((each.ge for each in declared.metadata if hasattr(each, "ge")), 0) if declared else 0
        expected = f"a number, at least {least:g}" if least else "a number that is not negative"
    elif found["type"].startswith("bool"):
        expected = "true or false"
    else:
        expected = "a list of names"
    return ConfigError(place, f"expected {expected}; found {shown(found['input'])}")


def _keys_beside(path: tuple[str, ...]) -> list[str]:
    """The valid keys in the section of a key."""
    if len(path) == 1:
        return list(Rules.fields_by_key())
    if path[0] == "topics" and len(path) == 3:
        return list(TopicRules.fields_by_key())
    return list(Limit.model_fields)
