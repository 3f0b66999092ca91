"""A root: the state chain of each topic, the files under data/ against it, and the view against both.

The chain is authority, so what contradicts it is wrong in a file, and what contradicts itself is wrong in the chain.
Of a file only the committed bytes count: what lies behind them, and files that no state names, an append left that did
not commit; they are noted. An index under data/ may tell of bytes that were never committed, or have lost its end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace

from storage_engine.checkpoint import (
    encode_leader_epochs,
)
from storage_engine.errors import ConfigError, CorruptionError, LogError, NotFoundError, UnknownTopicError
from storage_engine.log.derived_indexes import derived_indexes
from storage_engine.log.filenames import INDEX, LOG, TIME_INDEX, data_folder
from storage_engine.log.partition_state import PartitionState, Segment
from storage_engine.log.producer_state import Producers
from storage_engine.storage import Storage, StoredFile, ViewableStorage
from storage_engine.storage.posix import PosixStorage
from storage_engine.topic.decisions import damaged_records
from storage_engine.topic.documents import folders_for_documents
from storage_engine.topic.groups import Consumer, consumer_key, read_consumers
from storage_engine.topic.history_file import is_rolled_up, read_history_file
from storage_engine.topic.reader import segment_file
from storage_engine.topic.staged_list import STAGED_LISTS
from storage_engine.topic.state import RESTORED, DroppedFile, TopicState
from storage_engine.topic.state_chain import StateChain, version_key
from storage_engine.topic.state_checks import oddities
from storage_engine.topic.topics import Topics, is_root
from storage_engine.topic.view import lost_chains, settle
from storage_engine.topic.view_record import claim_view
from storage_engine.topic.witnesses import shown_offsets
from storage_engine.verify.damaged_documents import damaged_documents
from storage_engine.verify.findings import Finding, Kind, of_error, problems
from storage_engine.verify.index_files import IndexChecks, IndexRules
from storage_engine.verify.leader_epochs import check_leader_epochs
from storage_engine.verify.segment import CheckedSegment, Options, SegmentFiles, check_segment
from storage_engine.verify.view import (
    check_beside_folders,
    check_view_folder,
    has_wrong_bytes,
    is_shown,
    shown_stem,
    wrong_shown_indexes,
)

_HISTORY = re.compile(r"meta/[^/]+/history/([0-9]{20})\.jsonl")
_RESTORE = "restore the file from a backup"
_REMOVE = "remove the folder, and restore the file from a backup"
_BRING_BACK = "--repair brings back what can be proven; else restore the file from a backup"
_LOOKS = 3
"""How often at most what changes under a check is looked at."""
_BEING_SETTLED = "the topic is being written to, and the view is being settled"


_Part = tuple[TopicState, int]
_Checked = tuple[list[CheckedSegment], list[Finding]]


@dataclass
class CheckedRoot:
    """What a root holds, the newest state of each topic that was checked, and the topics whose states cannot be read."""

    states: list[TopicState] = field(default_factory=list)
    segments: list[CheckedSegment] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    unreadable: set[str] = field(default_factory=set)


def check_root(topics: Topics, topic: str | None, partition: int | None, options: Options, threads: int) -> CheckedRoot:
    """Check topics, all or one, and of these all partitions or one.

    Raises:
        UnknownTopicError: no such topic, or partition of it.
    """
    found = CheckedRoot()
    names = [topic] if topic is not None else list(topics.names(with_deleted=True))
    for name in names:
        try:
            state = topics.state(name) if topic is not None else topics.find(name)
        except UnknownTopicError:
            raise
        except LogError as error:
            found.findings.append(_placed(of_error(error, Kind.STATE), topics.storage.uri))
            found.unreadable.add(name)
            state = None
        try:
            for finding in _check_chain(topics, name):
                found.findings.append(finding)
        except LogError as error:
            found.findings.append(_placed(of_error(error, Kind.STATE), topics.storage.uri))
        if state is not None:
            found.states.append(state)
    if topic is None:
        uri = topics.storage.uri
        found.findings += _no_root(topics.storage)
        found.findings += [_placed(of_error(error, Kind.STATE), uri) for error in damaged_records(topics.storage)]
        lost = lost_chains(topics, shown_offsets(topics.storage))
        found.findings += [_placed(of_error(error, Kind.STATE), uri) for error in lost]
    named = {finding.file for finding in found.findings}
    damaged = [
        _placed(of_error(error, Kind.STATE, _BRING_BACK), topics.storage.uri)
        for error in damaged_documents(topics.storage, topic)
    ]
    damaged += [
        _placed(of_error(error, Kind.STATE), topics.storage.uri)
        for folder in (("meta", STAGED_LISTS) if topic is None else ())
        for error in folders_for_documents(topics.storage, folder, "a document", _REMOVE, holds_documents=False)
    ]
    found.findings += [finding for finding in damaged if finding.file not in named]
    parts = [
        (state, number)
        for state in found.states
        for number in range(len(state.partitions))
        if partition in (None, number)
    ]
    if partition is not None and not parts:
        raise UnknownTopicError(
            f"topic {topic}" if topic else "topics", f"no partition {partition}, found --partition {partition}"
        )
    for segments, findings in _check_partitions(topics, found, parts, options, threads):
        found.segments += segments
        found.findings += findings
    if topic is None and partition is None:
        found.findings += () if found.unreadable else _strangers(topics, found.states)
        found.findings += _check_beside_partitions(topics, found.states)
    found.findings = list(dict.fromkeys(found.findings))  # a damaged newest version was met twice
    return found


def _check_partitions(
    topics: Topics, found: CheckedRoot, parts: Sequence[_Part], options: Options, threads: int
) -> Iterable[_Checked]:
    """What is found in each partition. A problem in one whose topic has changed meanwhile may be that change: there the
    newest state, which then stands in `found`, is held against the files once more."""

    def check(part: _Part) -> _Checked:
        state, number = part
        try:
            return _check_partition(topics, state, number, options, beside)
        except LogError as error:
            return [], [_placed(of_error(error, Kind.CORRUPT), topics.storage.uri)]

    checked: dict[tuple[str, int], _Checked] = {}
    due = parts
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(_LOOKS):
            options.progress.expect(size=sum(state.partitions[number].size for state, number in due))
            beside = _Beside.of(topics, {id(state): state for state, _ in due}.values())
            checked |= zip(((state.topic, number) for state, number in due), pool.map(check, due), strict=True)
            due = []
            wrong = {where: None for where, (_, findings) in checked.items() if problems(findings)}
            for name in dict.fromkeys(topic for topic, _ in wrong):
                newest = _changed(topics, found.states, name)
                if newest is None:
                    continue
                left = () if newest.deleted else (newest,)
                found.states = [each for state in found.states for each in (left if state.topic == name else (state,))]
                due += [(state, number) for state in left for number in range(len(state.partitions))]
            due = [(state, number) for state, number in due if (state.topic, number) in wrong]
            if not due:
                break
    for state, number in due:
        segments, findings = checked[state.topic, number]
        checked[state.topic, number] = segments, [_while_changing(finding) for finding in findings]
    there = {(state.topic, number) for state in found.states for number in range(len(state.partitions))}
    return [each for where, each in checked.items() if where in there]


@dataclass(frozen=True)
class _Beside:
    """What is looked at once and not again for each partition.

    dropped: names of files that wait for their deletion, by topic id and partition. shows_view: whether there is a view.
    """

    dropped: Mapping[tuple[str, int], set[str]]
    shows_view: bool

    @classmethod
    def of(cls, topics: Topics, states: Iterable[TopicState]) -> _Beside:
        dropped: dict[tuple[str, int], set[str]] = {}
        for state in states:
            for each in state.dropped:
                dropped.setdefault((each.topic_id, each.partition), set()).add(each.name)
        shows_view = False
        with suppress(LogError):  # check_beside_folders says what is wrong with log/ itself
            shows_view = is_shown(topics.storage)
        return cls(dropped, shows_view)


def _changed(topics: Topics, states: Iterable[TopicState], name: str) -> TopicState | None:
    """A topic's newest state, where it has another one than among these."""
    known = {state.id for state in states if state.topic == name}
    with suppress(LogError):  # its chain was checked, and what is wrong with it named
        newest = topics.chain(name).newest_or_none()
        if known and newest is not None and newest.id not in known:
            return newest
    return None


