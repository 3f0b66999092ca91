"""Tests that the page is complete and shows the facts, and that no data can change the structure of the page."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from lakelog.report.dead_letter_counts import DeadLetterKind, DeadLetters
from lakelog.report.facts import RootFacts, collect_root
from lakelog.report.page import render
from lakelog.report.topic_section import MOST_CHANGES, MOST_PICTURES, MOST_SEGMENTS
from storage_engine.topic.chain.version_files import version_key
from storage_engine.topic.readers.consumer_files import DATABASE_EXPORT_KIND, export_consumer, put_positions
from tests.lakelog.report.html_tables import tables
from tests.lakelog.report.roots import DAY, HOUR, NOW, Root, partition, segments

HOSTILE = "</style><script>alert('1')</script>&amp;\x00\"'<!--"


def collect(root: Root) -> RootFacts:
    return collect_root(root.topics, (), NOW)


class Structure(HTMLParser):
    """Elements and attributes of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: Counter[str] = Counter()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements[tag] += 1
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            elif name in ("href", "src", "action", "xlink:href", "srcset"):
                self.links.append(value or "")


def test_tables_say_what_the_state_says(root: Root) -> None:
    root.topic("orders", partition(*segments(1500, 2500)), partition(), retention_ms=str(30 * DAY))
    root.commit("orders", partition(*segments(1500, 2500, 3000)), partition(*segments(70)), query="q-1", batch=8)
    told = tables(render(collect(root)))
    assert told["Topics"] == [
        {
            "topic": "orders", "cleanup.policy": "delete", "partitions": "2", "segments": "4",
            "records appended": "3,070", "in the log": "4.0 kB", "dead letters": "0",
            "newest record": "2023-11-14 22:13:20Z", "last change": "2023-11-14 22:13:20Z",
        }
    ]  # fmt: skip
    first, second = told["Partitions"]
    assert (first["partition"], first["log start offset"], first["high watermark"]) == ("0", "0", "3,000")
    assert (second["high watermark"], second["segments"], second["size"]) == ("70", "1", "1.0 kB")
    assert [row["base offset"] for row in told["Segments of partition 0"]] == ["0", "1,500", "2,500"]
    assert [row["age"] for row in told["Segments of partition 0"]] == ["2 h old", "1 h old", "0.0 s old"]
    assert [row["state"] for row in told["Segments of partition 0"]] == ["kept", "kept", "active"]
    changes = told["Changes, the newest first"]
    assert [row["version"] for row in changes] == ["2", "1", "0"]
    assert (changes[0]["change"], changes[0]["records"], changes[0]["bytes"]) == (
        "batch 8 of query q-1",
        "570",
        "+2.0 kB",
    )
    assert told["Streaming queries"] == [{"query": "q-1", "last batch": "8"}]
    assert told["The topic's own settings"] == [{"key": "retention.ms", "value": "2592000000"}]


def test_what_maintenance_does_next_is_reported_in_words(root: Root) -> None:
    old = segments(10, 20, 30, newest=[NOW - 9 * DAY, NOW - 8 * DAY, NOW])
    root.topic("events", partition(*old))
    root.topic("small", partition(*segments(10, 20, 30)))
    root.topic("latest", partition(*segments(10, 20, 30, 40), first_dirty_offset=20), cleanup_policy="compact")
    root.topic("latest.due", partition(*segments(10, 20, 30), first_dirty_offset=0), cleanup_policy="compact")
    page = render(collect(root))
    assert "Retention deletes 2 segments next, 2.0 kB: 2 by time. The log then starts at offset 20." in page
    assert (
        "Compaction is not due: 0.333 of its bytes are dirty, min.cleanable.dirty.ratio is 0.5. Records from offset 30 on"
        in page
    )
    assert "Compaction cleans 2 segments next, because 1.000 of its bytes are dirty" in page
    assert "Merging combines 2 segments, 2.0 kB, into 1." in page


def test_dead_letters_are_reported_by_reason(root: Root) -> None:
    root.topic("t", partition(*segments(10)))
    facts = collect(root)
    letters = (
        DeadLetters(DeadLetterKind.INGEST, "no_key", "q-1", 2512, 0, 11),
        DeadLetters(DeadLetterKind.EXPORT, "undecodable", "3", 1, 77, 77),
    )
    told = tables(render(replace(facts, topics=(replace(facts.topics[0], dead_letters=letters),))))
    assert told["Topics"][0]["dead letters"] == "2,513"
    assert [tuple(row.values()) for row in told["Dead letters by reason"]] == [
        ("no_key", "ingest", "query q-1", "2,512", "batch 0", "batch 11"),
        ("undecodable", "export", "partition 3", "1", "offset 77", "offset 77"),
    ]


def test_dead_letters_of_no_topic_are_reported_beside_those_of_the_topics(root: Root) -> None:
    root.topic("t", partition(*segments(10)))
    letter = {"reason": "unknown_topic", "query_id": "q-1", "batch_id": 4}
    write_deltalake(root.folder / "tables/dead_letters/unknown_topic", pa.Table.from_pylist([letter] * 3))
    write_deltalake(
        root.folder / "tables/dead_letters/ingest/t", pa.Table.from_pylist([letter | {"reason": "no_key"}] * 2)
    )
    told = tables(page := render(collect(root)))
    assert [tuple(row.values()) for row in told["Dead letters whose topic is unknown"]] == [
        ("unknown_topic", "ingest", "query q-1", "3", "batch 4", "batch 4")
    ]
    assert told["Topics"][0]["dead letters"] == "2"
    assert "<dt>dead letters</dt><dd>5</dd>" in page
    assert "Dead letters whose topic is unknown" not in tables(render(collect_root(root.topics, ["t"], NOW)))


