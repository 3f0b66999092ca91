"""Checks of file names: only one process can create a name, a file is complete as soon as its name exists, and
different names are different files.
"""

from __future__ import annotations

import time
from collections import Counter

from lakelog.doctor.actions import TICK_MS, contend, skew_ms, version_bytes
from lakelog.doctor.check_report import Result, not_available, ok, problem
from lakelog.doctor.workspace import Workspace
from storage_engine.errors import AlreadyExistsError
from storage_engine.quantities import counted

_NAMES = 30
_THREADS = 4
_EVERY_MS = 2 * TICK_MS
_WATCH_SECONDS = 1.0
_LISTED = 20
_LONGEST = 255
"""In bytes. The name of a topic has up to 249 bytes, and the number of the partition follows it."""


def put_if_absent(workspace: Workspace) -> Result:
    """Both sides try to create the same names at the same moments, each with several threads."""
    asked = time.monotonic()
    there_ms = workspace.ask("skew", folder=workspace.key("skew-there/"))
    patience_ms = 200 + 2000 * (time.monotonic() - asked)  # long enough for the request to arrive at the other side
    here_ms = skew_ms(workspace.storage, workspace.key("skew-here/"))
    starts_ms = time.time() * 1000 + here_ms + patience_ms
    names = {"folder": workspace.key("names/"), "names": _NAMES, "threads": _THREADS, "every_ms": _EVERY_MS}
    workspace.partner.begin("contend", **names, side="there", starts_ms=starts_ms - there_ms)
    here = contend(
        workspace.storage, workspace.key("names/"), "here", _NAMES, _THREADS, starts_ms - here_ms, every_ms=_EVERY_MS
    )
    there: dict[str, list[int]] = workspace.partner.answer()
    winners: dict[int, list[str]] = {number: [] for number in range(_NAMES)}
    for contestant, won in (here | there).items():
        for number in won:
            winners[number].append(contestant)
    wrong = Counter(len(won) for won in winners.values() if len(won) != 1)
    if wrong:
        found = ", ".join(f"{count} had {winners_each}" for winners_each, count in sorted(wrong.items()))
        return problem(
            f"{2 * _THREADS} threads tried to create each of {_NAMES} names. Each name must have one winner, but {found}"
            " winners"
        )
    stored = [workspace.storage.read(workspace.key(f"names/{number:06d}")).decode() for number in range(_NAMES)]
    others = sum(stored[number] != won[0] for number, won in winners.items())
    if others:
        return problem(f"of {_NAMES} names, {others} contain the bytes of a thread that did not create the name")
    won_here = sum(len(won) for won in here.values())
    return ok(
        f"{2 * _THREADS} threads tried to create each of {_NAMES} names, and each name had one winner; this side"
        f" created {won_here} of the names, the other side {_NAMES - won_here}"
    )


def second_name(workspace: Workspace) -> Result:
    """link() gives a file a second name, and never overwrites a file. The link count is the number of names."""
    storage, links = workspace.storage, workspace.storage.links
    if links is None:
        return not_available("a file cannot have a second name on this storage")
    for name in ("one", "other"):
        with storage.new_file(workspace.key(name)) as file:
            file.write(name.encode())
    links.link(workspace.key("one"), workspace.key("second"))
    if storage.read(workspace.key("second")) != b"one":
        return problem("a file was read by its second name, and the bytes differ from those of the first name")
    try:
        links.link(workspace.key("other"), workspace.key("second"))
        return problem("a link replaced a file that already had the name")
    except AlreadyExistsError:
        pass
    if storage.read(workspace.key("second")) != b"one":
        return problem("a link was refused because its name already existed, but the file of this name has changed")
    counts = [_links(workspace, "one")]
    storage.delete(workspace.key("one"))
    if storage.read(workspace.key("second")) != b"one":
        return problem("after the first name of a file was deleted, the second name is gone, too")
    counts.append(_links(workspace, "second"))
    if counts not in ([2, 1], [None, None]):
        return problem(
            f"the link count was {counts[0]} for a file with two names, and {counts[1]} after one name was deleted"
        )
    return ok(
        "the storage refuses a link whose name exists already, and the link count is 2 with two names and 1"
        " with one name"
    )


def _links(workspace: Workspace, name: str) -> int | None:
    path = workspace.path(name)
    return path.stat().st_nlink if path else None


def replacing(workspace: Workspace) -> Result:
    """A file is replaced repeatedly while the other side reads it."""
    key = workspace.key("replaced")
    workspace.storage.replace(key, version_bytes(0))
    workspace.partner.begin("watch", key=key, seconds=_WATCH_SECONDS)
    version = 0
    until = time.monotonic() + workspace.partner.timeout_s
    while not workspace.partner.has_answered() and time.monotonic() < until:
        version += 1
        workspace.storage.replace(key, version_bytes(version))
    seen: dict[str, int] = workspace.partner.answer()
    wrong = {what: seen[what] for what in ("missing", "torn", "backwards") if seen[what]}
    reads = f"of {seen['reads']:,} reads during {counted(version, 'replacement')}"
    if wrong:
        return problem(f"{reads}, {', '.join(f'{count} were {what}' for what, count in wrong.items())}")
    return ok(f"{reads}, each found a whole file, and {counted(seen['versions'], 'version')} were seen in order")


def listing(workspace: Workspace) -> Result:
    """A name is listed as soon as it exists, and is not listed any more once it is deleted. Names are listed in order."""
    storage, late = workspace.storage, 0
    ordered = [workspace.key("order-2/x"), workspace.key("order/x")]
    for key in ordered:
        storage.put_new(key, b"x")
    listed = [file.key for file in storage.list(workspace.key("")) if file.key in ordered]
    if listed != ordered:
        return problem(f"{listed[0]} is listed before {listed[-1]}")
    keys = [workspace.key(f"listed/{number:04d}") for number in range(_LISTED)]
    for number, key in enumerate(keys, 1):
        with storage.new_file(key) as file:
            file.write(b"x")
        late += [file.key for file in storage.list(workspace.key("listed/"))] != keys[:number]
    for number, key in enumerate(keys, 1):
        storage.delete(key)
        late += [file.key for file in storage.list(workspace.key("listed/"))] != keys[number:]
    if late:
        return problem(
            f"{late} of {2 * _LISTED} listings did not show a file that had just been created, or showed a deleted one"
        )
    return ok(f"each of {_LISTED} new names was listed immediately, and no deleted name was listed")


def letter_case(workspace: Workspace) -> Result:
    """Names that differ only in case are two files."""
    workspace.storage.put_new(workspace.key("name"), b"lower")
    try:
        workspace.storage.put_new(workspace.key("NAME"), b"upper")
    except AlreadyExistsError:
        return problem("`name` and `NAME` are one file")
    if workspace.storage.read(workspace.key("name")) != b"lower":
        return problem("`NAME` replaced `name`")
    return ok("`name` and `NAME` are two files")


def length(workspace: Workspace) -> Result:
    """A file's name may be as long as the folder name of the longest topic name."""
    name = "n" * _LONGEST
    workspace.storage.put_new(workspace.key(f"{name}/{name}"), b"x")
    return ok(f"files and folders may have names of {_LONGEST} bytes")
