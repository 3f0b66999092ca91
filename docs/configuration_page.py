"""docs/CONFIGURATION.md, made from the declarations of the keys and settings.

docs/generate.py writes the page. A test compares it with what this makes, so a key cannot change without its
documentation.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pydantic_core import PydanticUndefined

from docs.markdown import table
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
from storage_engine.config.kafka_dir import DIRECTORY_BROKER_KEYS, DIRECTORY_TOPIC_KEYS

PAGE = Path(__file__).with_name("CONFIGURATION.md")

_OPENING = """\
# Configuration

<!-- Made by `python -m docs.generate` (make docs). Change the declarations, not this page. -->

A job takes a YAML file (`--conf`), environment variables and arguments:

```sh
./spark-submit.sh ingest --conf conf/flights.yaml --root /data/lakelog --set ingest.batch.size=500000
```

- `--set` beats the environment, which beats the file. `--root` beats `LAKELOG_ROOT`, which beats `root` in the file.
- All of these beat the broker's keys that the root keeps. `lakelog broker describe` shows those.
- `--set` takes the keys joined by dots, and the value as it is: `--set topics.flights.cleanup.policy=delete`. Keys and
  topics may have dots themselves. Where a path could mean two topics, it means the longer name.
- An environment variable is `LAKELOG_`, then the same path in capitals with `_` for each character that is neither letter
  nor digit: `LAKELOG_TOPICS_FLIGHTS_CLEANUP_POLICY=delete`. It can change the topics and source options that the file
  names, but not add new ones. A `LAKELOG_` variable that names no setting is an error. An empty one counts as not set.
- Values are taken as written: `no`, `010` and `1:30` are text until a key makes a number of them.
- An unknown key, a wrong type or a key given twice ends the job before it does anything, with the file, the line and
  the nearest valid key.
"""

_TOPICS = """\
## Topics: `topics`

Topics by name. `ingest` uses this section when it creates a topic. Afterwards the topic's own state counts, which
`lakelog topics alter` changes. A difference is reported. A topic that is neither here nor in the root is an error.

```yaml
topics:
  flights: {partitions: 2, cleanup.policy: compact, schema: flight}
```
"""

_TOPIC_KEYS = """\
### Kafka's topic keys

They have Kafka's names, defaults and bounds. The broker's key, where there is one, sets the default for all topics.
"""

_BROKER = """\
## Broker: `broker`

Kafka's broker keys: the defaults of all topics. There is no broker. The keys are Kafka's so that you can take over the
settings of a broker.

The root keeps them, for every job and command on it. The first run that makes a topic in a root puts the section of its
file there. Afterwards `lakelog broker alter` changes what is kept. A run whose file, environment or `--set` has another value
uses that value, and says on standard error which key differs, and how. A key of a run hides its synonyms in the root:
`log.retention.hours` of a run acts even where the root keeps `log.retention.ms`.
"""

_DIRECTORIES = """\
## Plain Kafka log directories

These keys count where a program opens a broker's log directories for writing (`storage_engine.kafka_dir.log_manager`). Under a
root they would have no effect and are refused: there every commit is synced, and jobs do what is due.
"""

_WITHOUT_USE = """\
## Kafka's keys without use

Kafka has these keys. Lakelog refuses them, because whoever sets one relies on something that Lakelog does not do. Leave
them out.
"""


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
    parts = [_OPENING, "## Root\n", table(columns, _settings(Settings, "", ["root"]))]
    parts.append(_TOPICS)
    parts.append(table(("Key", "Meaning"), ((f"`{key}`", doc) for key, doc in TOPIC_ENTRY.items())))
    parts.append(_TOPIC_KEYS)
    topic_columns = ("Key", "Type", "Default", "Allowed", "Broker's keys", "Meaning")
    parts.append(table(topic_columns, (_topic_key(key) for key in TOPIC_KEYS.values())))
    parts.append(_BROKER)
    broker_columns = ("Key", "Type", "Default", "Allowed", "Meaning")
    parts.append(table(broker_columns, (_broker_key(key) for key in BROKER_KEYS.values())))
    for name, section in SECTIONS.items():
        parts.append(f"## Job: `{name}`\n\n{Settings.model_fields[name].description}\n")
        parts.append(table(columns, _settings(section, f"{name}.")))
    parts.append(_DIRECTORIES)
    directory_keys = (*DIRECTORY_TOPIC_KEYS.values(), *DIRECTORY_BROKER_KEYS.values())
    parts.append(table(broker_columns, (_broker_key(key) for key in directory_keys)))
    parts.append(_WITHOUT_USE)
    parts.append(table(("Key", "Why"), ((f"`{key}`", why) for key, why in sorted(KAFKA_KEYS_WITHOUT_USE.items()))))
    return "\n".join(parts)
