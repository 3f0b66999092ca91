"""Repairs a root after a check: rebuilds wrong indexes under data/, and the view (log/).

Other files do not change in this step: a damaged .log cannot be rebuilt, and documents are restored before this step
(state_repair). After a crash, each file is the complete old file, the complete new file, or missing. A second repair
finishes the work.
"""

from __future__ import annotations

from contextlib import suppress

from storage_engine.errors import CorruptionError, NotFoundError
from storage_engine.log.derived_indexes import derived_indexes
from storage_engine.log.filenames import INDEX, TIME_INDEX
from storage_engine.storage import Folders
from storage_engine.topic.kafka.view import settle
from storage_engine.topic.readers.reader import segment_file
from storage_engine.topic.topics import Topics, is_root
from storage_engine.topic.view_record import claim_view
from storage_engine.verify.findings import Kind, problems
from storage_engine.verify.root.root_check import CheckedRoot
from storage_engine.verify.root.view_check import has_wrong_bytes, shown_stem


def repair_root(topics: Topics, found: CheckedRoot) -> None:
    """Rebuild indexes under data/, and make the view match the state.

    Raises:
        LogError: a .log is damaged, so the view cannot show it; log/ is not the view; or the storage refused.
    """
    storage = topics.storage
    if not is_root(storage):
        return
    wrong = {finding.file for finding in problems(found.findings) if finding.kind in (Kind.INDEX, Kind.UNREADABLE)}
    outdated = []
    """Files of the view that must be made again, for example because an index under data/ is derived with another
    interval.
    """
    for state in found.states:
        for number, part in enumerate(state.partitions):
            for segment in part.segments:
                file = segment_file(state.topic_id, number, segment)
                if not wrong & {f"{storage.uri}/{file.stem}{suffix}" for suffix in (INDEX, TIME_INDEX)}:
                    continue
                with suppress(CorruptionError):  # the damage of the .log has its own finding
                    closed = derived_indexes(storage, file, topics.config(state).index_interval_bytes)
                    for suffix, data in (
                        (INDEX, closed.offset_index_bytes()),
                        (TIME_INDEX, closed.time_index_bytes()),
                    ):
                        _remove_folder(storage.folders, file.stem + suffix)
                        storage.replace(file.stem + suffix, data)
                    outdated += [shown_stem(state, number, segment) + suffix for suffix in (INDEX, TIME_INDEX)]
    if (view := storage.view) is not None:
        claim_view(storage, view)
        # Settling compares only times of change, and damage on the disk does not change them.
        for finding in problems(found.findings):
            if has_wrong_bytes(finding):
                outdated.append(finding.file.removeprefix(f"{storage.uri}/"))
        # In this order a file at the place of a folder is removed before the files in that folder.
        for key in sorted(set(outdated)):
            _remove_folder(view, key)
            storage.delete(key)
        with suppress(CorruptionError, NotFoundError):  # this damage has its own finding; all other files were settled
            settle(topics)


def _remove_folder(folders: Folders | None, key: str) -> None:
    """Remove a folder that is at the place of a file."""
    folder, _, name = key.rpartition("/")
    if folders is not None and any(entry.name == name and entry.is_folder for entry in folders.entries(folder)):
        folders.remove_folder(key)
