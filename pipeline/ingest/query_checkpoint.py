"""Reads Spark's checkpoint of an ingest: the query's id, and the identity of each micro-batch.

    <checkpoint>/metadata              {"id": "<the query's id>"}
    <checkpoint>/offsets/<batch id>    what the micro-batch reads; Spark writes it once, before it runs the batch
    <checkpoint>/commits/<batch id>    Spark's note that the batch is done
    <checkpoint>/sources/<n>/<number>  a source's own notes: a source of files notes the files that it has seen

A query's id is written before Spark reads it, so that topics can be taken over under this id before the first batch.

Spark does not know which checkpoint a topic was fed from, and its error for a missing part says little. So before Spark
starts, the checkpoint is read once (`look_at_checkpoint`). `why_not_whole` checks that its parts agree with one
another, and `why_refused` compares it with the topics' states. Both are pure functions:

    commits/ missing              harmless: Spark runs the last batch again, and it is skipped
    metadata missing              the offsets identify the query, and the query gets its id again
    offsets/ missing              refused: Spark would stop at an assertion
    sources/ missing, of files    refused: Spark would stop at "batch 3 doesn't exist"
    an older file missing         refused if Spark reads it; the message names the file
    a newest file is empty        refused; the message names the file. Spark syncs nothing, so a power cut can empty it
    only metadata left            the query begins again: treated as a checkpoint that is rolled back
    rolled back, or a copy        positions say which rows are committed; without positions refused
    ahead of the topic            refused: the records in between would be left out without a message

The files that a commit relies on are made durable before it (`make_durable`). Otherwise, after a power cut, a topic
could have a batch that its checkpoint does not have, as if the checkpoint were rolled back. Only Spark's note that a
batch is done may be lost.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from storage_engine.errors import AlreadyExistsError, CheckpointError, CorruptionError, NotFoundError
from storage_engine.storage import Storage, StoredFile
from storage_engine.topic.append.publishing import AcceptedCheckpoint, BatchIdentity
from storage_engine.topic.chain.state import CommittedBatch, TopicState

_NUMBERED = re.compile(r"(offsets|commits|sources/[0-9]+)/([0-9]+)(?:\.compact)?")


@dataclass(frozen=True)
class CheckpointFiles:
    """The files of a checkpoint: the highest number in each of its folders, -1 if a folder has no file.

    sources: by the folder's name. empty: those of these files that hold nothing, by their names in the checkpoint.
    missing: those that are not there and that Spark reads when it goes on, by their names.
    """

    offsets: int
    commits: int
    sources: Mapping[str, int]
    empty: Sequence[str] = ()
    missing: Sequence[str] = ()

    @property
    def finished(self) -> int:
        """The last batch that Spark takes for done, -1 for none: it runs only the last one that has offsets again."""
        return max(self.commits, self.offsets - 1)


@dataclass(frozen=True)
class SeenCheckpoint:
    """The contents of a checkpoint before Spark starts.

    folder: its key. query_id: whose it is. counted: up to where each source has counted in its log, as the newest
    offsets say; -1 for a source that keeps none. hashes: of the offsets of some batches, those that Spark takes for
    done last and that topics have as the query's last; a batch that is not here has none.
    """

    folder: str
    query_id: str
    files: CheckpointFiles
    counted: Sequence[int] = ()
    hashes: Mapping[int, str] = field(default_factory=dict)


def query_id_of(storage: Storage, checkpoint: str, states: Iterable[TopicState] = ()) -> str:
    """The query's id in a checkpoint; if the checkpoint has no id, one is written. Spark takes it from there.

    Args:
        states: of the topics that the query feeds. If one knows a batch of this checkpoint, its query is this one.

    Raises:
        CorruptionError: the checkpoint's metadata file holds no id.
    """
    key = f"{checkpoint}/metadata"
    with suppress(AlreadyExistsError):
        try:
            return _query_id(storage, key)
        except NotFoundError:
            found = _query_of_offsets(storage, checkpoint, states) or str(uuid.uuid4())
            storage.put_new(key, json.dumps({"id": found}).encode())
    return _query_id(storage, key)


def batch_identity(
    storage: Storage, checkpoint: str, query_id: str, batch_id: int, source: str | None = None
) -> BatchIdentity:
    """A micro-batch that Spark has begun.

    Args:
        source: whose positions are kept.
    """
    return BatchIdentity(query_id, batch_id, _hash(batch_offsets(storage, checkpoint, batch_id)), source)


def batch_offsets(storage: Storage, checkpoint: str, batch_id: int) -> bytes:
    """What Spark has written about what a micro-batch reads.

    Raises:
        NotFoundError: it has not, or does not keep it any more.
    """
    return storage.read(_offsets_key(checkpoint, batch_id))


def source_files(storage: Storage, checkpoint: str, batch_id: int) -> list[str]:
    """The URIs of the files that a micro-batch reads, if its source reads files; unknown files are left out."""
    seen = [-1, -1]
    for number, batch in enumerate((batch_id - 1, batch_id)):
        with suppress(NotFoundError):
            seen[number] = max(map(_log_offset, batch_offsets(storage, checkpoint, batch).splitlines()[2:]), default=-1)
    found = []
    for number in range(seen[0] + 1, seen[1] + 1):
        for name in (f"{number}", f"{number}.compact"):
            with suppress(NotFoundError, ValueError, KeyError, TypeError):
                _, *lines = storage.read(f"{checkpoint}/sources/0/{name}").splitlines()
                entries = [json.loads(line) for line in lines]
                found += [str(entry["path"]) for entry in entries if entry["batchId"] == number]
    return found


def checkpoint_files(storage: Storage, checkpoint: str) -> CheckpointFiles:
    """The files of a checkpoint."""
    found = _numbered_files(storage, checkpoint, "")
    newest = {folder: max(numbers.items()) for folder, numbers in found.items()}
    missing = [
        f"{folder}/{number}"
        for folder, numbers in sorted(found.items())
        for number in range(_first_needed(folder, numbers), max(numbers))
        if number not in numbers
    ]
    empty = tuple(file.key.removeprefix(f"{checkpoint}/") for _, file in newest.values() if not file.size)
    highest = {folder: number for folder, (number, _) in newest.items()}
    return CheckpointFiles(highest.pop("offsets", -1), highest.pop("commits", -1), highest, empty, missing)


def look_at_checkpoint(
    storage: Storage, checkpoint: str, query_id: str, files: CheckpointFiles, states: Sequence[TopicState]
) -> SeenCheckpoint:
    """Read from a checkpoint what is compared with these states. files: the checkpoint's files, listed before."""
    counted: Sequence[int] = ()
    if files.offsets >= 0 and not files.empty:
        counted = [_log_offset(line) for line in batch_offsets(storage, checkpoint, files.offsets).splitlines()[2:]]
    hashes = {}
    for batch in {files.finished, last_batch(query_id, states).batch_id} - {-1}:
        with suppress(NotFoundError):
            hashes[batch] = _hash(batch_offsets(storage, checkpoint, batch))
    return SeenCheckpoint(checkpoint, query_id, files, counted, hashes)


