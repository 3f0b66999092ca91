"""A naive model that watches the disk, and so knows the true contents of a topic. Also has a function for each
invariant.

The model shares no code with the engine. When a process puts a version of the state, the model parses the version as
JSON. The model decodes each record batch byte by byte. From the versions that continue the chain, it makes the list of
all records ever committed. Every reply to a writer and every result of a reader is compared with this list.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.model.scheduler import Scheduler, Violation
from tests.model.simulated_storage import Disk

_HEADER = struct.Struct(">qiibIhiqqqhii")  # the 61 bytes of a record batch
_CONTROL = 32
_SUFFIXES = (".log", ".index", ".timeindex")


class Record(NamedTuple):
    """A record as it lies in the log. value: None for a marker."""

    offset: int
    key: bytes
    value: bytes | None
    timestamp: int
    epoch: int


def parse_batches(data: bytes) -> Iterator[Record]:
    """The records of uncompressed batches of magic 2."""
    position = 0
    while position < len(data):
        base, length, epoch, magic, _, attributes, last, first_time, _, _, _, _, count = _HEADER.unpack_from(
            data, position
        )
        if magic != 2 or position + 12 + length > len(data):
            raise Violation(f"no whole batch at position {position}")
        at = position + _HEADER.size
        for _ in range(count):
            _, at = _varint(data, at)
            at += 1
            time_delta, at = _varint(data, at)
            offset_delta, at = _varint(data, at)
            key, at = _bytes(data, at)
            value, at = _bytes(data, at)
            headers, at = _varint(data, at)
            if headers:
                raise Violation("no record of the model has headers")
            shown = None if attributes & _CONTROL else value
            yield Record(base + offset_delta, key, shown, first_time + time_delta, epoch)
        position += 12 + length
        if not count:
            yield Record(base + last, b"", None, -1, epoch)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return (value >> 1) ^ -(value & 1), at


def _bytes(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = _varint(data, at)
    return data[at : at + max(size, 0)], at + max(size, 0)


@dataclass
class Partition:
    """A partition as a version has it. segments: (name, size, base offset, end offset)."""

    start: int
    end: int
    first_dirty: int
    segments: tuple[tuple[str, int, int, int], ...]


@dataclass
class Version:
    """A version that continues the chain."""

    id: str
    number: int
    epoch: int
    partitions: tuple[Partition, ...]
    document: dict[str, Any]


@dataclass
class Offered:
    """An append that somebody tries: what each partition is to get, in order."""

    name: str
    values: dict[int, list[bytes]]
    source: str = ""
    committed_by: str | None = None


@dataclass
class Topic:
    """One topic's chain and records."""

    name: str
    lineage: list[Version] = field(default_factory=list)
    ids: dict[str, Version] = field(default_factory=dict)
    log: dict[int, list[Record]] = field(default_factory=dict)
    committed_sizes: dict[str, int] = field(default_factory=dict)

    @property
    def tip(self) -> Version:
        return self.lineage[-1]


