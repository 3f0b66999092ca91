"""Compares each stamp of a table with the stamp before it, as far as the table's log goes back.

The stamp before a stamp is the stamp that described the rows just before the commit: the newest older one, without the
stamps that a RESTORE has undone. Two exports cannot both continue from the same stamp, because they have the same
guard. So each stamp must continue exactly this one:

- If the rows have digests, the stamp names the seal of the stamp before it, and its sums follow from that stamp.
- The positions are not lower than before, and the first export did not begin later than before.

A rebuild continues no stamp. An export without digests may end a chain. A changed stamp is found as long as the log has
a newer stamp, also if Delta has deleted older commits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pipeline.delta.chain.stamp_chain import seal_of
from pipeline.delta.proof.findings import Findings
from pipeline.delta.table_history import Commit, find_head, replaces_all_rows, stamp_in
from pipeline.delta.table_stamp import CHAIN_FORMAT, Stamp, stamp_document


def compare_stamps(commits: Sequence[Commit], current: Stamp, since: int | None, findings: Findings) -> list[int]:
    """Compare the stamps, from the current one to the first one of the table, of its last rebuild, or of the log.

    Args:
        commits: the commits of the log, the newest first.
        current: the stamp of the current rows.
        since: a version of the table; stamps before the stamp of this version are not compared. None: all stamps.

    Returns:
        The versions of the compared stamps, the newest first.
    """
    versions = []
    for commit, stamp, before in with_predecessors(commits, current):
        versions.append(commit.version)
        problem = _seal_problem(commit, stamp)
        if problem is not None:
            findings.differs(None, None, f"the stamp of version {commit.version} {problem}")
        if since is not None and commit.version <= since:
            break
        problem = _problem(stamp, before, is_whole=commits[-1].version == 0)
        if problem is not None:
            findings.differs(None, None, f"the stamp of version {commit.version} {problem}")
    return versions


def with_predecessors(commits: Sequence[Commit], current: Stamp) -> Iterator[tuple[Commit, Stamp, Stamp | None]]:
    """Each stamp of the current rows with its commit and the stamp before it, the newest first. None: a rebuild made all
    rows, or the log has no stamp before it."""
    stamps = [stamp_in(each) for each in commits]
    number, stamp = stamps.index(current), current
    while True:
        older = (commits[each] for each in range(number + 1, len(commits)))
        is_first = number + 1 == len(commits) or replaces_all_rows(commits[number], stamp)
        before = None if is_first else find_head(older, lambda: commits[-1].version, lambda _: True).current
        yield commits[number], stamp, before
        if before is None:
            return
        number, stamp = stamps.index(before, number + 1), before


def _seal_problem(commit: Commit, stamp: Stamp) -> str | None:
    document = stamp_document(commit.user_metadata)
    if stamp.chain is None:
        return "has lost its chain of digests" if stamp.format == CHAIN_FORMAT else None
    if document is None or seal_of(document) == stamp.chain.seal:
        return None
    return "does not fit its seal"


def _problem(stamp: Stamp, before: Stamp | None, *, is_whole: bool) -> str | None:
    """Why a stamp cannot follow the stamp before it, as the rest of a sentence.

    Args:
        is_whole: whether the log has all commits of the table.
    """
    chain = stamp.chain
    if before is None:
        if chain is None or (chain.previous is not None and not is_whole):
            return None
        if chain.previous is not None:
            return "continues a stamp that is not in the table's log"
        return None if chain.follows(None) else "has sums that do not fit an empty table"
    if chain is not None and (before.chain is None or chain.previous != before.chain.seal):
        return "does not continue the stamp before it"
    if chain is not None and not chain.follows(before.chain):
        return "has sums that do not follow from the stamp before it"
    if any(stamp.positions.get(each, 0) < position for each, position in before.positions.items()):
        return "has lower positions than the stamp before it"
    began, earlier = stamp.began, before.began
    if earlier is not None and (
        began is None or any(first > earlier.offsets.get(each, 0) for each, first in began.offsets.items())
    ):
        return "has a later first offset than the stamp before it"
    return None