def test_no_dead_letters_are_reported_only_where_all_could_be_counted(root: Root) -> None:
    root.topic("t", partition(*segments(10)))
    facts = collect(root)
    uncounted = replace(facts, topics=(replace(facts.topics[0], all_dead_letters=False),))
    none, unknown = "There are none.", "Some dead letters could not be counted; see the warnings."
    assert [text in render(facts) for text in (none, unknown)] == [True, False]
    assert [text in render(uncounted) for text in (none, unknown)] == [False, True]


def test_tables_of_dead_letters_in_databases_are_named(root: Root) -> None:
    state = root.topic("t", partition(*segments(10)))
    name = export_consumer("jdbc:postgresql://db:5432/shop public.sales")
    put_positions(root.topics.storage, state, name, DATABASE_EXPORT_KIND, {0: 10}, NOW, holds_back=True)
    page = render(collect(root))
    assert "There are none in Delta tables." in page
    assert "<li><code>jdbc:postgresql://db:5432/shop public.sales_dead_letters</code></li>" in page


def test_dropped_segments_are_reported_until_their_files_go(root: Root) -> None:
    root.topic("t", partition(*segments(10, 20)), file_delete_delay_ms=str(HOUR))
    root.topics.delete("t")
    root.topic("t", partition(*segments(5)), file_delete_delay_ms=str(HOUR))
    early = tables(render(collect(root)))
    late = tables(render(collect_root(root.topics, (), NOW + HOUR)))
    caption = "Dropped segments. Maintenance deletes the files of a segment 1 h after the drop"
    assert [(row["segments"], row["due"]) for row in early[caption]] == [("2", "0")]
    assert [(row["segments"], row["due"]) for row in late[caption]] == [("2", "2")]


def test_an_unreadable_topic_has_its_row_and_its_warning(root: Root) -> None:
    root.topic("bad", partition())
    root.topic("good", partition())
    root.topics.storage.replace(version_key("bad", 1), b"no state")
    page = render(collect(root))
    assert [row["topic"] for row in tables(page)["Topics"]] == ["good", "bad"]
    assert tables(page)["Topics"][1]["cleanup.policy"] == "not readable"
    assert "meta/bad/00000000000000000001.json at position 0" in page


def test_what_is_left_out_for_its_length_is_said(root: Root) -> None:
    many = partition(*segments(*range(10, 2010, 10)))
    root.topic("t", many, *[partition(*segments(1)) for _ in range(MOST_PICTURES)])
    for number in range(MOST_CHANGES):
        root.topics.alter("t", configs={"retention.ms": str(10**12 + number)})
    page = render(collect(root))
    told = tables(page)
    assert len(told["Partitions"]) == MOST_PICTURES + 1
    assert page.count('class="picture"') == MOST_PICTURES
    assert "Below are the 16 largest of 17 partitions." in page
    assert len(told["Segments of partition 0"]) == MOST_SEGMENTS
    assert "160 segments between the oldest and the newest 20 are not listed" in page
    assert len(told["Changes, the newest first"]) == MOST_CHANGES
    assert "The newest 50 of 52 changes." in page


def test_a_root_of_ordinary_size_is_a_page_below_a_megabyte(root: Root) -> None:
    for number in range(4):
        times = [NOW - (100 - each) * HOUR for each in range(100)]  # with more, neighbours are drawn as one
        parts = [partition(*segments(*range(10, 1010, 10), newest=times)) for _ in range(4)]
        root.topic(f"topic-{number}", *parts)
    assert len(render(collect(root))) < 1_000_000


def test_no_data_leads_into_the_structure(root: Root) -> None:
    root.topic("t", partition(*segments(10)))
    plain = Structure(render(collect(root)))

    def change(state):
        return state.model_copy(update={"writer": state.writer.model_copy(update={"query": HOSTILE, "host": HOSTILE})})

    root.topics.chain("t").commit(change, HOSTILE)
    facts = collect(root)
    letters = (DeadLetters(DeadLetterKind.INGEST, HOSTILE, HOSTILE, 1, 0, 0),)
    hostile = render(replace(facts, uri=HOSTILE, topics=(replace(facts.topics[0], dead_letters=letters),)))
    found = Structure(hostile)
    assert found.elements["script"] == 0
    assert set(found.elements) == set(plain.elements)
    assert "\x00" not in hostile
    told = tables(hostile)
    assert told["Dead letters by reason"][0]["reason"] == HOSTILE.replace("\x00", "\ufffd")
    assert told["Changes, the newest first"][0]["change"] == HOSTILE.replace("\x00", "\ufffd")


def test_the_page_asks_for_nothing_and_its_ids_are_its_own(root: Root) -> None:
    for name in ("a", "s", "overview", "b.c"):
        root.topic(name, partition(*segments(10, 20)))
    page = render(collect(root))
    structure = Structure(page)
    assert [link for link in structure.links if not link.startswith("#")] == []
    assert {link[1:] for link in structure.links} <= set(structure.ids)
    assert len(structure.ids) == len(set(structure.ids))
    assert structure.elements["script"] == structure.elements["link"] == structure.elements["img"] == 0
    assert re.findall(r"url\((?!#fill-)|@import|https?:", page) == []


@pytest.mark.parametrize("ms", [0, 2**63 - 1])
def test_any_time_is_reported(root: Root, ms: int) -> None:
    root.topic("t", partition(*segments(10, 20, newest=[ms, -1])), partition())
    assert tables(render(collect_root(root.topics, (), ms)))["Topics"][0]["topic"] == "t"


def test_an_empty_root_says_so(root: Root) -> None:
    page = render(collect(root))
    assert "There is no topic under this root." in page
    assert "No warnings" in page