def _while_changing(finding: Finding) -> Finding:
    return replace(finding, is_note=True, meaning=_BEING_SETTLED) if finding.kind is Kind.VIEW else finding


def _check_beside_partitions(topics: Topics, states: Sequence[TopicState]) -> list[Finding]:
    """What is wrong in the view beside its partitions' folders, with states that have not changed until it was read."""
    findings: list[Finding] = []
    for _ in range(_LOOKS):
        _, unreadable = topics.states()
        lost = {error.file.removeprefix("meta/") for error in lost_chains(topics, shown_offsets(topics.storage))}
        findings = list(check_beside_folders(topics, states, unreadable.keys() | lost))
        newest, _ = topics.states()
        if not problems(findings) or {state.id for state in newest} == {state.id for state in states}:
            return findings
        states = newest
    return [_while_changing(finding) for finding in findings]


def _no_root(storage: Storage) -> Iterator[Finding]:
    """That this is no root: else all would be well with a path that was mistyped."""
    if is_root(storage):
        return
    finding = Finding(Kind.STATE, storage.uri, 0, "a root", "no meta/", "see whether --root is right")
    if isinstance(storage, PosixStorage) and storage.root.is_dir() and not storage.entries(""):
        finding = replace(finding, is_note=True, meaning="nothing was ever created here")
    yield finding


