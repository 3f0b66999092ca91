"""Runs maintenance without a pause while other programs are killed: applies retention, compacts or merges segments,
deletes dropped files, prunes and sweeps.

    python -m tests.faults.processes.janitor ROOT TOPIC...

After SIGTERM, the program prints one JSON line about its work, and ends.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections import Counter

from storage_engine.clock import SystemClock
from storage_engine.config import BrokerConfig
from storage_engine.errors import StorageFullError
from storage_engine.storage.storage_opening import open_storage
from storage_engine.topic.chain.pruning import prune
from storage_engine.topic.clean.sweeping import sweep_topic
from storage_engine.topic.clean.topic_compaction import compact_topic
from storage_engine.topic.clean.topic_merging import merge_topic
from storage_engine.topic.clean.topic_retention import retain_topic
from storage_engine.topic.dropped_files import delete_dropped
from storage_engine.topic.topics import Topics

KEPT_VERSIONS = 10
SWEEP_DELAY_MS = 60_000
"""Longer than any of these drivers takes from a plan to its commit, unless it sleeps."""


def main(root: str, *names: str) -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    broker = BrokerConfig(sweep_delay_ms=SWEEP_DELAY_MS)
    topics = Topics(open_storage(root), broker, SystemClock())
    done: Counter[str] = Counter()
    while not stop.wait(0.2):
        for topic in names:
            try:
                clean(topics, topic, broker, done)
            except StorageFullError:
                done["times the disk was full"] += 1
    print(json.dumps(done))


def clean(topics: Topics, topic: str, broker: BrokerConfig, done: Counter[str]) -> None:
    if (state := topics.find(topic)) is None:
        return
    chain, config, storage = topics.chain(topic), topics.config(state), topics.storage
    retained = retain_topic(chain, broker)
    done["segments retained"] += sum(len(plan.deletions) for plan in retained.plans)
    if "compact" in config.cleanup_policy:
        cleaned = compact_topic(storage, chain, config, broker, topics.clock)
        done["segments compacted"] += sum(len(each.replaced) for each in cleaned.cleaned)
    else:
        merged = merge_topic(storage, chain, config)
        done["segments merged"] += sum(len(each.replaced) for each in merged.cleaned)
    done["segments deleted"] += len(delete_dropped(storage, chain, config, topics.clock.now_ms()))
    done["versions pruned"] += prune(storage, chain, KEPT_VERSIONS).versions
    done["files swept"] += sweep_topic(storage, chain, broker).files


if __name__ == "__main__":
    main(*sys.argv[1:])
