"""Pages about dead letters: counts by reason, the newest dead letters of a topic, and how to replay them.

A page never reads the key, the value or the headers of a dead letter.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from lakelog.dead_letter_tables import (
    UNKNOWN_TOPIC_DEAD_LETTERS,
    database_dead_letters,
    export_dead_letters_key,
    ingest_dead_letters_key,
)
from lakelog.optional import optional
from lakelog.report.attention import database_dead_letters_note, dead_letters_table
from lakelog.report.dead_letter_counts import (
    DeadLetterKind,
    DeadLetters,
    count_dead_letters,
    count_dead_letters_of_no_topic,
    newest_dead_letters,
)
from lakelog.report.layout import data_table
from lakelog.report.markup import Child, Markup, element
from lakelog.ui.overview_pages import page_of
from lakelog.ui.rendering import Look, link, link_head, show
from lakelog.ui.site import Site
from storage_engine.errors import LogError
from storage_engine.quantities import shown_moment, shown_number
from storage_engine.storage import Storage
from storage_engine.storage.small_requests import results_of
from storage_engine.topic.readers.consumer_files import read_consumers

with optional("starlette", "lakelog[ui]", "The command `lakelog ui`"):
    from starlette.requests import Request
    from starlette.responses import Response

TOPICS_OF_A_PAGE = 50
MOST_LISTED = 100
"""At most this many dead letters of a table are listed, the newest ones."""


def dead_letters(site: Site, request: Request) -> Response:
    """The page `/dead-letters`: counts by topic and reason.

    Raises:
        ConfigError: a parameter is wrong.
        StorageError: the root cannot be listed.
    """
    topics = site.topics()
    names = list(topics.names(with_deleted=True))
    shown = page_of(request, len(names), TOPICS_OF_A_PAGE)
    letters, errors = list[tuple[str, DeadLetters]](), list[LogError]()
    listed = names[shown.first : shown.end]
    counts = results_of(topics.storage, lambda name: _counted(topics.storage, name), listed)
    for name, (found, problems) in zip(listed, counts, strict=True):
        letters += ((name, each) for each in found)
        errors += problems
    of_no_topic: tuple[DeadLetters, ...] = ()
    try:
        of_no_topic = count_dead_letters_of_no_topic(topics.storage)
    except LogError as error:
        errors.append(error)
    values = {
        "table": _table(letters) if letters else None,
        "of_no_topic": dead_letters_table(of_no_topic, "Dead letters whose topic is unknown") if of_no_topic else None,
        "unknown_table": UNKNOWN_TOPIC_DEAD_LETTERS, "errors": errors, "paging": shown,
    }  # fmt: skip
    return show(site, request, "dead_letters", Look("Dead letters", tab="dead-letters"), values)


def _table(letters: Sequence[tuple[str, DeadLetters]]) -> Markup:
    rows = (
        (
            link_head(name, "topics", name, "dead-letters"), ", ".join(filter(None, (each.reason, each.outcome))),
            str(each.kind), *_place_of(name, each), shown_number(each.count),
        )
        for name, each in letters
    )  # fmt: skip
    columns = ("topic", "reason", "job", "from", "first", "last", "dead letters")
    return data_table("Dead letters by topic and reason", columns, rows, words=columns[1:6])


def _place_of(topic: str, each: DeadLetters) -> tuple[Child, Child, Child]:
    if each.kind is DeadLetterKind.INGEST:
        return f"query {each.origin}", f"batch {shown_number(each.first)}", f"batch {shown_number(each.last)}"
    first, last = (
        link(f"offset {shown_number(offset)}", "topics", topic, "records", partition=each.origin, offset=offset)
        for offset in (each.first, each.last)
    )
    return f"partition {each.origin}", first, last


def _counted(storage: Storage, topic: str) -> tuple[list[DeadLetters], list[LogError]]:
    letters, errors = list[DeadLetters](), list[LogError]()
    for kind in DeadLetterKind:
        try:
            letters += count_dead_letters(storage, topic, kind)
        except LogError as error:
            errors.append(error)
    return letters, errors


def dead_letters_of_topic(site: Site, request: Request, name: str) -> Response:
    """The page `/topics/TOPIC/dead-letters`: counts, the newest dead letters, and how to replay them.

    Raises:
        UnknownTopicError: there is no such topic, or its state is damaged and no table of dead letters exists.
        CorruptionError: the state of the topic is damaged.
    """
    topics = site.topics()
    in_databases = database_dead_letters(read_consumers(topics.storage, topics.state(name)).known)
    letters, errors = _counted(topics.storage, name)
    listed = dict[DeadLetterKind, Markup]()
    for kind in {each.kind for each in letters}:
        try:
            listed[kind] = _listed(topics.storage, name, kind)
        except LogError as error:
            errors.append(error)
    open_letters = sum(each.count for each in letters if each.asks_for_attention)
    values = {
        "name": name, "errors": errors, "table": _table([(name, each) for each in letters]) if letters else None,
        "exported": listed.get(DeadLetterKind.EXPORT), "ingested": listed.get(DeadLetterKind.INGEST),
        "in_databases": database_dead_letters_note(in_databases), "open_letters": open_letters,
        "replay": replay_command(site.uri),
        "ingest_table": ingest_dead_letters_key(name), "export_table": export_dead_letters_key(name),
    }  # fmt: skip
    return show(site, request, "topic_dead_letters", Look(f"Dead letters of {name}", name, "dead-letters"), values)


def replay_command(uri: str) -> str:
    """The command that replays the dead letters of an export. SETTINGS.yaml is the settings file of the export."""
    return f"./spark-submit.sh export --conf SETTINGS.yaml --root {shlex.quote(uri)} --replay"


def _listed(storage: Storage, name: str, kind: DeadLetterKind) -> Markup:
    """The newest dead letters of one table."""
    of_export = kind is DeadLetterKind.EXPORT

    def rows() -> Iterator[Sequence[Child]]:
        for each in newest_dead_letters(storage, name, kind, MOST_LISTED):
            place = shown_number(each.place)
            yield (
                link_head(f"offset {place}", "topics", name, "records", partition=each.origin, offset=each.place)
                if of_export else element("th", f"batch {place}", scope="row"),
                f"{'partition' if of_export else 'query'} {each.origin}", each.reason, each.outcome or "open",
                None if each.timestamp_ms is None else shown_moment(each.timestamp_ms), each.detail,
            )  # fmt: skip

    columns = ("place", "from", "reason", "outcome", "timestamp", "detail")
    caption = f"The newest dead letters of the {kind}, at most {MOST_LISTED}"
    return data_table(caption, columns, rows(), words=columns[1:5], prose=("detail",))
