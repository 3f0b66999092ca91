"""Compares the leader epochs of the batches with one another and with the file leader-epoch-checkpoint. No CRC covers a
leader epoch.

In a log, epochs never decrease, and the checkpoint contains the start offset of each epoch. If a single batch
contradicts both its neighbours and the checkpoint, the batch is damaged. If the batches agree with one another, the
checkpoint is wrong.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest

from storage_engine.errors import CorruptionError
from storage_engine.log.checkpoint import decode_leader_epochs
from storage_engine.log.leader_epochs import Epochs, cut_start
from storage_engine.log.partition_state import LeaderEpoch
from storage_engine.verify.findings import Finding, Kind, of_error
from storage_engine.verify.segment_check import EpochRun

_CHECKPOINT_REMEDY = (
    "with this file, a broker would truncate followers at wrong offsets; --repair derives the file from the batches"
)
_BATCH_MEANING = (
    "no CRC covers this field; readers get a wrong epoch, and a broker would truncate logs at wrong offsets"
)


def check_leader_epochs(
    data: bytes | None, file: str, runs: Sequence[EpochRun], log_start_offset: int, end_offset: int, *, closed: bool
) -> tuple[list[Finding], Epochs]:
    """Check the epochs of a partition. Returns the findings, and the checkpoint entries that follow from the batches.

    Args:
        data: the checkpoint, None if it is missing.
        runs: the runs of the whole log, in order.
        closed: whether the log was closed cleanly.
    """
    findings: list[Finding] = []
    entries: list[tuple[int, int]] | None = None
    if data is not None:
        try:
            entries = decode_leader_epochs(data, file)
        except CorruptionError as error:
            findings.append(of_error(error, Kind.CHECKPOINT, _CHECKPOINT_REMEDY))
    if entries is not None:
        findings += _disorder(entries, data or b"", file, end_offset)
    trusted = None if entries is None or findings else entries
    # Batches below the log start do not count. The batch that contains the log start may begin below it.
    runs = [
        run._replace(
            start_offset=max(run.start_offset, log_start_offset), last_offset=max(run.last_offset, log_start_offset)
        )
        for run, following in zip_longest(runs, runs[1:])
        if run.epoch >= 0 and (following is None or following.start_offset > log_start_offset)
    ]
    rising, odd = _rising(runs, trusted)
    findings += [_changed(run, rising) for run in odd]
    derived = cut_start([LeaderEpoch(run.epoch, run.start_offset) for run in rising], log_start_offset)
    if derived:
        derived = (derived[0]._replace(start_offset=log_start_offset), *derived[1:])
    if data is None and rising:
        meaning = _CHECKPOINT_REMEDY if closed else "a broker derives this file at its next start"
        findings.append(Finding(Kind.CHECKPOINT, file, 0, "a file", "none", meaning, is_note=not closed))
    if trusted is not None:
        findings += _disagreement(rising, trusted, data or b"", file)
    return findings, derived


def _disorder(entries: Sequence[tuple[int, int]], data: bytes, file: str, end_offset: int) -> Iterator[Finding]:
    before = (-1, -1)
    for number, (epoch, start) in enumerate(entries):
        position = line_position(data, number + 2)
        if epoch <= before[0] or start <= before[1]:
            yield Finding(
                Kind.CHECKPOINT, file, position, f"an epoch above {before[0]} and an offset above {before[1]}",
                f"{epoch} and {start}", _CHECKPOINT_REMEDY,
            )  # fmt: skip
        elif start > end_offset:
            yield Finding(
                Kind.CHECKPOINT, file, position, f"an offset up to the log's end, {end_offset}", str(start),
                _CHECKPOINT_REMEDY,
            )  # fmt: skip
        before = epoch, start


def _epoch_at(entries: Sequence[tuple[int, int]], offset: int) -> int | None:
    begun = bisect_right(entries, offset, key=lambda entry: entry[1])
    return entries[begun - 1][0] if begun else None


def _agrees(run: EpochRun, entries: Sequence[tuple[int, int]] | None) -> bool:
    return entries is not None and {_epoch_at(entries, run.start_offset), _epoch_at(entries, run.last_offset)} == {
        run.epoch
    }


def _rising(
    runs: Iterable[EpochRun], entries: Sequence[tuple[int, int]] | None
) -> tuple[list[EpochRun], list[EpochRun]]:
    """Divide the runs into two lists. The epochs of the first list never decrease. The runs of the second list do not
    fit between the runs of the first.
    """
    kept: list[EpochRun] = []
    odd: list[EpochRun] = []
    for run in runs:
        current = run
        if kept and current.epoch < kept[-1].epoch:
            before = kept[-1]
            verdicts = _agrees(before, entries), _agrees(current, entries)
            is_spike = verdicts[1] if verdicts[0] != verdicts[1] else before.batches < current.batches or len(kept) > 1
            if not is_spike or (len(kept) > 1 and kept[-2].epoch > current.epoch):
                odd.append(current)
                continue
            odd.append(kept.pop())
        if kept and kept[-1].epoch == current.epoch:
            kept[-1] = kept[-1].with_more(current)
        else:
            kept.append(current)
    return kept, odd


def _changed(run: EpochRun, rising: Sequence[EpochRun]) -> Finding:
    around = [each for each in rising if each.start_offset <= run.start_offset] or list(rising[:1])
    expected = f"leader epoch {around[-1].epoch}" if around else "the leader epoch of its neighbours"
    return Finding(Kind.CORRUPT, run.file, run.position, expected, str(run.epoch), _BATCH_MEANING)


def _disagreement(
    rising: Sequence[EpochRun], entries: Sequence[tuple[int, int]], data: bytes, file: str
) -> Iterator[Finding]:
    wrong = [run for run in rising if not _agrees(run, entries)]
    if len(wrong) == 1 < len(rising) and wrong[0].batches == 1:
        yield _changed(wrong[0], [run for run in rising if run is not wrong[0]])
    elif wrong:
        run = wrong[0]
        number = max(0, bisect_right(entries, run.last_offset, key=lambda entry: entry[1]) - 1)
        yield Finding(
            Kind.CHECKPOINT, file, line_position(data, number + 2),
            f"epoch {run.epoch} for offsets {run.start_offset} to {run.last_offset}, as recorded in the batches",
            f"{_epoch_at(entries, run.start_offset)} and {_epoch_at(entries, run.last_offset)}", _CHECKPOINT_REMEDY,
        )  # fmt: skip


def line_position(data: bytes, number: int) -> int:
    """The position at which a line begins in a text. Lines are counted from 0."""
    lines = data.split(b"\n")
    return sum(len(line) + 1 for line in lines[:number])
