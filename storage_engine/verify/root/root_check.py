"""Checks a root: the state chain of each topic, the files under data/ and the view. The files must match the chain,
and the view must match the files and the chain.

If a file contradicts the chain, the file is wrong. Writers can append to a topic while the topic is checked. So a
check can seem to find a problem while the topic's state changes. In this case, the check is repeated with the newest
state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace

from storage_engine.errors import LogError, UnknownTopicError
from storage_engine.storage import Storage
from storage_engine.topic.append.staged_list import STAGED_LISTS
from storage_engine.topic.chain.documents import folders_for_documents
from storage_engine.topic.chain.state_chain import StateChain
from storage_engine.topic.chain.topic_state import DroppedFile, TopicState
from storage_engine.topic.chain.transaction_files import damaged_records
from storage_engine.topic.ingest_reports import DELETE_REPORT, INGEST_REPORTS, list_reports
from storage_engine.topic.topics import Topics, is_root, may_become_root
from storage_engine.verify.findings import Finding, Kind, of_error, placed, problems
from storage_engine.verify.root.chain_check import check_chain
from storage_engine.verify.root.damaged_documents import damaged_documents
from storage_engine.verify.root.partition_check import SharedFacts, check_partition
from storage_engine.verify.root.view_check import check_beside_folders
from storage_engine.verify.segment_check import CheckedSegment, Options

_REMOVE = "remove the folder, and restore the file from a backup"
_BRING_BACK = "--repair restores what can be proven; otherwise restore the file from a backup"
_LOOKS = 3
"""A check is repeated at most this often while its topic changes."""
_BEING_SETTLED = "the topic is being written to, and the view is being settled"

_Part = tuple[TopicState, int]
_Checked = tuple[list[CheckedSegment], list[Finding]]


@dataclass
class CheckedRoot:
    """The result of checking a root.

    states: the newest state of each checked topic.
    unreadable: the topics whose states cannot be read.
    """

    states: list[TopicState] = field(default_factory=list)
    segments: list[CheckedSegment] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    unreadable: set[str] = field(default_factory=set)


def check_root(topics: Topics, topic: str | None, partition: int | None, options: Options, threads: int) -> CheckedRoot:
    """Check one topic or all topics, and of each topic one partition or all partitions.

    Raises:
        UnknownTopicError: there is no such topic or partition.
    """
    found = CheckedRoot()
    names = [topic] if topic is not None else list(topics.names(with_deleted=True))
    for name in names:
        try:
            state = topics.state(name) if topic is not None else topics.find(name)
        except UnknownTopicError:
            raise
        except LogError as error:
            found.findings.append(placed(of_error(error, Kind.STATE), topics.storage.uri))
            found.unreadable.add(name)
            state = None
        try:
            for finding in check_chain(topics, name):
                found.findings.append(finding)
        except LogError as error:
            found.findings.append(placed(of_error(error, Kind.STATE), topics.storage.uri))
        if state is not None:
            found.states.append(state)
    if topic is None:
        uri = topics.storage.uri
        found.findings += _no_root(topics.storage)
        found.findings += [placed(of_error(error, Kind.STATE), uri) for error in damaged_records(topics.storage)]
        found.findings += _unlisted_reports(topics.storage)
    named = {finding.file for finding in found.findings}
    damaged = [
        placed(of_error(error, Kind.STATE, remedy), topics.storage.uri)
        for error in damaged_documents(topics.storage, topic)
        for remedy in (DELETE_REPORT if error.file.startswith(f"{INGEST_REPORTS}/") else _BRING_BACK,)
    ]
    damaged += [
        placed(of_error(error, Kind.STATE), topics.storage.uri)
        for folder in (("meta", STAGED_LISTS) if topic is None else ())
        for error in folders_for_documents(topics.storage.folders, folder, "a document", _REMOVE, holds_documents=False)
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
            f"topic {topic}" if topic else "topics",
            f"there is no partition {partition}, but --partition is {partition}",
        )
    for segments, findings in _check_partitions(topics, found, parts, options, threads):
        found.segments += segments
        found.findings += findings
    if topic is None and partition is None:
        found.findings += () if found.unreadable else _foreign_files(topics, found.states)
        found.findings += _check_beside_partitions(topics, found.states)
    found.findings = list(dict.fromkeys(found.findings))  # a damaged newest version is found twice
    return found


def _check_partitions(
    topics: Topics, found: CheckedRoot, parts: Sequence[_Part], options: Options, threads: int
) -> Iterable[_Checked]:
    """The findings of each partition. If a topic has changed during the check, a problem in one of its partitions may
    come from that change. Then the newest state replaces the old state in `found`, and the files are compared again,
    with the newest state.
    """

    def check(part: _Part) -> _Checked:
        state, number = part
        try:
            return check_partition(topics, state, number, options, shared)
        except LogError as error:
            return [], [placed(of_error(error, Kind.CORRUPT), topics.storage.uri)]

    checked: dict[tuple[str, int], _Checked] = {}
    due = parts
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(_LOOKS):
            options.progress.expect(size=sum(state.partitions[number].size for state, number in due))
            shared = SharedFacts.of(topics, {id(state): state for state, _ in due}.values())
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


def _changed(topics: Topics, states: Iterable[TopicState], name: str) -> TopicState | None:
    """A topic's newest state, if it is not among the given states."""
    known = {state.id for state in states if state.topic == name}
    with suppress(LogError):  # the check of the chain has reported this
        newest = topics.chain(name).newest_or_none()
        if known and newest is not None and newest.id not in known:
            return newest
    return None


