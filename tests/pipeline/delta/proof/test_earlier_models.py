"""Rows that an earlier model has decoded: if today's model gives another value, the row is not different, as long as the
digests prove that nobody has changed it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.delta.export_plan import ExportMode
from pipeline.delta.proof.findings import EARLIER_MODEL
from tests.pipeline.delta.order_models import OrderWithDefault, schema_of
from tests.pipeline.delta.proof.exported_topic import ExportedTopic, whole
from tests.roots.delta_tables import table_at

MODES = pytest.mark.parametrize("mode", list(ExportMode))
FAR = "equal as far as the log can tell"


def topic_with_two_models(tmp_path: Path, mode: ExportMode, *, digest: bool = True) -> ExportedTopic:
    """The first two records are exported without a default colour, and the third one with it."""
    topic = ExportedTopic(tmp_path, mode, partitions=1, digest=digest)
    topic.append((b"a", 1), (b"b", b'{"number": 2, "colour": "red"}'))
    topic.run_export()
    topic.export = replace(topic.export, schema=schema_of(OrderWithDefault))
    topic.append((b"c", 3))
    topic.run_export()
    rows = table_at(topic.export.table).to_pyarrow_table().sort_by("_offset").to_pylist()
    assert [(each["number"], each["colour"]) for each in rows] == [(1, None), (2, "red"), (3, "white")]
    return topic


@MODES
def test_a_row_of_an_earlier_model_is_covered_by_its_digest(tmp_path: Path, mode: ExportMode) -> None:
    topic = topic_with_two_models(tmp_path, mode)
    proof = topic.prove()
    assert whole(proof) == {
        "answer": FAR, "rows": 3, "equal": 2, "unprovable": {EARLIER_MODEL: 1}, "differences": [],
    }  # fmt: skip
    assert topic.prove(version=1).answer == FAR
    assert whole(topic.prove(since=1))["unprovable"] == {}


@MODES
@pytest.mark.parametrize("offset", [0, 1, 2])
def test_a_change_of_any_row_is_found(tmp_path: Path, mode: ExportMode, offset: int) -> None:
    topic = topic_with_two_models(tmp_path, mode)
    table_at(topic.export.table).update(predicate=f"_offset = {offset}", updates={"colour": "'blue'"})
    proof = topic.prove()
    assert proof.answer == "different"
    found = {(each.offset, each.problem) for each in proof.findings.differences}
    assert {(offset, "another value in colour"), (offset, "the row does not fit its digest")} <= found


@MODES
def test_only_digests_prove_that_a_row_is_of_an_earlier_model(tmp_path: Path, mode: ExportMode) -> None:
    topic = topic_with_two_models(tmp_path, mode, digest=False)
    assert whole(topic.prove())["differences"] == [(0, 0, "another value in colour")]