def repair_root(topics: Topics, found: CheckedRoot) -> None:
    """Derive indexes under data/ again, and make the view exact.

    Raises:
        LogError: a .log is damaged itself, so that the view cannot show it; log/ is not the view; or the storage refused.
    """
    storage = topics.storage
    if not is_root(storage):
        return
    wrong = {finding.file for finding in problems(found.findings) if finding.kind in (Kind.INDEX, Kind.UNREADABLE)}
    outdated = []
    """Files of the view that were made from what is derived again, maybe by another index.interval.bytes."""
    for state in found.states:
        for number, part in enumerate(state.partitions):
            for segment in part.segments:
                file = segment_file(state.topic_id, number, segment)
                if not wrong & {f"{storage.uri}/{file.stem}{suffix}" for suffix in (INDEX, TIME_INDEX)}:
                    continue
                with suppress(CorruptionError):  # the .log's own damage was named
                    closed = derived_indexes(storage, file, topics.config(state).index_interval_bytes)
                    for suffix, data in (
                        (INDEX, closed.offset_index_bytes()),
                        (TIME_INDEX, closed.time_index_bytes()),
                    ):
                        _remove_folder(storage, file.stem + suffix)
                        storage.replace(file.stem + suffix, data)
                    outdated += [shown_stem(state, number, segment) + suffix for suffix in (INDEX, TIME_INDEX)]
    if isinstance(storage, ViewableStorage):
        claim_view(storage)
        # Settling knows a file again by its time of change, which bytes that rot keep.
        for finding in problems(found.findings):
            if has_wrong_bytes(finding):
                outdated.append(finding.file.removeprefix(f"{storage.uri}/"))
        for key in sorted(set(outdated)):  # what stands in the place of a folder before what should be in it
            _remove_folder(storage, key)
            storage.delete(key)
        with suppress(CorruptionError, NotFoundError):  # as above: the rest was settled
            settle(topics)


def _remove_folder(storage: Storage, key: str) -> None:
    """Remove what stands where a file belongs, if it is a folder."""
    folder, _, name = key.rpartition("/")
    if isinstance(storage, ViewableStorage) and any(
        entry.name == name and entry.is_folder for entry in storage.entries(folder)
    ):
        storage.remove_folder(key)


# The state chain.