def last_batch(query_id: str, states: Iterable[TopicState]) -> CommittedBatch:
    """The last batch of a query that one of these topics has; that of number -1 where none has any."""
    return max(
        (state.queries[query_id] for state in states if query_id in state.queries),
        key=lambda batch: batch.batch_id,
        default=CommittedBatch(batch_id=-1, offsets_hash=""),
    )


def make_durable(storage: Storage, checkpoint: str, batch_id: int) -> None:
    """Make durable what Spark has written about what a micro-batch reads, as far as going on with the next one needs it.

    Raises:
        StorageError: the storage refused or failed.
    """
    of_sources = [file.key for _, file in _newest_files(storage, checkpoint, "sources/").values()]
    for key in (_offsets_key(checkpoint, batch_id), *of_sources):
        storage.sync_file(key)


def _newest_files(storage: Storage, checkpoint: str, prefix: str) -> dict[str, tuple[int, StoredFile]]:
    """The numbered file with the highest number in each of the checkpoint's folders, by the folder's name."""
    return {folder: max(numbers.items()) for folder, numbers in _numbered_files(storage, checkpoint, prefix).items()}


def _numbered_files(storage: Storage, checkpoint: str, prefix: str) -> dict[str, dict[int, StoredFile]]:
    """The numbered files in each of the checkpoint's folders, by the folder's name and their number."""
    found: dict[str, dict[int, StoredFile]] = {}
    for file in storage.list(f"{checkpoint}/{prefix}"):
        if numbered := _NUMBERED.fullmatch(file.key.removeprefix(f"{checkpoint}/")):
            found.setdefault(numbered[1], {})[int(numbered[2])] = file
    return found


def _first_needed(folder: str, files: Mapping[int, StoredFile]) -> int:
    """From which number on Spark reads a folder's files: of its notes of finished batches the last one, of offsets the one
    before it, too, and of a source of files all since they were last put together."""
    last = max(files)
    if folder == "commits":
        return last
    if folder == "offsets":
        return max(last - 1, 0)
    return max((number for number, file in files.items() if file.key.endswith(".compact")), default=0)