def _while_changing(finding: Finding) -> Finding:
    return replace(finding, is_note=True, meaning=_BEING_SETTLED) if finding.kind is Kind.VIEW else finding


def _check_beside_partitions(topics: Topics, states: Sequence[TopicState]) -> list[Finding]:
    """Check the view's files beside the partitions' folders, with states that did not change until the view was read."""
    findings: list[Finding] = []
    for _ in range(_LOOKS):
        _, unreadable = topics.states()
        findings = list(check_beside_folders(topics, states, unreadable.keys()))
        newest, _ = topics.states()
        if not problems(findings) or {state.id for state in newest} == {state.id for state in states}:
            return findings
        states = newest
    return [_while_changing(finding) for finding in findings]


def _no_root(storage: Storage) -> Iterator[Finding]:
    """Report a path that is not a root. Without this report, a mistyped path would seem to have no problems."""
    if is_root(storage):
        return
    finding = Finding(Kind.STATE, storage.uri, 0, "a root", "no meta/", "check whether --root is right")
    if may_become_root(storage):
        finding = replace(finding, is_note=True, meaning="nothing was ever created here")
    yield finding


def _unlisted_reports(storage: Storage) -> Iterator[Finding]:
    """Report a folder of reports of ingests that cannot be listed."""
    try:
        deque(list_reports(storage), maxlen=0)
    except LogError as error:
        yield placed(of_error(error, Kind.STATE), storage.uri)


def _foreign_files(topics: Topics, states: Iterable[TopicState]) -> Iterator[Finding]:
    """Find folders under data/ that belong to no topic."""
    known = {state.topic_id for state in states}
    waiting = {each.topic_id for name in topics.names(with_deleted=True) for each in _dropped(topics.chain(name))}
    counts: dict[str, int] = {}
    for file in topics.storage.list("data/"):
        topic_id = file.key.split("/")[1]
        if topic_id not in known | waiting:
            counts[topic_id] = counts.get(topic_id, 0) + 1
    for topic_id, count in counts.items():
        yield Finding(
            Kind.LEFT_OVER, f"{topics.storage.uri}/data/{topic_id}", 0, "files of existing topics",
            f"{count} of another topic", "no reader uses these files", is_note=True,
        )  # fmt: skip


def _dropped(chain: StateChain) -> Iterable[DroppedFile]:
    try:
        state = chain.newest_or_none()
    except LogError:
        return ()
    return state.dropped if state is not None else ()
