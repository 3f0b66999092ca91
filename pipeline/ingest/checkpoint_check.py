"""Checks Spark's checkpoint of an ingest before Spark starts (lakelog.spark.sink.streaming_checkpoint lists the files
of a checkpoint).

If the checkpoint has no query id, an id is written before Spark starts. So the query already has its id when it takes
over topics, before its first batch.

Spark does not know which checkpoint was used for the earlier appends to a topic. Spark's error for a missing file is
not clear, either. So before Spark starts, `look_at_checkpoint` reads the checkpoint once. Two pure functions then check
what was read: `why_not_whole` checks that the files agree with one another, and `why_refused` compares the checkpoint
with the topics' states:

    commits/ missing              harmless: Spark runs the last batch again, and the batch is skipped
    metadata missing              the offsets identify the query, and the query's id is written again
    offsets/ missing              refused: Spark would stop at an assertion
    sources/ of files missing     refused: Spark would stop at "batch 3 doesn't exist"
    an older file missing         refused if Spark reads this file; the message names the file
    a folder's newest file empty  refused; the message names the file. Spark syncs no file, so a power cut can empty
                                  the newest file
    only metadata exists          the query begins again, so the checkpoint counts as rolled back
    rolled back, or a copy        accepted if positions show which rows are committed; otherwise refused
    ahead of a topic              refused: the records in between would be silently skipped

A commit depends on some files of the checkpoint. These files are made durable before the commit (`make_durable`). If
these files were not durable, a power cut could leave a topic with a batch that is not in the checkpoint, as if the
checkpoint had been rolled back. There is one exception: it does no harm to lose the file in which Spark notes that a
batch is done.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from lakelog.spark.sink.streaming_checkpoint import batch_offsets, numbered_files, offsets_hash, recorded_query_id
from storage_engine.errors import AlreadyExistsError, CheckpointError, NotFoundError
from storage_engine.storage import Storage, StoredFile
from storage_engine.topic.append.topic_writer import AcceptedCheckpoint
from storage_engine.topic.chain.topic_state import CommittedBatch, TopicState


@dataclass(frozen=True)
class CheckpointFiles:
    """The files of a checkpoint.

    offsets, commits: the highest number of a file in the folder, -1 if the folder has no file.
    sources: the same for each folder of a source, by the name of the folder.
    empty: of the files with these numbers, the names of the empty ones.
    missing: the names of missing files that Spark needs to continue.
    """

    offsets: int
    commits: int
    sources: Mapping[str, int]
    empty: Sequence[str] = ()
    missing: Sequence[str] = ()

    @property
    def finished(self) -> int:
        """The last batch that Spark considers done, -1 for none. Of the batches with offsets, Spark runs only the last one
        again."""
        return max(self.commits, self.offsets - 1)


@dataclass(frozen=True)
class SeenCheckpoint:
    """The contents of a checkpoint before Spark starts.

    folder: the storage key of the checkpoint.
    query_id: the id of the checkpoint's query.
    files: the files of the checkpoint.
    counted: by source, the last number of the source's log that the newest offsets mention; -1 for a source without a log.
    hashes: by batch, the hash of its offsets. There are at most two batches: the last batch that Spark considers done,
        and the last batch of the query in any topic. A batch whose offsets are not in the checkpoint is missing.
    """

    folder: str
    query_id: str
    files: CheckpointFiles
    counted: Sequence[int] = ()
    hashes: Mapping[int, str] = field(default_factory=dict)


def query_id_of(storage: Storage, checkpoint: str, states: Iterable[TopicState] = ()) -> str:
    """The query's id in a checkpoint. If the checkpoint has no id, an id is written, and Spark uses this id.

    Args:
        states: the states of the topics that the query feeds. If one of these topics has a batch of this checkpoint,
            the id of that batch's query is written. Otherwise the id is new.

    Raises:
        CorruptionError: the checkpoint's metadata file contains no id.
    """
    with suppress(AlreadyExistsError):
        try:
            return recorded_query_id(storage, checkpoint)
        except NotFoundError:
            found = _query_of_offsets(storage, checkpoint, states) or str(uuid.uuid4())
            storage.put_new(f"{checkpoint}/metadata", json.dumps({"id": found}).encode())
    return recorded_query_id(storage, checkpoint)


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
    found = numbered_files(storage, checkpoint, "")
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
    """Read the contents of a checkpoint to compare them with these states. files: the files of the checkpoint, which
    the caller has listed before."""
    counted: Sequence[int] = ()
    if files.offsets >= 0 and not files.empty:
        counted = [_log_offset(line) for line in batch_offsets(storage, checkpoint, files.offsets).splitlines()[2:]]
    hashes = {}
    for batch in {files.finished, last_batch(query_id, states).batch_id} - {-1}:
        with suppress(NotFoundError):
            hashes[batch] = offsets_hash(batch_offsets(storage, checkpoint, batch))
    return SeenCheckpoint(checkpoint, query_id, files, counted, hashes)


def last_batch(query_id: str, states: Iterable[TopicState]) -> CommittedBatch:
    """The last batch of a query in any of these topics; a batch with the number -1 if no topic has a batch of the
    query."""
    return max(
        (state.queries[query_id] for state in states if query_id in state.queries),
        key=lambda batch: batch.batch_id,
        default=CommittedBatch(batch_id=-1, offsets_hash=""),
    )


def _first_needed(folder: str, files: Mapping[int, StoredFile]) -> int:
    """The first number of the files that Spark reads in a folder: in commits/ the last file, in offsets/ the last two
    files, and in the log of a source all files from the last .compact file on."""
    last = max(files)
    if folder == "commits":
        return last
    if folder == "offsets":
        return max(last - 1, 0)
    return max((number for number, file in files.items() if file.key.endswith(".compact")), default=0)


def why_not_whole(checkpoint: SeenCheckpoint, source: str | None) -> CheckpointError | None:
    """The error if a file of the checkpoint is missing or empty, so that Spark would fail or skip records; None if the
    checkpoint is complete.

    Args:
        source: the source whose positions all topics have, or None.
    """
    folder, files = checkpoint.folder, checkpoint.files
    for name in files.empty:
        kind, _, batch = name.rpartition("/")
        return CheckpointError(
            f"{folder}/{name}", "is empty, perhaps because of a power cut",
            f"Delete this file and the file .{batch}.crc in the same folder. Spark then runs batch {batch} again. The ingest"
            " skips this batch if it is committed." if kind == "commits" else _anew("restore the whole checkpoint", source),
        )  # fmt: skip
    if (missing := _missing(checkpoint)) is None:
        return None
    return CheckpointError(folder, f"is not complete: {missing}", _anew("restore the whole checkpoint", source))


def _missing(checkpoint: SeenCheckpoint) -> str | None:
    """The missing file, and the file that shows that it existed; None if no file is missing."""
    files = checkpoint.files
    if files.commits > files.offsets:
        return f"commits/ shows batch {files.commits} as completed, but offsets/{files.commits} is missing"
    if files.offsets < 0:
        return None
    for name in files.missing:
        return f"{name} is missing, but later files exist"
    for number, counted in enumerate(checkpoint.counted):
        if counted > files.sources.get(f"sources/{number}", -1):
            return f"the offsets mention number {counted} of the source, but sources/{number}/{counted} is missing"
    return None


def why_refused(checkpoint: SeenCheckpoint, states: Sequence[TopicState], source: str | None) -> CheckpointError | None:
    """The error if these topics were fed with another checkpoint. None if they may have been fed with this checkpoint,
    or if positions show which rows are committed.

    Args:
        states: the states of the topics that the query feeds.
        source: the source whose positions all these topics have, or None.
    """
    query_id, finished = checkpoint.query_id, checkpoint.files.finished
    done = last_batch(query_id, states)
    place = f"{checkpoint.folder} (query {query_id})"
    # A topic without a batch of the query may be new to it. Only if no topic has one, the batches are lost.
    known = [state for state in states if query_id in state.queries] or states
    if behind := [state for state in known if finished > last_batch(query_id, [state]).batch_id]:
        last = last_batch(query_id, behind).batch_id
        has = f"only batch {last} of the query" if last >= 0 else "no batch of the query"
        return CheckpointError(
            place,
            f"shows batch {finished} as completed, but {', '.join(state.topic for state in behind)} has {has}:"
            " the records in between would be skipped",
            _anew(
                "restore topic and checkpoint from one backup",
                source,
                "; (3) keep the checkpoint and start with --accept-new-checkpoint, which skips the records in between",
            ),
        )
    if done.batch_id < 0 or source is not None or checkpoint.hashes.get(done.batch_id) == done.offsets_hash:
        return None
    return CheckpointError(
        place,
        f"does not have the committed batch {done.batch_id}: the checkpoint was copied or rolled back",
        "Choose one: (1) restore the newest checkpoint; (2) accept this checkpoint with --accept-new-checkpoint, which"
        " appends again the rows that were committed after this checkpoint.",
    )


def accepted_checkpoint(checkpoint: SeenCheckpoint) -> AcceptedCheckpoint:
    """What a topic's state records about a checkpoint that the operator accepts as it is."""
    finished = checkpoint.files.finished
    if finished < 0:
        return AcceptedCheckpoint()
    # If the offsets are missing, the hash is empty and matches no batch. The batch id alone is enough.
    return AcceptedCheckpoint((finished, checkpoint.hashes.get(finished, "")))


def _anew(first: str, source: str | None, further: str = "") -> str:
    anew = (
        f"the topic's positions of {source} show which rows are committed, and these rows are skipped"
        if source is not None
        else "start with --accept-new-checkpoint, which appends again all rows that the source still has"
    )
    return f"Choose one: (1) {first}; (2) delete the whole checkpoint: {anew}{further}."


def _query_of_offsets(storage: Storage, checkpoint: str, states: Iterable[TopicState]) -> str | None:
    return next(
        (query for state in states for query, done in state.queries.items() if _has(storage, checkpoint, done)), None
    )


def _has(storage: Storage, checkpoint: str, done: CommittedBatch) -> bool:
    """Whether the checkpoint has this batch, with the same offsets."""
    try:
        return (
            done.batch_id >= 0 and offsets_hash(batch_offsets(storage, checkpoint, done.batch_id)) == done.offsets_hash
        )
    except NotFoundError:
        return False


def _log_offset(line: bytes) -> int:
    """The last number of a file source's log, from the source's line of the offsets file; -1 for other sources."""
    try:
        return int(json.loads(line)["logOffset"])
    except (ValueError, KeyError, TypeError):
        return -1
