"""The counts of dead letters and stale rows, from Delta tables that deltalake has written."""

from __future__ import annotations

import pyarrow as pa
from deltalake import write_deltalake

from lakelog.metrics.root_watch import LONG_WAY_MS, RootWatch, all_errors
from lakelog.report.dead_letter_counts import DeadLetterKind, DeadLetters
from lakelog.report.exported_tables import StaleRows
from tests.lakelog.metrics.roots import WatchedRoot


def test_tables_are_counted_every_few_minutes_and_a_damaged_table_is_named(root: WatchedRoot) -> None:
    root.topic("orders")
    root.append("orders", 0)
    root.export("orders", {0: 1})
    watch = RootWatch(root.topics, "lakelog", counts_tables=True)
    (topic,) = watch.look().topics
    assert (topic.dead_letters, topic.stale_rows) == ((), (StaleRows("tables/orders", 0),))
    letters = root.folder / "tables/dead_letters/ingest/orders"
    rows = pa.table({"reason": ["malformed"] * 2, "query_id": ["q"] * 2, "batch_id": [4, 5]})
    write_deltalake(str(letters), rows)
    stale = pa.table({"_key": ["a", "b"], "_stale_since": pa.array([None, 3], pa.int64())})
    write_deltalake(str(root.folder / "tables/orders"), stale)
    assert watch.look().topics[0].dead_letters == ()
    root.clock.advance(LONG_WAY_MS)
    (topic,) = watch.look().topics
    assert topic.dead_letters == (DeadLetters(DeadLetterKind.INGEST, "malformed", "q", 2, 4, 5),)
    assert topic.stale_rows == (StaleRows("tables/orders", 1),)
    for path in (letters / "_delta_log").iterdir():
        path.write_bytes(b"not JSON")
    root.clock.advance(LONG_WAY_MS)
    found = watch.look()
    assert (found.topics[0].dead_letters, found.topics[0].stale_rows) == (None, (StaleRows("tables/orders", 1),))
    assert [text.startswith(f"{letters}: expected a Delta table") for text in all_errors(found).values()] == [True]