def _check_chain(topics: Topics, name: str) -> Iterator[Finding]:
    storage = topics.storage
    chain = topics.chain(name)
    before: TopicState | None = None
    last = -1
    for version in list(chain.versions()):
        place = f"{storage.uri}/{version_key(name, version)}"
        # Versions that were pruned are told of in history. What a process that slept has put among them does not count.
        if version != last + 1 and last != 0 and not is_rolled_up(storage, name, version - 1):
            yield Finding(
                Kind.STATE, place, 0, f"version {last + 1} before it", "none",
                "the chain is interrupted, and the topic cannot be opened: restore the versions that are missing",
            )  # fmt: skip
            before = None
        last = version
        try:
            state = chain.at(version)
        except LogError as error:
            yield _placed(of_error(error, Kind.STATE), storage.uri)
            before = None
            continue
        if state is None:
            continue
        if before is not None and before.version == version - 1:
            yield from _wrong_step(before, state, place)
        yield from _odd_state(state, topics, place)
        before = state
    for version in _rolled_up(storage, name):
        try:
            read_history_file(storage, name, version)
        except LogError as error:
            yield _placed(of_error(error, Kind.STATE), storage.uri)
    if before is not None:
        consumers = read_consumers(storage, before)
        for damaged in consumers.damaged:
            yield _placed(of_error(damaged, Kind.STATE), storage.uri)
        yield from _wrong_positions(storage, chain, consumers.known)


def _wrong_positions(storage: Storage, chain: StateChain, consumers: Sequence[Consumer]) -> Iterator[Finding]:
    """Positions that no reader of this log can have come to. They are read before the state: whoever reads on meanwhile
    registers what the newest state has."""
    newest = chain.newest_or_none()
    if newest is None or newest.deleted:
        return
    for consumer in consumers:
        if consumer.topic_id != newest.topic_id:
            continue
        place = f"{storage.uri}/{consumer_key(newest.topic, consumer.name)}"
        for number, position in sorted(consumer.positions.items()):
            if number >= len(newest.partitions):
                expected = f"positions in partitions 0 to {len(newest.partitions) - 1}"
                found = f"one in partition {number}"
            elif position > newest.partitions[number].high_watermark:
                expected = f"a position in partition {number} up to the log end offset"
                expected += f" {newest.partitions[number].high_watermark}"
                found = f"{position}, of {consumer.name}"
            else:
                continue
            yield Finding(
                Kind.STATE, place, 0, expected, found,
                "the topic was put back to an older state, or this file is another's: the consumer's next run writes it anew,"
                " or says what is wrong; `lakelog consumers forget` removes it",
            )  # fmt: skip


def _rolled_up(storage: Storage, name: str) -> Iterator[int]:
    """The first version of each file of history."""
    for file in storage.list(f"meta/{name}/history/"):
        if found := _HISTORY.fullmatch(file.key):
            yield int(found[1])


def _placed(finding: Finding, uri: str) -> Finding:
    """With the file's whole path, where an error has its key."""
    return finding if finding.file.startswith(uri) else replace(finding, file=f"{uri}/{finding.file}")


def _wrong_step(before: TopicState, state: TopicState, place: str) -> Iterator[Finding]:
    if state.parent != before.id:
        meaning = f"one of the two versions was put from a copy or restored alone: {_RESTORE}"
        yield Finding(Kind.STATE, place, 0, f"parent {before.id}", state.parent, meaning)
    if state.topic_id != before.topic_id or state.deleted or before.deleted:
        return
    # A writer that had read a version before repair made it anew may have put this one, in its own epoch.
    epoch = 0 if before.change.startswith(RESTORED) else before.writer.epoch
    for what, expected, found in (
        ("partitions", len(before.partitions), len(state.partitions)),
        ("writer epoch", epoch, state.writer.epoch),
    ):
        if found < expected:
            yield Finding(Kind.STATE, place, 0, f"{what} from {expected} on", str(found), _RESTORE)
    for number, (old, new) in enumerate(zip(before.partitions, state.partitions, strict=False)):
        for what, expected, found in (
            ("high watermark", old.high_watermark, new.high_watermark),
            ("log start offset", old.log_start_offset, new.log_start_offset),
        ):
            if found < expected:
                wanted = f"a {what} of partition {number} from {expected} on"
                yield Finding(Kind.STATE, place, 0, wanted, str(found), _RESTORE)


