"""Checks a .txnindex and a .snapshot against a replay of the batches.

A replay does not show the whole state of the producers. Compaction deletes batches and markers. A broker expires
producers by its clock, and no file records the expiration. Only a snapshot contains the state before the first batch.
For these reasons, an additional entry is not an error. A missing entry, or an entry that contradicts an existing
batch, is an error.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from storage_engine.errors import CorruptionError
from storage_engine.log.indexes.transaction_index import (
    ABORTED_ENTRY_BYTES,
    AbortedTransaction,
    decode_transaction_index,
)
from storage_engine.log.producers.producer_snapshot import ENTRY_BYTES, HEADER_BYTES, ProducerEntry, decode_snapshot
from storage_engine.verify.findings import Finding, Kind, of_error

_LEAK = "read_committed readers would get aborted records, or miss committed records; --repair derives this file"
_PRODUCERS = (
    "a broker that starts with this file would accept or refuse the wrong batches of producers; --repair derives the"
    " file"
)


def check_transaction_index(
    data: bytes | None,
    file: str,
    derived: Sequence[AbortedTransaction],
    recordless: Collection[AbortedTransaction],
    base_offset: int,
    end_offset: int,
    *,
    exact: bool,
) -> list[Finding]:
    """Check a segment's .txnindex.

    Args:
        data: the file, None if it is missing.
        derived: the aborted transactions that the replay found.
        recordless: the aborted transactions without a remaining record; the cleaner deletes their entries.
        exact: whether the replay shows everything.
    """
    try:
        indexed = decode_transaction_index(data or b"", file)
    except CorruptionError as error:
        return [of_error(error, Kind.TRANSACTION_INDEX, f"a broker refuses to start with this file. {_LEAK}")]
    by_marker = {(each.producer_id, each.last_offset): each for each in derived}
    known = {(each.producer_id, each.last_offset) for each in indexed}
    findings = []
    for number, entry in enumerate(indexed):
        expected = by_marker.get((entry.producer_id, entry.last_offset))
        if not base_offset <= entry.last_offset < end_offset:
            wanted = f"a marker at an offset from {base_offset} to {end_offset - 1}"
        elif exact and expected != entry:
            wanted = _shown(expected) if expected else "no entry: no transaction of this producer was aborted there"
        else:
            continue
        position = number * ABORTED_ENTRY_BYTES
        findings.append(Finding(Kind.TRANSACTION_INDEX, file, position, wanted, _shown(entry), _LEAK))
    if findings:
        return findings
    needed = [each for each in derived if each not in recordless]
    if data is None and needed:
        wanted = f"a file with {len(needed)} entries, the first {_shown(needed[0])}"
        return [Finding(Kind.TRANSACTION_INDEX, file, 0, wanted, "none", _LEAK)]
    for entry in needed:
        if (entry.producer_id, entry.last_offset) not in known:
            number = sum(each.last_offset < entry.last_offset for each in indexed)
            position = number * ABORTED_ENTRY_BYTES
            findings.append(Finding(Kind.TRANSACTION_INDEX, file, position, _shown(entry), "none", _LEAK))
    return findings


def transactions_to_index(
    data: bytes | None, derived: Sequence[AbortedTransaction], base_offset: int, end_offset: int, *, exact: bool
) -> tuple[AbortedTransaction, ...]:
    """The correct entries of a .txnindex: the entries of the replay. If the replay does not show everything, the file's
    entries that no batch contradicts are also correct.
    """
    entries = {(each.producer_id, each.last_offset): each for each in derived}
    if not exact:
        data = data or b""
        for position in range(0, len(data) - ABORTED_ENTRY_BYTES + 1, ABORTED_ENTRY_BYTES):
            try:
                (entry,) = decode_transaction_index(data[position : position + ABORTED_ENTRY_BYTES], "")
            except CorruptionError:
                continue
            if base_offset <= entry.last_offset < end_offset:
                entries.setdefault((entry.producer_id, entry.last_offset), entry)
    return tuple(sorted(entries.values(), key=lambda each: each.last_offset))


def _shown(entry: AbortedTransaction) -> str:
    return (
        f"an aborted transaction of producer {entry.producer_id} from {entry.first_offset} to {entry.last_offset},"
        f" stable up to {entry.last_stable_offset}"
    )


def check_snapshot(
    data: bytes, file: str, offset: int, derived: Sequence[ProducerEntry], *, exact: bool
) -> tuple[list[Finding], tuple[ProducerEntry, ...] | None]:
    """Check a .snapshot. Returns the findings and the entries of the file; None instead of entries if the file is
    malformed.

    Args:
        offset: the offset in the file's name.
        derived: the producers at this offset according to the replay.
        exact: whether the replay shows everything.
    """
    try:
        entries = decode_snapshot(data, file)
    except CorruptionError as error:
        return [of_error(error, Kind.SNAPSHOT, _PRODUCERS)], None
    known = {entry.producer_id: entry for entry in derived}
    findings = []
    for number, entry in enumerate(entries):
        expected = known.get(entry.producer_id)
        if max(entry.last_offset, entry.txn_first_offset) >= offset:
            wanted = f"offsets below {offset}"
        elif exact and (expected is None or not _same(entry, expected)):
            wanted = f"{expected}" if expected else "no such producer: it has no batch before this offset"
        else:
            continue
        position = HEADER_BYTES + number * ENTRY_BYTES
        findings.append(Finding(Kind.SNAPSHOT, file, position, wanted, f"{entry}", _PRODUCERS))
    present = {entry.producer_id for entry in entries}
    open_ones = [entry for entry in derived if exact and entry.txn_first_offset >= 0]
    findings += [
        Finding(Kind.SNAPSHOT, file, len(data), f"{entry}, whose transaction is open", "no such producer", _PRODUCERS)
        for entry in open_ones
        if entry.producer_id not in present
    ]
    return findings, entries


def _same(entry: ProducerEntry, derived: ProducerEntry) -> bool:
    """Whether a broker can have written this entry. If a producer expired and came back, its entry has no coordinator
    epoch.
    """
    return entry in (derived, derived._replace(coordinator_epoch=-1))
