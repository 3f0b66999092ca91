"""Lists Kafka's keys that are refused, because they would have no effect here.

A refused key is not ignored: a user who sets min.insync.replicas relies on a behaviour that Lakelog does not have. Some
of these keys have an effect in a plain log directory (config/kafka_dir.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_NO_REPLICAS = "there is one copy of the log, and the storage keeps it safe"
_ALWAYS_SYNCED = "every commit is synced to storage before it counts"
_NO_TIERS = "there is one tier of storage, the root"
_JOBS_CLEAN = "cleaning is done by the maintenance jobs, and Spark gives them their threads and memory"

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
    "message.format.version": "batches are always written in magic 2, as by Kafka 4",
    "log.message.format.version": "batches are always written in magic 2, as by Kafka 4",
    "message.downconversion.enable": "no old consumers have to be served",
    "log.message.downconversion.enable": "no old consumers have to be served",
    "message.timestamp.difference.max.ms": "Kafka 4 has message.timestamp.before.max.ms and .after.max.ms in its place",
    "log.message.timestamp.difference.max.ms": "Kafka 4 has log.message.timestamp.before.max.ms and .after.max.ms in its place",
    "log.cleaner.enable": "compaction runs when its job runs",
    "log.cleaner.threads": _JOBS_CLEAN,
    "log.cleaner.backoff.ms": _JOBS_CLEAN,
    "log.cleaner.io.buffer.size": _JOBS_CLEAN,
    "log.cleaner.io.buffer.load.factor": _JOBS_CLEAN,
    "log.retention.check.interval.ms": "retention runs when its job runs",
    "log.dir": "root says where everything is",
    "log.dirs": "root says where everything is",
    "auto.create.topics.enable": "ingest creates the topics that the settings describe, and no others",
    "num.recovery.threads.per.data.dir": "nothing has to be recovered at a start",
    "broker.id": "no broker runs",
    "node.id": "no broker runs",
    "process.roles": "no broker runs",
    "listeners": "no broker runs",
    "advertised.listeners": "no broker runs",
}
"""Keys of Kafka that are refused because they would have no effect, each with the reason."""
