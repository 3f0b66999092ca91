"""The options of the source that an ingest reads, with Lakelog's defaults."""

from __future__ import annotations

from lakelog.spark.data_source import LAKELOG, may_read
from pipeline.settings import Settings
from storage_engine.errors import ConfigError
from storage_engine.storage.storage_opening import is_same_storage, open_storage

_STARTING = "startingOffsets"
_STARTS = {"startingoffsets", "startingoffsetsbytimestamp", "startingtimestamp"}
"""The options that choose where a stream of messages begins, in lower case."""
_ISOLATION = "kafka.isolation.level"
HEADERS_OPTION = "includeHeaders"
"""The option that adds the column `headers` to messages."""


def source_options(settings: Settings, *, from_earliest: bool = False) -> dict[str, str]:
    """The source's options, with Lakelog's defaults. By default, the level of `isolation` decides which messages are
    read. A Lakelog topic is by default read from its start, with headers, from the root of the settings.

    Args:
        from_earliest: the source has messages, and is read from its start, whatever the options say.

    Raises:
        ConfigError: the ingest would read the topic that it writes, or the options do not choose topics.
    """
    ingest = settings.required_ingest()
    options = dict(ingest.source.options)
    if from_earliest:
        options = {name: value for name, value in options.items() if name.lower() not in _STARTS}
        options[_STARTING] = "earliest"
    level = isolation(settings)
    if level is not None and source_option(settings, _ISOLATION) is None:
        options[_ISOLATION] = level
    if ingest.source.format.lower() != LAKELOG:
        return options
    if source_option(settings, HEADERS_OPTION) is None:
        options[HEADERS_OPTION] = "true"
    if not _STARTS & set(map(str.lower, options)):
        options[_STARTING] = "earliest"
    root = source_option(settings, "root")
    if root is None:
        options["root"] = settings.root
    if root is None or _is_own_root(settings, root):
        for topic in (topic for topic in ingest.ingest_topics if may_read(options, topic)):
            raise ConfigError(
                settings.place_of("ingest.source.options"), f"the ingest would read topic {topic} and append to the same topic",
                "Subscribe to another topic, or set the source's root to another root.",
            )  # fmt: skip
    return options


def _is_own_root(settings: Settings, root: str) -> bool:
    """Whether the option `root` of the source names the root of the settings."""
    try:
        return is_same_storage(open_storage(root), open_storage(settings.root))
    except ConfigError as error:
        place = settings.place_of("ingest.source.options")
        raise ConfigError(place, f"option root: {error.place}: {error.problem}", error.remedy) from error


def shown_source(settings: Settings) -> str:
    """The source in words, for messages. Only the options that name topics and their location are included."""
    source = settings.required_ingest().source
    kind = source.format.lower()
    if not source.has_messages:
        return f"{source.format} {source.path}" if source.path else source.format
    where = source_option(settings, "kafka.bootstrap.servers") or source_option(settings, "root") or settings.root
    read = [
        f"{option} {found}"
        for option in ("subscribe", "subscribePattern", "assign")
        if (found := source_option(settings, option)) is not None
    ]
    return f"{kind}, {', '.join([*read, f'at {where}'])}"


def isolation(settings: Settings) -> str | None:
    """Which records of transactions the source returns; None for a source without transactions. By default, only
    committed records are read. `lakelog read` has the same default. With the default of Kafka's consumer and of Spark,
    the source would also return aborted records."""
    if not settings.required_ingest().source.has_messages:
        return None
    return (source_option(settings, _ISOLATION) or "read_committed").strip().lower()


def source_option(settings: Settings, name: str) -> str | None:
    """The value of an option of the source. Case is ignored in its name, as in Spark."""
    options = settings.required_ingest().source.options
    return next((value for key, value in options.items() if key.lower() == name.lower()), None)
