"""Switches off single rules of the protocol. The model must notice each missing rule.

`python -m tests.model.soak --schedules 20 --rules 1500` runs 1,500 schedules for each rule with this rule switched off.
The program counts the schedules in which the model notices that the rule is missing. The following counts are from an
earlier version, with 300 schedules for each rule. In that version, processes paused for a shorter time:

    a writer checks the version before its own 6 · and the id of that version 4 · a reader checks that its version still
    exists 1 · history shows which versions counted 5 · version 0 is replaced before version 1 is deleted 3 · a put is
    read back after a lost reply 25 · a version is durable before it is used 103 · bytes are durable before a version
    names them 164 · no file name is used twice 139 · readers stop at the committed size 45 · files are abandoned after
    a failed commit 3 · a commit compares the high watermark 36 · commits of an older epoch are refused 115 · a batch is
    committed once 84 · a swap needs all old segments 1 · a plan below the sweep floor is refused 1 · the sweep commits
    its floor first 1

Pruning leaves a hole in the chain of versions, and a late writer can put a version into this hole. The history also
reveals such a version. So if a test switches off the rules about the version before or about a reader's version, the
test also switches off the look at the history.

In these counts, the model never noticed that one of the following two rules was missing: a reader without a known
version checks the version before the newest; a reader checks the state again when a file is gone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

from storage_engine.errors import NotFoundError
from storage_engine.log.filenames import offset_name
from storage_engine.log.log_reader import LogReader
from storage_engine.topic.append import append_plan, topic_writer
from storage_engine.topic.append.appending_publisher import AppendingPublisher
from storage_engine.topic.append.topic_writer import TopicWriter
from storage_engine.topic.chain.state_chain import StateChain
from storage_engine.topic.chain.topic_state import TopicState
from storage_engine.topic.chain.version_files import version_key
from storage_engine.topic.clean import state_swap, sweeping
from storage_engine.topic.readers import reader
from tests.model.replacing import replaced
from tests.model.simulated_storage import SimulatedFile

Switch = Callable[[], AbstractContextManager[Any]]


def _believing(method: str, expected: Callable[[StateChain, dict[str, Any], int], str | None]) -> Switch:
    """Where a method of the chain looks whose version stands under a number, it believes this without looking.

    expected: given the method's variables and the number; None: it looks.
    """
    looks = StateChain._has_id

    def has_id(chain: StateChain, version: int, wanted: str) -> bool:
        caller = sys._getframe(1)
        if caller.f_code is StateChain._look_again.__code__ and caller.f_back is not None:
            caller = caller.f_back
        believed = expected(chain, caller.f_locals, version) if caller.f_code.co_name == method else None
        return looks(chain, version, wanted) if believed is None else believed == wanted

    @contextmanager
    def believing() -> Iterator[None]:
        # The history also reveals what was put into a hole, so it must not be asked either.
        with replaced(StateChain, "_has_id", has_id), replaced(StateChain, "_is_outrun", _is_false):
            yield

    return believing


def _parent(chain: StateChain, variables: dict[str, Any], version: int) -> str | None:
    parent = variables["parent"]
    return parent.id if version == parent.version else None


def _parent_if_there(chain: StateChain, variables: dict[str, Any], version: int) -> str | None:
    parent = variables["parent"]
    if version != parent.version:
        return None
    try:
        chain.storage.read(version_key(chain.topic, version), 0, 1)
    except NotFoundError:
        return ""
    return str(parent.id)


class _Anything(int):
    """Equal to whatever it is compared with."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = int.__hash__


def _commit_without_comparing() -> AbstractContextManager[Any]:
    commits = TopicWriter._commit

    def commit(writer: TopicWriter, plan: Any, *arguments: Any) -> Any:
        parts = tuple(
            replace(
                part,
                base=part.base.model_copy(
                    update={"high_watermark": _Anything(part.base.high_watermark), "segments": (_Anything(),)}
                ),
            )
            for part in plan.partitions
        )
        return commits(writer, replace(plan, partitions=parts), *arguments)

    return replaced(TopicWriter, "_commit", commit)


def _whole_files() -> AbstractContextManager[Any]:
    segment_file = LogReader.segment_file

    def whole(log: LogReader, segment: Any) -> Any:
        file = segment_file(log, segment)
        held = log._storage.disk.files.get(file.key)  # type: ignore[attr-defined]
        return replace(file, size=len(held.data), end_offset=2**62) if held else file

    return replaced(LogReader, "segment_file", whole)


def _is_never_done(writer: TopicWriter, state: Any, batch: Any) -> bool:
    topic_writer.check_epoch(state, writer._epoch or state.writer.epoch)
    return False


def _never(*_: Any, **__: Any) -> None:
    return None


def _is_false(*_: Any) -> bool:
    return False


RULES: dict[str, Switch] = {
    "a writer looks at the version before its own": _believing("_put_next", _parent),
    "and at that version's id": _believing("_put_next", _parent_if_there),
    "a reader looks whether its version is still there": _believing(
        "newest_or_none", lambda chain, variables, version: variables["state"].id
    ),
    "a cold start looks at the version before": _believing(
        "_cold_start", lambda chain, variables, version: variables["state"].parent
    ),
    "history tells what counted": lambda: replaced(StateChain, "_is_in_history", _is_false),
    "history tells what was deleted": lambda: replaced(StateChain, "_is_outrun", _is_false),
    "version 0 gives way before version 1 goes": lambda: replaced(StateChain, "retire_first", _never),
    "a put whose reply was lost is read back": lambda: replaced(StateChain, "_is_ours", _is_false),
    "a version is durable before it is built upon": lambda: replaced(StateChain, "_make_durable", _never),
    "bytes are durable before they are named": lambda: replaced(SimulatedFile, "sync", _never),
    "no file name is used twice": lambda: replaced(
        append_plan, "new_segment_name", lambda base_offset, version, word="": offset_name(base_offset)
    ),
    "readers stop at the committed size": _whole_files,
    "only the active segment is continued": lambda: replaced(
        append_plan, "continues", lambda _open_segment, active: active is not None
    ),
    "files are given up when a commit failed": lambda: replaced(AppendingPublisher, "abandon", _never),
    "a commit compares the high watermark": _commit_without_comparing,
    "commits of an older epoch are refused": lambda: replaced(topic_writer, "check_epoch", _never),
    "a batch is committed once": lambda: replaced(TopicWriter, "is_done", _is_never_done),
    "a swap needs all old segments": lambda: replaced(state_swap, "still_named", lambda *_: True),
    "a plan below the sweep floor is barred": lambda: replaced(TopicState, "is_below_sweep_floor", _is_false),
    "the sweep commits its floor first": lambda: replaced(
        sweeping, "_raise_floor", lambda chain, floor: chain.newest().model_copy(update={"sweep_floor": floor})
    ),
    "a reader looks again when a file is gone": lambda: replaced(
        reader.PartitionReader, "refresh", lambda self: self.partition
    ),
}
