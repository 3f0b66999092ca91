"""The positions of rows in their source: offsets files, and comparison with the committed positions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from pipeline.ingest.source_positions import POSITION, POSITION_OF, PositionedSource, RowPositions, SourceEnds
from pipeline.settings import Settings, load_settings
from storage_engine.errors import ConfigError, CorruptionError, OffsetOutOfRangeError, PositionsError
from storage_engine.topic.append.committed_positions import MOST_SOURCE_PARTITIONS
from storage_engine.topic.chain.topic_state import TopicState, Writer
from tests.stores import storage_at

SETTINGS = """
root: ./root
topics: {{t: {{}}}}
ingest:
  topic: t
  source: {{format: {format}, path: {path}, options: {{{options}}}}}
  value: value
  position.columns: {columns}
  position.source: {name}
"""
MESSAGES = "topic, partition, offset"
NO_WRITER = Writer(query=None)
KAFKA = PositionedSource("k", ("topic", "partition", "offset"), "kafka")
LAKELOG = PositionedSource("lakelog", ("topic", "partition", "offset"), "lakelog")


def settings(folder: Path, source: str, columns: str = MESSAGES, path="", options="", name="") -> Settings:
    file = folder / "settings.yaml"
    file.write_text(SETTINGS.format(format=source, path=path, options=options, columns=columns, name=name))
    return load_settings(file)


def rows(*found: tuple[object, ...]) -> pa.RecordBatch:
    """Rows of what names the source's partition and, last, the position."""
    columns = list(zip(*found, strict=True))
    names = [f"{POSITION_OF}{number}" for number in range(len(columns) - 1)] + [POSITION]
    return pa.RecordBatch.from_arrays([pa.array(column) for column in columns], names)


def state(positions: dict[str, dict[str, int]], writer: Writer = NO_WRITER) -> TopicState:
    return TopicState(
        id="b", parent="a", version=7, written_ms=0, change="", topic="t", topic_id="T", configs={}, queries={},
        writer=writer, positions=positions, partitions=(),
    )  # fmt: skip


def offsets(source: object) -> bytes:
    return b'v1\n{"batchWatermarkMs":0}\n' + json.dumps(source).encode()


@pytest.mark.parametrize(
    ("kind", "more", "name"),
    [
        ("kafka", {"options": "kafka.bootstrap.servers: 'b2:9092, b1:9092'"}, "kafka b1:9092,b2:9092"),
        ("lakelog", {"options": "subscribe: one"}, "lakelog"),
        ("kafka", {"name": "orders-cluster"}, "orders-cluster"),
        ("json", {"path": "/in", "columns": "shard, number"}, "json /in"),
    ],
)
def test_a_source_has_one_name_however_its_options_are_ordered(tmp_path, kind, more, name) -> None:
    found = PositionedSource.of(settings(tmp_path, kind, **more))
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize(
    ("kind", "columns", "message"),
    [
        ("kafka", "partition, offset", "found partition, offset. The position columns of a kafka source are topic"),
        ("rate", "value", "the topic stores positions under the name of the source, but a rate source has no name"),
    ],
)
def test_positions_that_would_not_tell_are_refused(tmp_path, kind, columns, message) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        PositionedSource.of(settings(tmp_path, kind, columns))
    assert refused.value.place.endswith("ingest.position.columns")


def test_without_columns_there_are_no_positions(tmp_path) -> None:
    assert PositionedSource.of(settings(tmp_path, "kafka", "")) is None


values = st.one_of(st.none(), st.sampled_from(["a", "b", "a/b"]))
positions = st.one_of(st.none(), st.integers(-5, 5))


@examples(deadline=None)
@given(
    found=st.lists(st.tuples(values, st.one_of(st.none(), st.integers(0, 2)), positions), min_size=1, max_size=12),
    before=st.dictionaries(st.sampled_from(["a/0", "a\\/b/1", "b/2"]), st.integers(-5, 5)),
)
def test_rows_are_committed_up_to_the_position_of_their_partition(found, before) -> None:
    batch = rows(*found)
    batch = batch.cast(pa.schema([(POSITION_OF + "0", "string"), (POSITION_OF + "1", "int64"), (POSITION, "int64")]))
    read = RowPositions.of(batch)
    highest: dict[str, int] = {}
    read.raise_highest(highest)

    names = [
        None if None in row else f"{str(row[0]).replace('/', chr(92) + '/')}/{row[1]}" for row in found
    ]  # as the state has them
    assert read.unknown.tolist() == [name is None for name in names]
    assert read.committed(before).tolist() == [
        name in before and row[2] <= before[name] for name, row in zip(names, found, strict=True)
    ]
    expected: dict[str, int] = {}
    for name, (_, _, position) in zip(names, found, strict=True):
        if name is not None:
            expected[name] = max(position, expected.get(name, position))
    assert highest == expected


def test_a_source_of_one_partition_needs_no_column_for_it() -> None:
    read = RowPositions.of(rows((3,), (9,)))
    assert read.committed({"": 3}).tolist() == [True, False]


def test_what_is_found_in_a_task_stays_small_whatever_comes() -> None:
    highest: dict[str, int] = {}
    for part in range(3):
        RowPositions.of(rows(*((f"{part}-{number}" * 300, 1) for number in range(4000)))).raise_highest(highest)
    assert len(highest) == MOST_SOURCE_PARTITIONS + 1
    with pytest.raises(PositionsError, match="has more than 4,096 partitions"):
        SourceEnds().advance("s", {}, highest)