class Truth:
    """The model. It is told of each effect on the disk before anybody acts on it."""

    def __init__(self, scheduler: Scheduler, disk: Disk) -> None:
        self._scheduler = scheduler
        self._disk = disk
        self.topics: dict[str, Topic] = {}
        self.offered: dict[bytes, Offered] = {}
        self.appends: dict[str, Offered] = {}
        self._created: set[str] = set()
        self.reads = self.look_ups = 0
        disk.on_create = self._name_is_new
        disk.on_put = self._version_was_put
        disk.on_write = self._position_is_free
        disk.on_delete = self._file_is_unnamed

    def _check(self, holds: bool, what: str) -> None:
        if not holds:
            self._scheduler.fail(Violation(what))

    # What happens on the disk.

    def _name_is_new(self, key: str) -> None:
        """No file name is created twice, but that of a version, by one who slept while it was pruned."""
        self._check(key not in self._created or key.startswith("meta/"), f"{key} was created twice")
        self._created.add(key)

    def _position_is_free(self, key: str, position: int) -> None:
        """A position below a committed size is never written to again, and none is left out."""
        there = len(self._disk.files[key].data) if key in self._disk.files else position
        self._check(position <= there, f"{key} has {there} bytes, and was written to at {position}")
        for topic in self.topics.values():
            committed = topic.committed_sizes.get(key, 0)
            self._check(position >= committed, f"{key} was written to at {position}, {committed} bytes are committed")

    def _file_is_unnamed(self, key: str) -> None:
        """No file is deleted that the newest state names: a .log, or a list of segments."""
        for topic in self.topics.values():
            if topic.lineage:
                self._check(
                    key not in self._named(topic), f"{key} was deleted, and version {topic.tip.number} names it"
                )
                tip = f"meta/{topic.name}/{topic.tip.number:020d}.json"
                self._check(key != tip, f"{key} was deleted, and is the newest version")

    def _named(self, topic: Topic) -> set[str]:
        document = topic.tip.document
        folder = f"data/{document['topic_id']}"
        logs = {
            f"{folder}/{number}/{segment[0]}.log"
            for number, part in enumerate(topic.tip.partitions)
            for segment in part.segments
        }
        lists = {
            f"meta/{topic.name}/segments/{part['listed'][0]}.json" for part in document["partitions"] if part["listed"]
        }
        return logs | lists

    def _version_was_put(self, key: str, data: bytes) -> None:
        """Versions form one chain: what does not name the newest as its parent does not count, and nobody believes it."""
        folder, _, name = key.rpartition("/")
        if not folder.startswith("meta/") or folder.count("/") != 1 or folder.startswith("meta/@"):
            return
        topic = self.topics.setdefault(folder[5:], Topic(folder[5:]))
        document = json.loads(data)
        before = topic.lineage[-1] if topic.lineage else None
        if (document["parent"], document["version"]) != ((before.id, before.number + 1) if before else ("", 0)):
            return
        self._check(
            int(name.removesuffix(".json")) == document["version"], f"{key} holds version {document['version']}"
        )
        version = self._parsed(topic, document)
        topic.lineage.append(version)
        topic.ids[version.id] = version
        if before is not None:
            self._parent_is_durable(topic, before)
            self._offsets_go_on(topic, before, version)
            self._fenced_writers_commit_nothing(before, version)
        self._named_bytes_are_durable(topic, version)
        self._records_are_taken_in(topic, before, version)
        self._swaps_keep_offsets(topic, before, version)

    def _parsed(self, topic: Topic, document: dict[str, Any]) -> Version:
        partitions = []
        for part in document["partitions"]:
            segments = part["segments"]
            if part["listed"]:
                listed = self._disk.files[f"meta/{topic.name}/segments/{part['listed'][0]}.json"]
                segments = json.loads(bytes(listed.data))["segments"] + segments
            partitions.append(
                Partition(
                    part["log_start_offset"], part["high_watermark"], part["first_dirty_offset"] or 0,
                    tuple((each[1], each[2], each[0], each[3]) for each in segments),
                )
            )  # fmt: skip
        epoch = document["writer"]["epoch"]
        return Version(document["id"], document["version"], epoch, tuple(partitions), document)

    # What must hold of each version.

    def _parent_is_durable(self, topic: Topic, before: Version) -> None:
        """Who acts on a version has made sure that a power cut does not take it away."""
        file = self._disk.files.get(f"meta/{topic.name}/{before.number:020d}.json")
        self._check(file is not None, f"version {before.number} is gone, and is the newest")
        if file is not None:
            self._check(file.durable >= 0, f"a version was built on version {before.number}, which is not durable")

    def _offsets_go_on(self, topic: Topic, before: Version, version: Version) -> None:
        """High watermarks and log start offsets never go back; no partition goes."""
        self._check(len(before.partitions) <= len(version.partitions), "a partition is gone")
        for number, (old, new) in enumerate(zip(before.partitions, version.partitions, strict=False)):
            self._check(old.end <= new.end, f"partition {number}'s log end offset went from {old.end} to {new.end}")
            self._check(
                old.start <= new.start <= new.end, f"partition {number}'s start went from {old.start} to {new.start}"
            )

    def _fenced_writers_commit_nothing(self, before: Version, version: Version) -> None:
        """The streaming writer that commits records is of the epoch that holds the topic."""
        current = self._scheduler.current
        epoch = current.process.epoch if current else None
        if epoch is not None and any(
            new.end > old.end for old, new in zip(before.partitions, version.partitions, strict=False)
        ):
            self._check(epoch == before.epoch, f"a writer of epoch {epoch} committed in epoch {before.epoch}")

    def _named_bytes_are_durable(self, topic: Topic, version: Version) -> None:
        """Every committed byte of a .log is there, and durable; every list of segments too."""
        for part in version.document["partitions"]:
            if part["listed"]:
                listed = f"meta/{topic.name}/segments/{part['listed'][0]}.json"
                self._check(listed in self._disk.files, f"version {version.number} names {listed}, which is gone")
                self._check(self._disk.files[listed].durable >= 0, f"{listed} is named, and not durable")
        for number, part in enumerate(version.partitions):
            for name, size, _, _ in part.segments:
                key = f"data/{version.document['topic_id']}/{number}/{name}.log"
                if topic.committed_sizes.get(key) == size:
                    self._check(key in self._disk.files, f"version {version.number} names {key}, which is gone")
                    continue
                file = self._disk.files.get(key)
                self._check(file is not None, f"version {version.number} names {key}, which is gone")
                if file is not None:
                    self._check(file.durable >= size, f"{key}: {size} bytes are committed, {file.durable} are durable")
                topic.committed_sizes[key] = size

    def _records_are_taken_in(self, topic: Topic, before: Version | None, version: Version) -> None:
        """What a version adds is one append that somebody offered, whole, in order, and for the first time."""
        added: dict[int, list[Record]] = {}
        for number, part in enumerate(version.partitions):
            end = before.partitions[number].end if before and number < len(before.partitions) else 0
            if part.end > end:
                records = [record for record in self._records(topic, version, number, end) if record.offset >= end]
                offsets = [record.offset for record in records]
                self._check(
                    offsets == list(range(end, part.end)), f"offsets {offsets} were committed at {end} to {part.end}"
                )
                epochs = {record.epoch for record in records}
                self._check(epochs == {before.epoch if before else 0}, f"batches of epochs {epochs} were committed")
                topic.log.setdefault(number, []).extend(records)
                values = [record for record in records if record.value is not None]
                if values:
                    added[number] = values
        if not added:
            return
        first = next(iter(added.values()))[0].value
        offered = self.offered.get(first or b"")
        self._check(offered is not None, f"version {version.number} begins with {first!r}, which nobody offered")
        if offered is None:
            return
        brought = {number: [record.value for record in records] for number, records in added.items()}
        self._check(brought == offered.values, f"{offered.name} was committed otherwise than it was offered")
        self._check(offered.committed_by is None, f"{offered.name} was committed twice")
        offered.committed_by = version.id

    def _records(self, topic: Topic, version: Version, number: int, first: int = 0) -> Iterator[Record]:
        """What the segments of a version that reach beyond an offset hold."""
        for name, size, base, end in version.partitions[number].segments:
            if end > first:
                file = self._disk.files[f"data/{version.document['topic_id']}/{number}/{name}.log"]
                for record in parse_batches(bytes(file.data[:size])):
                    self._check(base <= record.offset < end, f"{name} holds offset {record.offset}")
                    yield record

    def _swaps_keep_offsets(self, topic: Topic, before: Version | None, version: Version) -> None:
        """Compaction and merging leave each record at its offset, and take away only what a later one replaces."""
        if before is None:
            return
        for number, (old, new) in enumerate(zip(before.partitions, version.partitions, strict=False)):
            names = {segment[0] for segment in old.segments}
            if all(segment[0] in names or segment[2] >= old.end for segment in new.segments):
                continue
            kept = list(self._records(topic, version, number))
            self.records_are_right(topic, number, kept, new.start, new.end, new.first_dirty)

    # What writers are told, and readers given.

    def state_counts(self, topic: str, version_id: str) -> Version:
        """Whatever state anybody is given is one of the chain."""
        version = self.topics[topic].ids.get(version_id)
        if version is None:
            self._check(False, "somebody was given a state that is not of the chain")
            raise AssertionError
        return version

    def offer(self, offered: Offered) -> Offered:
        """Somebody is about to append this. Offered again, as after a crash, it is the same."""
        known = self.appends.setdefault(offered.name, offered)
        for values in known.values.values():
            for value in values:
                self.offered[value] = known
        return known

    def acknowledged(self, topic: str, offered: Offered, version_id: str) -> None:
        """An append is acknowledged only when it is committed."""
        self.state_counts(topic, version_id)
        self._check(
            offered.committed_by is not None or not offered.values, f"{offered.name} was acknowledged, not committed"
        )

    def noted(self, topic: str, what: str, version_id: str) -> None:
        """A change that is acknowledged is one version, and only one."""
        self.state_counts(topic, version_id)
        made = [version.id for version in self.topics[topic].lineage if version.document["change"] == what]
        self._check(made == [version_id], f"{what} was acknowledged as a version, and is {len(made)}")

    def was_read(self, topic: str, number: int, records: Iterable[Record], first: int, state_id: str) -> None:
        """Reading from an offset to a state's high watermark gives each record once, in order, none but these."""
        self.reads += 1
        version = self.state_counts(topic, state_id)
        part, tip = version.partitions[number], self.topics[topic].tip.partitions[number]
        given = list(records)
        if given:
            self._check(
                given[-1].offset < part.end, f"offset {given[-1].offset} was read, the high watermark is {part.end}"
            )
            self._check(given[0].offset >= first, f"offset {given[0].offset} was read, asked for was {first}")
        self.records_are_right(self.topics[topic], number, given, max(first, tip.start), part.end, tip.first_dirty)

    def records_are_right(
        self, topic: Topic, number: int, found: list[Record], first: int, end: int, first_dirty: int
    ) -> None:
        """Each is the one that was committed at its offset; what lacks between two offsets was compacted away."""
        log = topic.log.get(number, [])
        place = f"topic {topic.name}, partition {number}"
        previous = -1
        there = set()
        for record in found:
            self._check(record.offset > previous, f"{place}: offset {record.offset} came after {previous}")
            previous = record.offset
            self._check(record.offset < len(log), f"{place}: offset {record.offset} does not exist")
            if record.value is not None:  # else a marker, or a batch that compaction has emptied
                self._check(record == log[record.offset], f"{place}: offset {record.offset} has changed")
                there.add(record.offset)
        newest: dict[bytes, int] = {}
        for offset in range(first, end):
            if offset not in there and log[offset].value is not None:
                if not newest:
                    newest = {record.key: record.offset for record in log[:first_dirty] if record.value is not None}
                self._check(
                    newest.get(log[offset].key, -1) > offset, f"{place}: offset {offset} of {first} to {end} is missing"
                )

    def was_looked_up(self, topic: str, number: int, time: int, end: int, found: tuple[int, int, int] | None) -> None:
        """A look-up by time gives a record that is not older, and the first such one where nothing is compacted."""
        self.look_ups += 1
        version = self.topics[topic].tip
        log = self.topics[topic].log.get(number, [])
        if found is not None:
            offset, timestamp, epoch = found
            self._check(offset < end, f"looked up was {time}, found offset {offset} at or above the high watermark")
            record = log[offset]
            self._check(
                (record.timestamp, record.epoch) == (timestamp, epoch), f"offset {offset} was looked up wrongly"
            )
            self._check(timestamp >= time, f"looked up was {time}, found offset {offset} of {timestamp}")
            end = offset
        if not version.partitions[number].first_dirty:
            earlier = [each.offset for each in log[version.partitions[number].start : end] if each.timestamp >= time]
            self._check(not earlier, f"looked up was {time}, found {found}, but {earlier} come before")

    # What must hold in the end.

    def sources_are_in_order(self) -> None:
        """The appends of one source stand in the log in the order in which it offered them."""
        for topic in self.topics.values():
            last: dict[str, int] = {}
            for records in topic.log.values():
                last.clear()
                for record in records:
                    if record.value is not None:
                        source, _, number = record.value.partition(b" ")[0].decode().rpartition("-")
                        self._check(int(number) > last.get(source, -1), f"{record.value[:20]!r} is out of order")
                        last[source] = int(number)

    def nothing_is_left(self) -> None:
        """After the last sweep there is no file but those that the state needs."""
        wanted: set[str] = set()
        for topic in self.topics.values():
            named = self._named(topic)
            wanted |= named
            for key in named:
                if key.endswith(".log"):
                    wanted |= {key.removesuffix(".log") + suffix for suffix in _SUFFIXES}
        left = [key for key in self._disk.keys if key.startswith(("data/", "staging/")) and key not in wanted]
        self._check(not left, f"{len(left)} files are left for ever, the first is {left[:1]}")
        missing = [key for key in wanted if key not in self._disk.files]
        self._check(not missing, f"{len(missing)} files are missing: {missing[:1]}")
