"""Writes docs/CONFIGURATION.md from the declarations of the keys and settings: `python -m docs.generate`.

A test compares the page with what this makes, so a key cannot change without its documentation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic_core import PydanticUndefined

from pipeline.settings.model import SECTIONS, TOPIC_ENTRY, Section, Settings, SourceSettings
from pipeline.settings.values import noun
from storage_engine.config import (
    ALIASES,
    BROKER_KEYS,
    INT_MAX,
    KAFKA_KEYS_WITHOUT_USE,
    LONG_MAX,
    TOPIC_KEYS,
    ConfigKey,
    as_text,
)
from storage_engine.log_config import DIRECTORY_BROKER_KEYS, DIRECTORY_TOPIC_KEYS

PAGE = Path(__file__).with_name("CONFIGURATION.md")

_OPENING = """\
# Configuration

<!-- Made by `python -m docs.generate` (make docs). Change the declarations, not this page. -->

A job takes a YAML file (`--conf`), environment variables and arguments:

```sh
./spark-submit.sh ingest --conf conf/flights.yaml --root /data/lakelog --set ingest.batch.size=500000
```

- `--set` beats the environment, which beats the file. `--root` beats `LAKELOG_ROOT`, which beats `root` in the file.
- The broker's keys that the root keeps lie below all of these: `lakelog broker describe` shows them.
- `--set` takes the keys joined by dots, and the value as it is: `--set topics.flights.cleanup.policy=delete`. The keys
  may hold dots themselves, and so may topics; where a path could mean two topics, the longer name is meant.
- An environment variable is `LAKELOG_`, then the same path in capitals with `_` for whatever is neither letter nor
  digit: `LAKELOG_TOPICS_FLIGHTS_CLEANUP_POLICY=delete`. It can change the topics and source options that the file
  names, not add new ones. A `LAKELOG_` variable that means no setting is an error; an empty one counts as not set.
- Values are taken as written: `no`, `010` and `1:30` are text until a key makes a number of them.
- An unknown key, a wrong type or a key given twice ends the job before it does anything, with the file, the line and
  the nearest valid key.
"""

_TOPICS = """\
## Topics: `topics`

Topics by name. They are used when `ingest` creates the topic. Afterwards the topic's own state counts, which
`lakelog topics alter` changes; a difference is reported. A topic that stands neither here nor in the root is an error.

```yaml
topics:
  flights: {partitions: 2, cleanup.policy: compact, schema: flight}
```
"""

_TOPIC_KEYS = """\
### Kafka's topic keys

With Kafka's names, defaults and bounds. The broker's key, where it is given, sets the default for all topics.
"""

_BROKER = """\
## Broker: `broker`

Kafka's broker keys: what holds for all topics that do not say otherwise. There is no broker; the keys are Kafka's so
that a broker's settings can be taken over.

The root keeps them, for every job and command on it. The first run that makes a topic in a root puts the section of its
file there; afterwards `lakelog broker alter` changes what is kept. A run whose file, environment or `--set` says otherwise
goes by that, and says on standard error which key differs, and how. A key hides its synonyms below it:
`log.retention.hours` of a run acts even where the root keeps `log.retention.ms`.
"""

_DIRECTORIES = """\
## Plain Kafka log directories

These keys count where a program opens a broker's log directories for writing (`storage_engine.log_manager`). Under a
root they would have no effect, and are refused: there every commit is synced, and what is due runs in jobs.
"""

_WITHOUT_USE = """\
## Kafka's keys without use

Kafka has these, and Lakelog refuses them rather than to ignore what somebody relies on. They can be left out.
"""


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def _default(key: ConfigKey) -> str:
    if key.default is None:
        return "not set"
    text = as_text(key.default)
    names = {str(LONG_MAX): "2^63 - 1 (no limit)", str(INT_MAX): "2^31 - 1 (no limit)"}
    return names.get(text, f"`{text}`")


def _kind(key: ConfigKey) -> str:
    unit = f", {key.unit}" if key.unit else ""
    return f"{key.kind}{unit}"


def _topic_key(key: ConfigKey) -> tuple[str, ...]:
    aliases = "".join(f" Also called `{alias}`." for alias, canonical in ALIASES.items() if canonical == key.key)
    synonyms = ", ".join(f"`{synonym.key}`" for synonym in key.synonyms)
    doc = f"{key.doc}{aliases} *Changing it:* {key.cost}"
    return (f"`{key.key}`", _kind(key), _default(key), key.bound, synonyms, doc)


def _broker_key(key: ConfigKey) -> tuple[str, ...]:
    doc = key.doc if key.sets else f"{key.doc} *Changing it:* {key.cost}"
    return (f"`{key.key}`", _kind(key), _default(key), key.bound, doc)


def _settings(section: type[Section], prefix: str, keys: Iterable[str] | None = None) -> list[tuple[str, ...]]:
    rows = []
    for key, field in section.fields_by_key().items():
        if keys is not None and key not in keys:
            continue
        if field.annotation is SourceSettings:
            rows += _settings(SourceSettings, f"{prefix}{key}.")
            continue
        required = "required" if field.is_required() else ""
        fixed = field.default
        default = "" if fixed is None or fixed is PydanticUndefined or fixed == {} else f"`{fixed}`"
        rows.append((f"`{prefix}{key}`", noun(field), required or default, field.description or ""))
    return rows


def render() -> str:
    """The page as it should stand in docs/CONFIGURATION.md."""
    columns = ("Key", "Value", "Default", "Meaning")
    parts = [_OPENING, "## Root\n", _table(columns, _settings(Settings, "", ["root"]))]
    parts.append(_TOPICS)
    parts.append(_table(("Key", "Meaning"), ((f"`{key}`", doc) for key, doc in TOPIC_ENTRY.items())))
    parts.append(_TOPIC_KEYS)
    topic_columns = ("Key", "Type", "Default", "Allowed", "Broker's keys", "Meaning")
    parts.append(_table(topic_columns, (_topic_key(key) for key in TOPIC_KEYS.values())))
    parts.append(_BROKER)
    broker_columns = ("Key", "Type", "Default", "Allowed", "Meaning")
    parts.append(_table(broker_columns, (_broker_key(key) for key in BROKER_KEYS.values())))
    for name, section in SECTIONS.items():
        parts.append(f"## Job: `{name}`\n\n{Settings.model_fields[name].description}\n")
        parts.append(_table(columns, _settings(section, f"{name}.")))
    parts.append(_DIRECTORIES)
    directory_keys = (*DIRECTORY_TOPIC_KEYS.values(), *DIRECTORY_BROKER_KEYS.values())
    parts.append(_table(broker_columns, (_broker_key(key) for key in directory_keys)))
    parts.append(_WITHOUT_USE)
    parts.append(_table(("Key", "Why"), ((f"`{key}`", why) for key, why in sorted(KAFKA_KEYS_WITHOUT_USE.items()))))
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
    print(f"wrote {PAGE}")
