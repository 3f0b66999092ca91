"""Checks one partition of a root: compares the files under data/ with the newest state, and compares the view's
folder with the files and the state.

Only the committed bytes of a file belong to the log. An append that did not commit can leave bytes after the
committed bytes, and files that no state names. The check reports these bytes and files as notes. An index under data/
can have entries for bytes that were never committed. An index can lose entries for committed bytes, for example in a
power cut. Such a loss is a problem, and a repair solves it. Any number of partitions can be checked in parallel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, replace

from storage_engine.errors import LogError
from storage_engine.log.checkpoint import encode_leader_epochs
from storage_engine.log.filenames import LOG, data_folder
from storage_engine.log.partition_state import PartitionState, Segment
from storage_engine.log.producers.producer_state import Producers
from storage_engine.storage import StoredFile
from storage_engine.topic.chain.topic_state import TopicState
from storage_engine.topic.chain.version_files import version_key
from storage_engine.topic.readers.reader import segment_file
from storage_engine.topic.topics import Topics
from storage_engine.verify.epoch_check import check_leader_epochs
from storage_engine.verify.findings import RESTORE, Finding, Kind, of_error
from storage_engine.verify.index_check import IndexChecks
from storage_engine.verify.index_entries import IndexRules
from storage_engine.verify.root.view_check import (
    check_view_folder,
    is_shown,
    shown_stem,
    wrong_shown_indexes,
)
from storage_engine.verify.segment_check import CheckedSegment, Options, SegmentFiles, check_segment


@dataclass(frozen=True)
class SharedFacts:
    """Facts that all partitions share, read once.

    dropped: names of dropped files that are not deleted yet, by topic id and partition.
    shows_view: whether there is a view.
    """

    dropped: Mapping[tuple[str, int], set[str]]
    shows_view: bool

    @classmethod
    def of(cls, topics: Topics, states: Iterable[TopicState]) -> SharedFacts:
        dropped: dict[tuple[str, int], set[str]] = {}
        for state in states:
            for each in state.dropped:
                dropped.setdefault((each.topic_id, each.partition), set()).add(each.name)
        shows_view = False
        with suppress(LogError):  # check_beside_folders reports problems of log/ itself
            shows_view = is_shown(topics.storage)
        return cls(dropped, shows_view)


def check_partition(
    topics: Topics, state: TopicState, number: int, options: Options, shared: SharedFacts
) -> tuple[list[CheckedSegment], list[Finding]]:
    storage = topics.storage
    folder = data_folder(state.topic_id, number)
    part = state.partitions[number]
    findings: list[Finding] = []
    segments: list[CheckedSegment] = []
    stored = {file.key.removeprefix(folder): file for file in storage.list(folder)}
    producers = Producers()
    exact, end = True, 0
    """exact: whether the segments so far have each batch that was appended. end: of the segment before."""
    for segment in part.segments:
        exact, end = exact and segment.base_offset == end, segment.end_offset
        file = stored.get(segment.name + LOG)
        place = f"{storage.uri}/{folder}{segment.name}"
        if file is None:
            findings.append(
                Finding(Kind.CORRUPT, place + LOG, 0, f"{segment.size} committed bytes", "no file", RESTORE)
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
        # A compaction drops the entries of aborted transactions below the log start, as Kafka's does.
        checked.aborted = tuple(
            each for each in checked.aborted if each.last_offset >= part.log_start_offset or each in segment.aborted
        )
        segments.append(checked)
        findings += checked.findings
        exact = exact and not checked.has_gaps and not checked.damages
        findings += _against_state(checked, segment, place, exact=exact)
    key = f"{storage.uri}/{version_key(state.topic, state.version)}"
    exact = exact and end == part.high_watermark
    if exact and not _are_of(part, producers):
        findings.append(
            Finding(
                Kind.STATE, key, 0, f"the same producers as in the batches of partition {number}",
                f"{len(part.producers)} different entries", RESTORE,
            )
        )  # fmt: skip
    findings += _wrong_epochs(state, number, segments, key)
    waiting = shared.dropped.get((state.topic_id, number), set())
    findings += _beyond(state, number, stored, waiting, f"{storage.uri}/{folder}")
    if shared.shows_view:
        findings += check_view_folder(topics, state, number, segments, exact=exact)
    return segments, findings


def _are_of(part: PartitionState, producers: Producers) -> bool:
    """Whether the state has these producers, except those that have expired."""
    recorded = {entry.producer_id: entry for entry in part.producers}
    known = {entry.producer_id: entry for entry in producers.entries()}
    return all(known.get(producer_id) == entry for producer_id, entry in recorded.items()) and all(
        producer_id in recorded for producer_id, entry in known.items() if entry.txn_first_offset >= 0
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
    absent = Finding(Kind.INDEX, "", 0, "a file", "none", "readers scan the .log instead; --repair derives this file")
    rules = IndexRules(closed=False, ahead=True)
    indexes = IndexChecks.read(storage, stem, files.shown, segment.base_offset, rules, absent)
    shown = None
    if storage.view is not None:
        in_view = shown_stem(state, number, segment)
        rules = IndexRules(closed=True)
        shown = IndexChecks.read(storage, in_view, f"{storage.uri}/{in_view}", segment.base_offset, rules)
    checked = check_segment(storage, files, indexes, producers, options, shown)
    if shown is not None:
        checked.findings += wrong_shown_indexes(checked, indexes, shown)
    place = files.shown + LOG
    if file.size < segment.size:
        found = f"a file that ends {segment.size - file.size} bytes earlier"
        checked.findings.append(
            Finding(Kind.CORRUPT, place, file.size, f"{segment.size} committed bytes", found, RESTORE)
        )
    for damage in checked.damages:
        expected, _, found = damage.problem.removeprefix("expected ").partition(", found ")
        meaning = f"some of these {damage.size} committed bytes have changed: {RESTORE}"
        checked.findings.append(Finding(Kind.CORRUPT, place, damage.position, expected, found, meaning))
    if file.size > segment.size:
        checked.findings.append(
            Finding(
                Kind.LEFT_OVER, place, segment.size, "the end of the committed bytes",
                f"{file.size - segment.size} bytes after it",
                "an append is running, or did not commit; no reader uses these bytes", is_note=True,
            )
        )  # fmt: skip
    return checked


def _against_state(checked: CheckedSegment, segment: Segment, place: str, *, exact: bool) -> Iterator[Finding]:
    """Find contradictions between the batches of a segment and the state."""
    if checked.damages or checked.files.size < segment.size:
        return
    largest = segment.largest_timestamp, segment.largest_timestamp_offset
    smallest, lateness = segment.smallest_timestamp, segment.largest_lateness_ms
    too_small = smallest is not None and checked.smallest_timestamp < smallest
    too_late = lateness is not None and checked.largest_lateness_ms > lateness
    for what, expected, found in (
        ("offsets up to the end offset", segment.end_offset, checked.end_offset if checked.batches else None),
        (
            "the largest timestamp and its offset",
            largest,
            (checked.largest_timestamp, checked.largest_timestamp_offset),
        ),
        ("the smallest timestamp", smallest, checked.smallest_timestamp if too_small else None),
        ("the largest lateness of a timestamp", lateness, checked.largest_lateness_ms if too_late else None),
        ("aborted transactions", segment.aborted, checked.aborted if exact else segment.aborted),
    ):
        if found is not None and found != expected:
            yield Finding(
                Kind.STATE, place + LOG, 0, f"{what} in the state: {expected}", str(found),
                f"the file was replaced by another file, or the state was changed: {RESTORE}",
            )  # fmt: skip


def _wrong_epochs(state: TopicState, number: int, segments: Iterable[CheckedSegment], place: str) -> Iterator[Finding]:
    part = state.partitions[number]
    runs = [run for segment in segments for run in segment.epochs]
    wrong, _ = check_leader_epochs(
        encode_leader_epochs(part.leader_epochs), place, runs, part.log_start_offset, part.high_watermark, closed=True
    )
    for finding in wrong:
        if finding.kind is Kind.CHECKPOINT:
            finding = replace(finding, kind=Kind.STATE, position=0, meaning=RESTORE)  # noqa: PLW2901
        yield finding


def _beyond(
    state: TopicState, number: int, stored: Mapping[str, StoredFile], waiting: Set[str], place: str
) -> Iterator[Finding]:
    """Find files that belong to no segment of the newest state, and to no dropped segment."""
    named = {segment.name for segment in state.partitions[number].segments} | waiting
    unnamed = [file for name, file in stored.items() if name.rpartition(".")[0] not in named]
    if unnamed:
        yield Finding(
            Kind.LEFT_OVER, place, 0, f"files that version {state.version} names",
            f"{len(unnamed)} other files, {sum(file.size for file in unnamed)} bytes",
            "an append is running, or did not commit; no reader uses these files", is_note=True,
        )  # fmt: skip