def why_not_whole(checkpoint: SeenCheckpoint, source: str | None) -> CheckpointError | None:
    """Why Spark cannot go on with a checkpoint, or would leave records out: a part of it is missing. None if it can.

    Args:
        source: whose positions all topics have.
    """
    folder, files = checkpoint.folder, checkpoint.files
    for name in files.empty:
        kind, _, batch = name.rpartition("/")
        return CheckpointError(
            f"{folder}/{name}", "is empty, as a power cut may leave it",
            f"Delete it, and .{batch}.crc beside it: Spark runs batch {batch} again, which is skipped if it is committed."
            if kind == "commits" else _anew("Restore the checkpoint as a whole", source),
        )  # fmt: skip
    if (missing := _missing(checkpoint)) is None:
        return None
    return CheckpointError(folder, f"is not whole: {missing}", _anew("Restore it as a whole", source))


def _missing(checkpoint: SeenCheckpoint) -> str | None:
    """Which file is not there, and which other one says that it was; None where all are."""
    files = checkpoint.files
    if files.commits > files.offsets:
        return f"batch {files.commits} is noted as done, and offsets/{files.commits} is not there"
    if files.offsets < 0:
        return None
    for name in files.missing:
        return f"{name} is not there, and later files are"
    for number, counted in enumerate(checkpoint.counted):
        if counted > files.sources.get(f"sources/{number}", -1):
            return f"the source has counted up to {counted}, and sources/{number}/{counted} is not there"
    return None


def why_refused(checkpoint: SeenCheckpoint, states: Sequence[TopicState], source: str | None) -> CheckpointError | None:
    """Why a checkpoint is not the one that fed these topics; None if it may be, or if positions tell what is committed.

    Args:
        states: of the topics that the query feeds.
        source: whose positions all of them have.
    """
    done, finished = last_batch(checkpoint.query_id, states), checkpoint.files.finished
    place = f"{checkpoint.folder} (query {checkpoint.query_id})"
    if finished > done.batch_id:
        known = f"batch {done.batch_id} of it" if done.batch_id >= 0 else "none of it"
        return CheckpointError(
            place,
            f"has batch {finished} as done, {', '.join(state.topic for state in states)} has {known}: what lies"
            " between would be left out",
            _anew("Restore topic and checkpoint from one backup", source)
            + " With --accept-new-checkpoint, without deleting it, the ingest goes on where it stands.",
        )
    if done.batch_id < 0 or source is not None or checkpoint.hashes.get(done.batch_id) == done.offsets_hash:
        return None
    return CheckpointError(
        place,
        f"does not have batch {done.batch_id} as it is committed: the checkpoint was copied or rolled back",
        "Choose: restore the newest one; or let this one count from now on with --accept-new-checkpoint, which appends once"
        " more what was committed since.",
    )


def accepted_checkpoint(checkpoint: SeenCheckpoint) -> AcceptedCheckpoint:
    """A checkpoint as it stands, to count from now on."""
    finished = checkpoint.files.finished
    if finished < 0:
        return AcceptedCheckpoint()
    # Where the offsets are gone, the hash is that of no batch: it is enough to be behind it.
    return AcceptedCheckpoint((finished, checkpoint.hashes.get(finished, "")))


def _anew(first: str, source: str | None) -> str:
    anew = (
        f"the positions of {source} tell what is committed, and it is left out"
        if source is not None
        else "start with --accept-new-checkpoint, which appends once more what the source still has"
    )
    return f"Choose: {first[0].lower()}{first[1:]}; or delete all of it: {anew}."


def _query_of_offsets(storage: Storage, checkpoint: str, states: Iterable[TopicState]) -> str | None:
    return next(
        (query for state in states for query, done in state.queries.items() if _has(storage, checkpoint, done)), None
    )


def _has(storage: Storage, checkpoint: str, done: CommittedBatch) -> bool:
    """Whether the checkpoint has this batch with these offsets."""
    try:
        return done.batch_id >= 0 and _hash(batch_offsets(storage, checkpoint, done.batch_id)) == done.offsets_hash
    except NotFoundError:
        return False


def _log_offset(line: bytes) -> int:
    """Up to where a source of files has counted in its log; -1 for other sources."""
    try:
        return int(json.loads(line)["logOffset"])
    except (ValueError, KeyError, TypeError):
        return -1


def _hash(offsets: bytes) -> str:
    return hashlib.sha256(offsets).hexdigest()


def _offsets_key(checkpoint: str, batch_id: int) -> str:
    return f"{checkpoint}/offsets/{batch_id}"


def _query_id(storage: Storage, key: str) -> str:
    try:
        return str(uuid.UUID(json.loads(storage.read(key))["id"]))
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptionError(key, 0, "a query's id as Spark writes it", "something else", "Restore it.") from error
