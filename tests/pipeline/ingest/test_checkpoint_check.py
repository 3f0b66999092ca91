"""The comparison of a checkpoint with the states of its topics: which files may be missing, and what is refused."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable
from pathlib import Path

import pytest

from lakelog.spark.sink.streaming_checkpoint import batch_identity
from pipeline.ingest.checkpoint_check import (
    SeenCheckpoint,
    accepted_checkpoint,
    checkpoint_files,
    look_at_checkpoint,
    query_id_of,
    why_not_whole,
    why_refused,
)
from storage_engine.errors import CheckpointError, CorruptionError
from storage_engine.storage import exists
from storage_engine.topic.append.topic_writer import AcceptedCheckpoint
from storage_engine.topic.chain.topic_state import CommittedBatch, TopicState
from tests.stores import storage_at

QUERY = str(uuid.UUID(int=7))
SOURCE = "kafka b1:9092"


class Checkpoint:
    """What Spark leaves of batches 0 to `last`, of which `done` are noted as done; its files have the number of each."""

    def __init__(self, root: Path, last: int = 3, done: int | None = None, *, of_files: bool = False) -> None:
        self.storage = storage_at(root)
        self.write("metadata", json.dumps({"id": QUERY}))
        for batch in range(last + 1):
            source = {"logOffset": batch} if of_files else {"t": {"0": 10 * batch}}
            self.write(f"offsets/{batch}", f"v1\n{{}}\n{json.dumps(source)}")
            self.write(f"offsets/.{batch}.crc", "")
            if of_files:
                self.write(f"sources/0/{batch}{'.compact' if batch == 9 else ''}", "v1\n")
        for batch in range((last if done is None else done) + 1):
            self.write(f"commits/{batch}", "v1\n{}")

    def write(self, name: str, text: str) -> None:
        self.storage.delete(f"cp/{name}")
        with self.storage.new_file(f"cp/{name}", durable=False) as file:
            file.write(text.encode())

    def lose(self, *names: str) -> None:
        for name in names:
            assert exists(self.storage, f"cp/{name}")
            self.storage.delete(f"cp/{name}")

    def hash(self, batch: int) -> str:
        return hashlib.sha256(self.storage.read(f"cp/offsets/{batch}")).hexdigest()

    def refused(self, *states: TopicState, source: str | None = None) -> CheckpointError | None:
        seen = self.seen(*states)
        return why_not_whole(seen, source) or why_refused(seen, states, source)

    def seen(self, *states: TopicState) -> SeenCheckpoint:
        return look_at_checkpoint(self.storage, "cp", QUERY, checkpoint_files(self.storage, "cp"), states)


def state(batch: int | None = None, offsets_hash: str = "", query: str = QUERY, topic: str = "t") -> TopicState:
    """One that knows this last batch of the query."""
    done = {} if batch is None else {query: CommittedBatch(batch_id=batch, offsets_hash=offsets_hash)}
    return TopicState(
        id="b", parent="a", version=7, written_ms=0, change="", topic=topic, topic_id="T", configs={}, queries=done,
        partitions=(),
    )  # fmt: skip


@pytest.mark.parametrize(("last", "noted", "committed"), [(3, 3, 3), (3, 2, 3), (3, 2, 2), (3, -1, 3), (0, -1, None)])
def test_a_crash_at_any_point_leaves_a_checkpoint_that_goes_on(tmp_path, last, noted, committed) -> None:
    checkpoint = Checkpoint(tmp_path, last, noted)
    known = state() if committed is None else state(committed, checkpoint.hash(committed))
    assert checkpoint.refused(known) is None
    assert checkpoint.refused(known, state(topic="added")) is None, "a topic that is new to the query"


@pytest.mark.parametrize(
    ("known", "message"),
    [
        (state(7, "elsewhere"), "does not have the committed batch 7: the checkpoint was copied or rolled back"),
        (state(3, "elsewhere"), "does not have the committed batch 3: the checkpoint was copied or rolled back"),
    ],
)
def test_a_checkpoint_that_went_back_is_refused_but_where_positions_tell(tmp_path, known, message) -> None:
    checkpoint = Checkpoint(tmp_path)
    refused = checkpoint.refused(known)
    assert refused is not None
    assert message in refused.problem
    assert "--accept-new-checkpoint" in refused.remedy
    assert checkpoint.refused(known, source=SOURCE) is None


@pytest.mark.parametrize("known", [state(), state(1, "h"), state(2, "h", query="another")])
def test_a_checkpoint_that_is_ahead_is_refused_in_any_case(tmp_path, known) -> None:
    checkpoint = Checkpoint(tmp_path)
    for source, remedy in ((None, "start with --accept-new"), (SOURCE, "the topic's positions of kafka b1:9092 show")):
        refused = checkpoint.refused(known, source=source)
        assert refused is not None
        assert "would be skipped" in refused.problem
        assert remedy in refused.remedy


def test_a_checkpoint_that_is_ahead_of_one_of_several_topics_is_refused(tmp_path) -> None:
    checkpoint = Checkpoint(tmp_path)
    whole, behind, new = state(3, checkpoint.hash(3)), state(2, checkpoint.hash(2), topic="b"), state(topic="n")

    refused = checkpoint.refused(whole, behind, new)

    assert refused is not None
    assert refused.problem == (
        "shows batch 3 as completed, but b has only batch 2 of the query: the records in between would be skipped"
    )
    assert checkpoint.refused(whole, new) is None


def test_a_topic_without_the_batch_that_spark_has_not_noted_goes_on(tmp_path) -> None:
    checkpoint = Checkpoint(tmp_path, done=2)

    assert checkpoint.refused(state(3, checkpoint.hash(3)), state(2, checkpoint.hash(2), topic="b")) is None


def numbered(folder: str, numbers: Iterable[int]) -> list[str]:
    return [f"{folder}/{number}" for number in numbers]


@pytest.mark.parametrize(
    "lost",
    [
        numbered("offsets", range(4)), ["offsets/3"], ["offsets/2"], ["sources/0/3"], ["sources/0/1"], ["sources/0/0"],
        numbered("sources/0", range(4)),
    ],
)  # fmt: skip
def test_a_checkpoint_that_is_not_whole_is_refused(tmp_path, lost) -> None:
    checkpoint = Checkpoint(tmp_path, of_files=True)
    known = state(3, checkpoint.hash(3))
    assert checkpoint.refused(known) is None
    checkpoint.lose(*lost)
    for source, instead in ((None, "start with --accept-new-checkpoint"), (SOURCE, "the topic's positions of")):
        refused = checkpoint.refused(known, source=source)
        assert refused is not None
        assert "is not complete" in refused.problem
        assert f"(2) delete the whole checkpoint: {instead}" in refused.remedy


def test_a_source_of_files_that_has_compacted_its_log_is_whole(tmp_path) -> None:
    checkpoint = Checkpoint(tmp_path, last=12, of_files=True)
    known = state(12, checkpoint.hash(12))
    checkpoint.lose(*numbered("sources/0", range(9)), *numbered("offsets", range(11)), *numbered("commits", range(12)))
    assert checkpoint.refused(known) is None
    checkpoint.lose("sources/0/10")
    refused = checkpoint.refused(known)
    assert refused is not None
    assert refused.problem == "is not complete: sources/0/10 is missing, but later files exist"


def test_lost_metadata_are_made_again_from_what_a_topic_knows(tmp_path) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.lose("metadata")
    states = [state(), state(3, "elsewhere", query="other"), state(2, checkpoint.hash(2))]
    assert query_id_of(checkpoint.storage, "cp", states) == QUERY
    assert json.loads(checkpoint.storage.read("cp/metadata")) == {"id": QUERY}
    checkpoint.lose("metadata")
    assert query_id_of(checkpoint.storage, "cp", [state(2, "elsewhere")]) != QUERY


def test_an_id_that_is_there_stays_and_one_that_is_none_is_an_error(tmp_path) -> None:
    checkpoint = Checkpoint(tmp_path)
    assert query_id_of(checkpoint.storage, "cp") == QUERY
    checkpoint.write("metadata", "{}")
    with pytest.raises(CorruptionError, match="expected a query's id"):
        query_id_of(checkpoint.storage, "cp")


def test_an_accepted_checkpoint_counts_from_the_last_batch_that_spark_takes_for_done(tmp_path) -> None:
    def accepted(checkpoint: Checkpoint) -> AcceptedCheckpoint:
        return accepted_checkpoint(checkpoint.seen())

    noted = Checkpoint(tmp_path / "noted")
    assert accepted(noted) == AcceptedCheckpoint((3, noted.hash(3)))
    under_way = Checkpoint(tmp_path / "under_way", last=3, done=2)
    assert accepted(under_way) == AcceptedCheckpoint((2, under_way.hash(2)))
    assert accepted(Checkpoint(tmp_path / "first", last=0, done=-1)) == AcceptedCheckpoint()
    under_way.lose("offsets/2")
    assert accepted(under_way) == AcceptedCheckpoint((2, ""))


def test_a_batch_is_told_by_its_offsets(tmp_path) -> None:
    checkpoint = Checkpoint(tmp_path)
    one, other = (batch_identity(checkpoint.storage, "cp", QUERY, batch, SOURCE) for batch in (1, 2))
    assert (one.query, one.batch_id, one.source) == (QUERY, 1, SOURCE)
    assert one.offsets_hash == checkpoint.hash(1) != other.offsets_hash
