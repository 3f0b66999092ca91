"""Whether a query may take over topics from another query: each rule alone, and several rules together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeline.ingest.checkpoint_check import CheckpointFiles, SeenCheckpoint
from pipeline.ingest.claim import Claim, ClaimRequest, decide_claim
from pipeline.ingest.source_positions import PositionedSource
from storage_engine.errors import CheckpointError, ConfigError
from storage_engine.topic.append.topic_writer import AcceptedCheckpoint
from storage_engine.topic.chain.topic_state import CommittedBatch, TopicState, Writer

QUERY, OTHER = "query", "other"
ROWS = PositionedSource("json landing", ("file", "line"), "json")
KAFKA = PositionedSource("kafka b1:9092", ("topic", "partition", "offset"), "kafka", {"subscribe": "t"})

NEW = SeenCheckpoint("cp", QUERY, CheckpointFiles(-1, -1, {}))
AT_3 = SeenCheckpoint("cp", QUERY, CheckpointFiles(3, 3, {}), hashes={3: "hash 3"})
AT_5 = SeenCheckpoint("cp", QUERY, CheckpointFiles(5, 5, {}), hashes={5: "hash 5"})
COPIED = replace(AT_3, hashes={3: "another"})
BROKEN = replace(AT_3, files=CheckpointFiles(2, 3, {}))

PLAIN = ClaimRequest(columns_place="columns at", source_place="source at")
BY_ROWS = replace(PLAIN, source=ROWS)
BY_KAFKA = replace(PLAIN, source=KAFKA)


def accepting(request: ClaimRequest) -> ClaimRequest:
    return replace(request, accept_new_checkpoint=True)


def topic(
    batch: int | None = None, writer: str | None = None, source: str | None = None, reads: str = ""
) -> TopicState:
    """A topic that has this last batch of QUERY, whose writer was this query, and that keeps positions of this source."""
    return TopicState(
        id="b", parent="a", version=7, written_ms=0, change="", topic="t", topic_id="T", configs={},
        queries={} if batch is None else {QUERY: CommittedBatch(batch_id=batch, offsets_hash=f"hash {batch}")},
        writer=Writer(query=writer, source=source, reads=reads),
        positions={} if source is None else {source: {"file": 4}}, partitions=(),
    )  # fmt: skip


FRESH = topic()
FED = topic(3, QUERY)
FED_BY_ROWS = topic(3, QUERY, ROWS.name, ROWS.selection)
FED_BY_OTHERS_ROWS = topic(None, OTHER, ROWS.name, ROWS.selection)

ACCEPTED_AT_3 = AcceptedCheckpoint((3, "hash 3"))


@pytest.mark.parametrize(
    ("asked", "checkpoint", "states", "claim"),
    [
        pytest.param(PLAIN, NEW, [FRESH], Claim(QUERY), id="first-run"),
        pytest.param(PLAIN, AT_3, [FED], Claim(QUERY), id="goes-on"),
        pytest.param(PLAIN, AT_3, [FED, FRESH], Claim(QUERY), id="a-topic-is-added"),
        pytest.param(accepting(PLAIN), AT_3, [FED], Claim(QUERY), id="nothing-to-accept"),
        pytest.param(accepting(PLAIN), AT_5, [FED], Claim(QUERY, accepted=AcceptedCheckpoint((5, "hash 5"))), id="ahead"),
        pytest.param(
            accepting(PLAIN), COPIED, [FED], Claim(QUERY, accepted=AcceptedCheckpoint((3, "another"))), id="copied"
        ),
        pytest.param(accepting(PLAIN), NEW, [FED], Claim(QUERY, accepted=AcceptedCheckpoint()), id="begins-anew"),
        pytest.param(
            accepting(PLAIN), NEW, [topic(None, OTHER)], Claim(QUERY, accepted=AcceptedCheckpoint()), id="new-to-the-topic"
        ),
        pytest.param(
            accepting(PLAIN), AT_3, [FED_BY_ROWS], Claim(QUERY, accepted=ACCEPTED_AT_3), id="lets-go-of-positions"
        ),
        pytest.param(BY_ROWS, NEW, [FRESH], Claim(QUERY, ROWS.name, ROWS.selection), id="positions-from-the-first-row"),
        pytest.param(BY_ROWS, AT_3, [FED_BY_ROWS], Claim(QUERY, ROWS.name, ROWS.selection), id="positions-go-on"),
        pytest.param(BY_ROWS, NEW, [FED_BY_OTHERS_ROWS], Claim(QUERY, ROWS.name, ROWS.selection), id="from-a-lost-query"),
        pytest.param(BY_ROWS, COPIED, [FED_BY_ROWS], Claim(QUERY, ROWS.name, ROWS.selection), id="for-a-checkpoint"),
        pytest.param(
            accepting(BY_ROWS), NEW, [FED], Claim(QUERY, ROWS.name, ROWS.selection, accepted=AcceptedCheckpoint()),
            id="positions-begin-with-a-new-checkpoint",
        ),
        pytest.param(
            accepting(BY_ROWS), NEW, [topic(None, OTHER, ROWS.name, "by other, columns")],
            Claim(QUERY, ROWS.name, ROWS.selection, accepted=AcceptedCheckpoint()), id="other-columns-begin-anew",
        ),
        pytest.param(BY_KAFKA, AT_3, [FED], Claim(QUERY, KAFKA.name, KAFKA.selection), id="kafka-tells-ends-at-any-time"),
        pytest.param(
            BY_KAFKA, AT_3, [topic(3, QUERY, KAFKA.name, "subscribe u")],
            Claim(QUERY, KAFKA.name, KAFKA.selection), id="kafka-may-read-other-topics",
        ),
    ],
)  # fmt: skip
def test_query_may_take_topics_over(
    asked: ClaimRequest, checkpoint: SeenCheckpoint, states: list[TopicState], claim: Claim
) -> None:
    assert decide_claim(asked, checkpoint, states) == claim
    assert decide_claim(replace(asked, take_over_others=True), checkpoint, states) == replace(
        claim, take_over_others=True
    )


@pytest.mark.parametrize(
    ("asked", "checkpoint", "states", "place", "problem"),
    [
        pytest.param(PLAIN, BROKEN, [FED], "cp", "is not complete", id="1-not-whole"),
        pytest.param(accepting(PLAIN), BROKEN, [FED], "cp", "is not complete", id="1-not-whole-is-never-accepted"),
        pytest.param(BY_ROWS, BROKEN, [FED_BY_ROWS], "cp", "is not complete", id="1-not-whole-in-spite-of-positions"),
        pytest.param(PLAIN, AT_5, [FED], "cp (query query)", "would be skipped", id="2-ahead"),
        pytest.param(BY_ROWS, AT_5, [FED_BY_ROWS], "cp (query query)", "would be skipped", id="2-ahead-of-positions"),
        pytest.param(PLAIN, COPIED, [FED], "cp (query query)", "copied or rolled back", id="2-copied"),
        pytest.param(PLAIN, NEW, [FED], "cp (query query)", "copied or rolled back", id="2-begun-anew"),
        pytest.param(
            BY_ROWS, COPIED, [FED_BY_ROWS, FED], "cp (query query)", "copied or rolled back", id="2-one-lacks-positions"
        ),
        pytest.param(PLAIN, COPIED, [FED_BY_ROWS], "cp (query query)", "copied or rolled back", id="2-comes-before-3"),
        pytest.param(PLAIN, AT_3, [FED_BY_ROWS], "columns at", "would store no positions", id="3-without-positions"),
        pytest.param(
            replace(PLAIN, source=replace(ROWS, name="json moved")), AT_3, [FED_BY_ROWS], "source at",
            "would store positions of json moved", id="3-with-others",
        ),
        pytest.param(
            BY_ROWS, AT_3, [topic(3, QUERY, ROWS.name, "by other, columns")], "columns at", "stores the positions of",
            id="4-other-columns",
        ),
        pytest.param(
            BY_ROWS, AT_3, [topic(3, QUERY, ROWS.name, "by other, columns"), FED], "columns at", "stores the positions of",
            id="4-other-columns-of-one",
        ),
        pytest.param(BY_ROWS, AT_3, [FED], "columns at", "these rows were committed without positions", id="5-begun-late"),
        pytest.param(
            accepting(BY_ROWS), AT_3, [FED], "columns at", "these rows were committed without positions",
            id="5-nothing-else-to-accept",
        ),
        pytest.param(
            accepting(BY_ROWS), AT_5, [FED], "columns at", "these rows were committed without positions",
            id="5-an-accepted-checkpoint-does-not-begin",
        ),
    ],
)  # fmt: skip
def test_query_may_not_take_topics_over(
    asked: ClaimRequest, checkpoint: SeenCheckpoint, states: list[TopicState], place: str, problem: str
) -> None:
    refused = decide_claim(asked, checkpoint, states)
    assert isinstance(refused, CheckpointError | ConfigError)
    assert refused.place == place
    assert problem in refused.problem