def _odd_state(state: TopicState, topics: Topics, place: str) -> Iterator[Finding]:
    """What no version holds that Lakelog wrote."""
    for expected, found in oddities(state):
        yield Finding(Kind.STATE, place, 0, expected, found, _RESTORE)
    try:
        topics.config(state)
    except ConfigError as error:
        yield Finding(Kind.STATE, place, 0, "settings that are possible", error.problem, error.remedy)


# The files under data/.


def _check_partition(
    topics: Topics, state: TopicState, number: int, options: Options, beside: _Beside
) -> tuple[list[CheckedSegment], list[Finding]]:
    storage = topics.storage
    folder = data_folder(state.topic_id, number)
    part = state.partitions[number]
    findings: list[Finding] = []
    segments: list[CheckedSegment] = []
    stored = {file.key.removeprefix(folder): file for file in storage.list(folder)}
    producers = Producers()
    exact = not part.segments or part.segments[0].base_offset == 0
    for segment in part.segments:
        file = stored.get(segment.name + LOG)
        place = f"{storage.uri}/{folder}{segment.name}"
        if file is None:
            findings.append(
                Finding(Kind.CORRUPT, place + LOG, 0, f"{segment.size} committed bytes", "no file", _RESTORE)
            )
            options.progress.advance(size=segment.size)
            exact = False
            continue
        try:
            checked = _check_segment(topics, state, number, segment, file, producers, options)
        except LogError as error:
            findings.append(of_error(error, Kind.CORRUPT))
            exact = False
            continue
        segments.append(checked)
        findings += checked.findings
        exact = exact and not checked.has_gaps and not checked.damages
        findings += _against_state(checked, segment, place, exact=exact)
    key = f"{storage.uri}/{version_key(state.topic, state.version)}"
    if exact and not _are_of(part, producers):
        findings.append(
            Finding(
                Kind.STATE, key, 0, f"the producers of partition {number} that its batches tell of",
                f"{len(part.producers)} entries that differ", _RESTORE,
            )
        )  # fmt: skip
    findings += _wrong_epochs(state, number, segments, key)
    waiting = beside.dropped.get((state.topic_id, number), set())
    findings += _beyond(state, number, stored, waiting, f"{storage.uri}/{folder}")
    if beside.shows_view:
        findings += check_view_folder(topics, state, number, segments, exact=exact)
    return segments, findings


def _are_of(part: PartitionState, producers: Producers) -> bool:
    """Whether the state knows these producers, but for some that were forgotten because they were silent for long."""
    told = {entry.producer_id: entry for entry in part.producers}
    known = {entry.producer_id: entry for entry in producers.entries()}
    return all(known.get(producer_id) == entry for producer_id, entry in told.items()) and all(
        producer_id in told for producer_id, entry in known.items() if entry.txn_first_offset >= 0
    )


def _check_segment(
    topics: Topics,
    state: TopicState,
    number: int,
    segment: Segment,
    file: StoredFile,
    producers: Producers,
    options: Options,
) -> CheckedSegment:
    storage = topics.storage
    stem = segment_file(state.topic_id, number, segment).stem
    size = min(segment.size, file.size)
    files = SegmentFiles(stem, f"{storage.uri}/{stem}", segment.base_offset, size, segment.end_offset)
    absent = Finding(Kind.INDEX, "", 0, "a file", "none", "readers scan the .log instead; --repair derives it")
    rules = IndexRules(closed=False, ahead=True)
    indexes = IndexChecks.read(storage, stem, files.shown, segment.base_offset, rules, absent)
    shown = None
    if isinstance(storage, ViewableStorage):
        in_view = shown_stem(state, number, segment)
        rules = IndexRules(closed=True)
        shown = IndexChecks.read(storage, in_view, f"{storage.uri}/{in_view}", segment.base_offset, rules)
    checked = check_segment(storage, files, indexes, producers, options, shown)
    if shown is not None:
        checked.findings += wrong_shown_indexes(checked, indexes, shown)
    place = files.shown + LOG
    if file.size < segment.size:
        found = f"a file that ends there, {segment.size - file.size} bytes before"
        checked.findings.append(
            Finding(Kind.CORRUPT, place, file.size, f"{segment.size} committed bytes", found, _RESTORE)
        )
    for damage in checked.damages:
        expected, _, found = damage.problem.removeprefix("expected ").partition(", found ")
        meaning = f"{damage.size} committed bytes have changed: {_RESTORE}"
        checked.findings.append(Finding(Kind.CORRUPT, place, damage.position, expected, found, meaning))
    if file.size > segment.size:
        checked.findings.append(
            Finding(
                Kind.LEFT_OVER, place, segment.size, "the end of the committed bytes",
                f"{file.size - segment.size} bytes behind it",
                "an append is under way, or did not commit; nobody reads them", is_note=True,
            )
        )  # fmt: skip
    return checked


