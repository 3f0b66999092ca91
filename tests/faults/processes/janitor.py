"""Maintenance without a pause, beside ingests that die: merges small segments and deletes what was dropped.

    python -m tests.faults.processes.janitor ROOT TOPIC

SIGTERM ends it and lets it print one JSON line: what it did.
"""

from __future__ import annotations

import json
import signal
import sys
import threading

from storage_engine.clock import SystemClock
from storage_engine.config import BrokerConfig
from storage_engine.storage.posix import PosixStorage
from storage_engine.topic.cleaning import delete_dropped, merge_topic
from storage_engine.topic.topics import Topics


def main(root: str, topic: str) -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    topics = Topics(PosixStorage(root), BrokerConfig(), SystemClock())
    merged = deleted = 0
    while not stop.wait(0.2):
        if (state := topics.find(topic)) is None:
            continue
        chain, config = topics.chain(topic), topics.config(state)
        merged += sum(len(each.replaced) for each in merge_topic(topics.storage, chain, config).cleaned)
        deleted += len(delete_dropped(topics.storage, chain, config, topics.clock.now_ms()))
    print(json.dumps({"merged": merged, "deleted": deleted}))


if __name__ == "__main__":
    main(*sys.argv[1:])
