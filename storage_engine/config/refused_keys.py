"""Lists Kafka's keys that Lakelog refuses, because they would have no effect under a root.

Each of these keys raises an error. If Lakelog ignored the keys, problems would stay hidden: a user who sets
min.insync.replicas expects a behavior that Lakelog does not have. Some of the refused keys have an effect in a plain
log directory (config/kafka_dir_keys.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_NO_REPLICAS = "there is one copy of the log, and the storage protects this copy"
_ALWAYS_SYNCED = "every commit is synced to storage before it takes effect"
_NO_TIERS = "there is one tier of storage, the root"
_JOBS_CLEAN = "maintenance jobs do the cleaning, and Spark sets their threads and memory"

KAFKA_KEYS_WITHOUT_USE: Final[Mapping[str, str]] = {
    "min.insync.replicas": _NO_REPLICAS,
    "unclean.leader.election.enable": _NO_REPLICAS,
    "default.replication.factor": _NO_REPLICAS,
    "leader.replication.throttled.replicas": _NO_REPLICAS,
    "follower.replication.throttled.replicas": _NO_REPLICAS,
    "flush.messages": _ALWAYS_SYNCED,
    "flush.ms": _ALWAYS_SYNCED,
    "log.flush.interval.messages": _ALWAYS_SYNCED,
    "log.flush.interval.ms": _ALWAYS_SYNCED,
    "log.flush.scheduler.interval.ms": _ALWAYS_SYNCED,
    "log.flush.offset.checkpoint.interval.ms": _ALWAYS_SYNCED,
    "log.flush.start.offset.checkpoint.interval.ms": _ALWAYS_SYNCED,
    "preallocate": "segments grow by whole micro-batches",
    "log.preallocate": "segments grow by whole micro-batches",
    "remote.storage.enable": _NO_TIERS,
    "remote.log.copy.disable": _NO_TIERS,
    "remote.log.delete.on.disable": _NO_TIERS,
    "remote.copy.lag.ms": _NO_TIERS,
    "remote.copy.lag.bytes": _NO_TIERS,
    "local.retention.ms": _NO_TIERS,
    "local.retention.bytes": _NO_TIERS,
    "log.local.retention.ms": _NO_TIERS,
    "log.local.retention.bytes": _NO_TIERS,
    "remote.log.storage.system.enable": _NO_TIERS,
    "message.format.version": "batches are always written with magic 2, as in Kafka 4",
    "log.message.format.version": "batches are always written with magic 2, as in Kafka 4",
    "message.downconversion.enable": "Lakelog serves no Kafka consumers",
    "log.message.downconversion.enable": "Lakelog serves no Kafka consumers",
    "message.timestamp.difference.max.ms": "Kafka 4 has message.timestamp.before.max.ms and .after.max.ms instead",
    "log.message.timestamp.difference.max.ms": "Kafka 4 has log.message.timestamp.before.max.ms and .after.max.ms instead",
    "log.cleaner.enable": "compaction runs in the maintenance job",
    "log.cleaner.threads": _JOBS_CLEAN,
    "log.cleaner.backoff.ms": _JOBS_CLEAN,
    "log.cleaner.io.buffer.size": _JOBS_CLEAN,
    "log.cleaner.io.buffer.load.factor": _JOBS_CLEAN,
    "log.retention.check.interval.ms": "retention runs in the maintenance job",
    "log.dir": "the setting `root` names the directory",
    "log.dirs": "the setting `root` names the directory",
    "auto.create.topics.enable": "ingest creates the topics that the settings describe, and no others",
    "num.recovery.threads.per.data.dir": "no recovery is needed at a start",
    "broker.id": "no broker runs",
    "node.id": "no broker runs",
    "process.roles": "no broker runs",
    "listeners": "no broker runs",
    "advertised.listeners": "no broker runs",
}
"""Kafka's refused keys, each with the reason."""