def _against_state(checked: CheckedSegment, segment: Segment, place: str, *, exact: bool) -> Iterator[Finding]:
    """Where the batches contradict what the state says about the segment."""
    if checked.damages or checked.files.size < segment.size:
        return
    largest = segment.largest_timestamp, segment.largest_timestamp_offset
    for what, expected, found in (
        ("offsets up to the end offset", segment.end_offset, checked.end_offset if checked.batches else None),
        (
            "the largest timestamp and its offset",
            largest,
            (checked.largest_timestamp, checked.largest_timestamp_offset),
        ),
        ("aborted transactions", segment.aborted, checked.aborted if exact else segment.aborted),
    ):
        if found is not None and found != expected:
            yield Finding(
                Kind.STATE, place + LOG, 0, f"{what} as the state has them, {expected}", str(found),
                f"the file is another one than was committed, or the state was changed: {_RESTORE}",
            )  # fmt: skip


def _wrong_epochs(state: TopicState, number: int, segments: Iterable[CheckedSegment], place: str) -> Iterator[Finding]:
    part = state.partitions[number]
    runs = [run for segment in segments for run in segment.epochs]
    wrong, _ = check_leader_epochs(
        encode_leader_epochs(part.leader_epochs), place, runs, part.log_start_offset, part.high_watermark, closed=True
    )
    for finding in wrong:
        if finding.kind is Kind.CHECKPOINT:
            finding = replace(finding, kind=Kind.STATE, position=0, meaning=_RESTORE)  # noqa: PLW2901
        yield finding


def _beyond(
    state: TopicState, number: int, stored: Mapping[str, StoredFile], waiting: Set[str], place: str
) -> Iterator[Finding]:
    """Files that no segment of the newest state has, and that do not wait for their deletion."""
    named = {segment.name for segment in state.partitions[number].segments} | waiting
    unnamed = [file for name, file in stored.items() if name.rpartition(".")[0] not in named]
    if unnamed:
        yield Finding(
            Kind.LEFT_OVER, place, 0, f"files that version {state.version} names",
            f"{len(unnamed)} others, {sum(file.size for file in unnamed)} bytes",
            "an append is under way, or did not commit; nobody reads them", is_note=True,
        )  # fmt: skip


def _strangers(topics: Topics, states: Iterable[TopicState]) -> Iterator[Finding]:
    """Folders under data/ of topics that are not there."""
    known = {state.topic_id for state in states}
    waiting = {each.topic_id for name in topics.names(with_deleted=True) for each in _dropped(topics.chain(name))}
    counts: dict[str, int] = {}
    for file in topics.storage.list("data/"):
        topic_id = file.key.split("/")[1]
        if topic_id not in known | waiting:
            counts[topic_id] = counts.get(topic_id, 0) + 1
    for topic_id, count in counts.items():
        yield Finding(
            Kind.LEFT_OVER, f"{topics.storage.uri}/data/{topic_id}", 0, "files of topics that are there",
            f"{count} of another", "nobody reads them", is_note=True,
        )  # fmt: skip


def _dropped(chain: StateChain) -> Iterable[DroppedFile]:
    try:
        state = chain.newest_or_none()
    except LogError:
        return ()
    return state.dropped if state is not None else ()