def test_kafkas_offsets_tell_all_partitions_also_those_without_rows() -> None:
    ends = KAFKA.ends(offsets({"one": {"0": 5, "1": 0}, "two": {"0": 9}}), "place")
    advance = ends.advance("k", {"one/0": 2}, {"two/0": 8, "one/0": 3})
    assert advance.highest == {"one/0": 4, "two/0": 8}
    assert advance.compared_with == {"one/0": 2}
    assert ends.as_rows_say({"one/0": 2, "gone/0": 7}) == {"one/0": 2, "gone/0": 7}


def test_a_lakelog_topic_that_was_created_again_has_positions_of_its_own() -> None:
    ends = LAKELOG.ends(offsets({"one": {"topic_id": "NEW", "offsets": {"0": 5}}}), "place")
    assert ends.as_rows_say({"OLD/one/0": 99, "NEW/one/0": 3}) == {"one/0": 3}
    assert ends.advance("lakelog", {"OLD/one/0": 99}, {"one/0": 4}).highest == {"NEW/one/0": 4}


def test_a_source_that_counts_anew_under_the_same_name_is_refused() -> None:
    earlier, later = (KAFKA.ends(offsets({"one": {"0": end, "1": 7}}), "place") for end in (900, 5))
    with pytest.raises(
        PositionsError,
        match=r"end offset of partition one/0 of the source has decreased from 900 to 5.*position\.source",
    ):
        later.check_not_before(earlier, "place")
    earlier.check_not_before(later, "place")
    again = LAKELOG.ends(offsets({"one": {"topic_id": "NEW", "offsets": {"0": 5}}}), "place")
    again.check_not_before(LAKELOG.ends(offsets({"one": {"topic_id": "OLD", "offsets": {"0": 9}}}), "place"), "place")


def test_a_stream_that_begins_behind_what_is_committed_leaves_nothing_out() -> None:
    starts = SourceEnds({"one/0": 5, "one/1": 0})
    starts.check_reach({}, "place")
    starts.check_reach({"one/0": 4, "gone/0": 1}, "place")
    with pytest.raises(
        OffsetOutOfRangeError,
        match=r"begins at offset 5 of the source partition one/0, but rows are committed only up to offset 3\.",
    ):
        starts.check_reach({"one/0": 3}, "place")


def test_kafkas_source_tells_where_it_began_in_the_checkpoint(tmp_path) -> None:
    storage = storage_at(tmp_path)
    KAFKA.check_start(storage, "cp", {"one/0": 3})  # nobody tells
    storage.put_new("cp/sources/0/0", b'\0v1\n{"one":{"0":5}}')
    with pytest.raises(OffsetOutOfRangeError, match="failOnDataLoss"):
        KAFKA.check_start(storage, "cp", {"one/0": 3})
    replace(KAFKA, options={"failondataloss": "false"}).check_start(storage, "cp", {"one/0": 3})


def test_a_stream_of_lakelog_tells_where_it_began_in_its_first_end(tmp_path) -> None:
    storage = storage_at(tmp_path)
    end = {"one": {"topic_id": "ID", "offsets": {"0": 9, "1": 2}, "begun": {"0": 5}}}
    storage.put_new("cp/offsets/0", offsets(end | {"new": {"topic_id": "NEW", "offsets": {"0": 4}}}))
    with pytest.raises(OffsetOutOfRangeError, match="begins at offset 5 of the source partition one/0"):
        LAKELOG.check_start(storage, "cp", {"ID/one/0": 3})
    LAKELOG.check_start(storage, "cp", {"ID/one/0": 4, "ID/one/1": 0, "NEW/new/0": 0, "OLD/one/0": 0})


@pytest.mark.parametrize(
    ("kind", "options", "position", "known"),
    [
        ("kafka", {"subscribe": "one, two"}, "one/0", True),
        ("kafka", {"subscribe": "two"}, "one/0", False),
        ("kafka", {"subscribepattern": "[o[n]]e"}, "two/0", True),  # only Java knows this pattern
        ("lakelog", {"subscribepattern": "^on"}, "ID/one/0", True),
        ("lakelog", {"assign": '{"two": [0]}'}, "ID/one/0", False),
        ("lakelog", {"subscribe": "two"}, "of another kind", False),
        ("json", {}, "shard", True),
    ],
)
def test_a_topic_knows_a_stream_by_the_topics_that_the_stream_reads(kind, options, position, known) -> None:
    source = PositionedSource("s", (), kind, options)
    assert source.is_known(state({"s": {position: 3}})) is known
    assert source.is_known(state({"s": {}}, Writer(query="q", source="s", reads=source.selection)))
    assert not source.is_known(state({"other": {position: 3}}))


def test_partitions_that_are_committed_beyond_the_checkpoint_are_named() -> None:
    ends = LAKELOG.ends(offsets({"one": {"topic_id": "ID", "offsets": {"0": 5, "1": 9}}}), "place")
    assert ends.behind({"ID/one/0": 4, "ID/one/1": 9, "OLD/one/0": 99}) == ["one/1"]


@pytest.mark.parametrize("found", [b"v1\n{}\n-", b"", offsets([1]), offsets({"one": 5}), offsets({"one": {"0": "x"}})])
def test_offsets_of_another_kind_are_an_error(found: bytes) -> None:
    with pytest.raises(CorruptionError, match="for each topic, the offsets of its partitions"):
        KAFKA.ends(found, "place")
