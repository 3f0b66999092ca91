"""Tests that a topic's model is stored with the topic, and that a breaking change is refused at the start."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from jobs.export import export
from pipeline.export.export_request import add_export_options
from pipeline.ingest.ingesting import Ingest
from pipeline.job import run_job
from pipeline.model_changes import TopicSchemas
from pipeline.settings import load_settings
from pipeline.topic_model import SchemaChangedError, changed_model, record_model
from schemas.comparing import fingerprint, model_fields
from schemas.event_model import EventModel
from schemas.event_schema import EventSchema
from schemas.flight import Flight
from storage_engine.errors import ConflictError
from storage_engine.storage import Storage, StoredFile
from storage_engine.topic.chain.topic_state import RecordedField, TopicState
from storage_engine.topic.topics import Topics
from tests.pipeline.delta.order_models import schema_of
from tests.pipeline.ingest.ingest_runs import append_values, records_of, run_ingest, topics_of
from tests.roots.delta_tables import open_table
from tests.stores import files_below, root_at, storage_at

CONF = """
topics: {t: {partitions: 1, schema: flight}}
ingest:
  topic: t
  source: {format: json, path: SOURCE, schema: "n BIGINT"}
  value: to_json(struct(n))
export: {topic: t}
"""


class Grown(EventModel):
    n: int
    colour: str | None = None


class Order(EventModel):
    n: int


class Renamed(EventModel):
    number: int
    colour: str | None = None


def use(model: type[EventModel], conf: Path) -> None:
    text = conf.read_text()
    conf.write_text(re.sub(r"schema: [^ ]+}}", f"schema: '{schema_of(model).text}'}}}}", text))


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    conf = tmp_path / "conf.yaml"
    conf.write_text(CONF.replace("SOURCE", str(tmp_path / "source")))
    return conf


def next_file(conf: Path, number: int) -> None:
    (conf.parent / "source" / f"{number}.json").write_text(json.dumps({"n": number}))


@pytest.mark.spark
def test_an_ingest_keeps_the_model_and_refuses_one_that_breaks_readers(
    spark: SparkSession, conf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "root"
    versions = []
    models: list[type[EventModel]] = [Order, Order, Grown]
    for number, model in enumerate(models):
        use(model, conf)
        next_file(conf, number)
        run_ingest(spark, conf, root)
        state = topics_of(root).state("t")
        assert state.model is not None
        assert (state.model.name, state.model.fingerprint) == (model.__name__, fingerprint(model_fields(model)))
        versions.append(state.version)
    # Created, taken over, the model, a micro-batch; then a take-over and a micro-batch each, and the model that changed.
    assert versions == [3, 5, 8]
    assert topics_of(root).state("t").model.fields == {  # type: ignore[union-attr]
        "n": RecordedField(type="int", required=True, nullable=False),
        "colour": RecordedField(type="str", required=False, nullable=True),
    }

    use(Renamed, conf)
    next_file(conf, 3)
    problem = (
        f"{conf}, line 2, topics.t.schema: the new model is not compatible with the model that is recorded in topic t:"
        " n is removed; number is new and required. Nothing was changed. Choose one: (1) undo the change, for example keep"
        " the old field and add an optional new field; (2) accept the change once with --accept-schema. If the columns of an"
        " exported table do not fit the new model, also make the table again with `export --rebuild`, or choose another"
        " export.table."
    )
    with pytest.raises(SchemaChangedError) as refused:
        run_ingest(spark, conf, root)
    assert str(refused.value) == problem
    assert [record["value"] for record in records_of(root, "t")] == [b'{"n":0}', b'{"n":1}', b'{"n":2}']
    assert topics_of(root).state("t").version == 8

    # An export says the same, and accepts it where it is told to. Its table is not begun before.
    arguments = ["--conf", str(conf), "--root", root_at(root)]
    assert run_job("export", "", export, add_export_options, arguments, {}) == 1
    assert capsys.readouterr().err == f"export: {problem}\n"
    assert files_below(storage_at(root), "tables/") == []
    assert topics_of(root).state("t").version == 8
    use(Order, conf)  # what was refused is not remembered; that a field went is a change, too
    assert run_job("export", "", export, add_export_options, arguments, {}) == 1
    assert "is recorded in topic t: colour is removed." in capsys.readouterr().err


def overtaken(root: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Topics], object]) -> Topics:
    """Another process makes topic t when an ingest looks at its checkpoint, after the ingest saw that there is no topic."""
    kind: type[Storage] = type(storage_at(root))
    real = kind.list

    def listed(storage: Storage, prefix: str, after: str = "") -> Iterator[StoredFile]:
        others = topics_of(root)
        if prefix.startswith("checkpoints/") and others.find("t") is None:
            make(others)
        return real(storage, prefix, after)

    monkeypatch.setattr(kind, "list", listed)
    return topics_of(root)


@pytest.mark.spark
def test_a_topic_that_another_process_makes_meanwhile_is_fed_as_it_is(
    spark: SparkSession, conf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    use(Order, conf)
    next_file(conf, 0)
    settings = load_settings(conf, ["topics.t.partitions=2"], root_at(root))
    made: list[TopicState] = []

    def make(others: Topics) -> None:
        made.append(others.create("t", 1, {}))

    topics = overtaken(root, monkeypatch, make)
    result = Ingest(spark, settings, topics, report=lambda _: None).run()

    assert len(made) == 1
    assert topics.state("t").topic_id == made[0].topic_id
    assert [(record["partition"], record["value"]) for record in records_of(root, "t")] == [(0, b'{"n":0}')]
    assert result.notes == [
        "topic t has 1 partitions, but the settings say 2: `lakelog topics alter t --partitions N` adds partitions"
    ]


@pytest.mark.spark
def test_a_topic_that_another_process_makes_meanwhile_is_checked(
    spark: SparkSession, conf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    use(Renamed, conf)
    next_file(conf, 0)
    settings = load_settings(conf, [], root_at(root))

    def make(others: Topics) -> None:
        state = others.create("t", 1, {})
        wanted = changed_model(settings, "t", None, TopicSchemas(schema_of(Order)), accepted=False)
        assert wanted is not None
        record_model(others, state, wanted)

    topics = overtaken(root, monkeypatch, make)
    with pytest.raises(SchemaChangedError, match="recorded in topic t: n is removed"):
        Ingest(spark, settings, topics, report=lambda _: None).run()
    assert topics.state("t").version == 1, "not taken over"
    assert records_of(root, "t") == []


def test_a_change_that_was_accepted_is_recorded_where_nothing_waits(
    tmp_path: Path, conf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = topics_of(tmp_path / "root")
    state = topics.create("t", 1, {})
    use(Order, conf)
    wanted = changed_model(
        load_settings(conf, [], root_at(tmp_path / "root")),
        state.topic,
        state.model,
        TopicSchemas(schema_of(Order)),
        accepted=False,
    )
    assert wanted is not None
    record_model(topics, state, wanted)
    use(Renamed, conf)
    arguments = ["--conf", str(conf), "--root", root_at(tmp_path / "root")]
    for accepting, status, name in (([], 1, "Order"), (["--accept-schema"], 0, "Renamed"), ([], 0, "Renamed")):
        assert run_job("export", "", export, add_export_options, [*arguments, *accepting], {}) == status
        model = topics.state("t").model
        assert model is not None
        assert model.name == name
    assert topics.state("t").version == 2


@pytest.mark.spark
def test_a_replay_refuses_a_model_that_breaks_readers_and_records_one_that_was_accepted(
    spark: SparkSession, conf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "root"
    topics_of(root).create("t", 1, {})
    append_values(root, "t", '{"n":1}', '{"number":2}')
    arguments = ["--conf", str(conf), "--root", root_at(root), "--set", "export.max.dead.letter.share=1"]

    def ran(*more: str) -> tuple[int, str]:
        status = run_job("export", "", export, add_export_options, [*arguments, *more], {})
        model = topics_of(root).state("t").model
        return status, model.name if model else ""

    use(Order, conf)
    assert ran() == (0, "Order")
    use(Renamed, conf)
    before = open_table(storage_at(root), "tables/t").version()
    capsys.readouterr()
    assert ran("--replay") == (1, "Order")
    assert "n is removed; number is new and required" in capsys.readouterr().err
    assert open_table(storage_at(root), "tables/t").version() == before
    assert ran("--replay", "--accept-schema") == (0, "Renamed")
    rows = (
        open_table(storage_at(root), "tables/t")
        .to_pyarrow_table()
        .select(["_offset", "n", "number", "colour"])
        .to_pylist()
    )
    assert sorted(rows, key=lambda row: row["_offset"]) == [
        {"_offset": 0, "n": 1, "number": None, "colour": None},
        {"_offset": 1, "n": None, "number": 2, "colour": None},
    ]
    assert ran("--replay") == (0, "Renamed")


def test_a_model_does_not_replace_one_that_it_was_not_compared_with(
    tmp_path: Path, conf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = topics_of(tmp_path / "root")
    settings = load_settings(conf, [], root_at(tmp_path / "root"))
    compared = topics.create("t", 1, {})
    grown = changed_model(settings, compared.topic, compared.model, TopicSchemas(schema_of(Grown)), accepted=False)
    renamed = changed_model(settings, compared.topic, compared.model, TopicSchemas(schema_of(Renamed)), accepted=False)
    assert grown is not None
    assert renamed is not None
    there = record_model(topics, compared, grown)
    with pytest.raises(ConflictError) as refused:
        record_model(topics, compared, renamed)
    assert str(refused.value) == (
        "topic t: another job recorded the model Grown during this job, but this job used the model Renamed. Use one"
        " version of the model in all jobs of the topic, and start this job again."
    )
    assert topics.state("t") == there
    assert record_model(topics, compared, grown) == there  # another job recorded the same


KEYS, NO_KEYS = EventSchema("shop BIGINT NOT NULL", of_key=True), "_key_shop is removed"


@pytest.mark.parametrize(
    ("before", "after", "breaking"),
    [
        (TopicSchemas(keys=KEYS), TopicSchemas(), f"key.schema: {NO_KEYS}"),
        (TopicSchemas(schema_of(Order), KEYS), TopicSchemas(schema_of(Order)), f"key.schema: {NO_KEYS}"),
        (TopicSchemas(schema_of(Order), KEYS), TopicSchemas(), f"schema: {NO_KEYS}; n is removed"),
        (TopicSchemas(schema_of(Order), KEYS), TopicSchemas(keys=KEYS), "schema: n is removed"),
        (TopicSchemas(keys=KEYS), TopicSchemas(schema_of(Order), KEYS), None),
        (TopicSchemas(schema_of(Order)), TopicSchemas(schema_of(Order), KEYS), None),
    ],
)
def test_a_removed_schema_is_refused_and_a_first_one_is_accepted(
    tmp_path: Path, conf: Path, before: TopicSchemas, after: TopicSchemas, breaking: str | None
) -> None:
    settings = load_settings(conf, [], root_at(tmp_path / "root"))
    recorded = changed_model(settings, "t", None, before, accepted=False)
    if breaking is not None:
        setting, changes = breaking.split(": ")
        with pytest.raises(SchemaChangedError) as refused:
            changed_model(settings, "t", recorded, after, accepted=False)
        assert refused.value.place.endswith(f", topics.t.{setting}")
        assert refused.value.problem.endswith(f"is recorded in topic t: {changes}")
    accepted = changed_model(settings, "t", recorded, after, accepted=breaking is not None)
    assert accepted is not None
    assert accepted.fields.keys() == after.fields().keys()
    assert changed_model(settings, "t", accepted, after, accepted=False) is None


def test_a_topic_that_no_job_knew_a_model_of_takes_any(tmp_path: Path, conf: Path) -> None:
    topics = topics_of(tmp_path / "root")
    topics.create("t", 1, {})
    assert topics.state("t").model is None
    arguments = ["--conf", str(conf), "--root", root_at(tmp_path / "root")]
    assert run_job("export", "", export, add_export_options, arguments, {}) == 0  # nothing to read: nothing recorded
    assert topics.state("t").version == 0
    assert set(model_fields(Flight)) >= {"tailnum", "time_hour"}


@pytest.mark.parametrize("more", [(), ("--replay",), ("--accept-schema",)])
def test_an_export_that_lost_its_schema_changes_no_row(
    conf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...]
) -> None:
    root = tmp_path / "root"
    topics_of(root).create("t", 1, {})
    append_values(root, "t", '{"n":1}')
    arguments = ["--conf", str(conf), "--root", root_at(root)]

    def ran(*more: str) -> int:
        return run_job("export", "", export, add_export_options, [*arguments, *more], {})

    use(Order, conf)
    assert ran() == 0
    exported = open_table(storage_at(root), "tables/t").to_pyarrow_table()
    text = conf.read_text()
    conf.write_text(re.sub(r", schema: '[^']+'}}", "}}", text))
    append_values(root, "t", '{"n":2}')
    capsys.readouterr()
    assert ran(*more) == 1
    assert "topics.t.schema: no schema is set, but the table has columns of the model" in capsys.readouterr().err
    assert open_table(storage_at(root), "tables/t").to_pyarrow_table() == exported
    assert ran("--set", "export.table=tables/raw") == 0
    raw = open_table(storage_at(root), "tables/raw").to_pyarrow_table()
    assert sorted(raw["value"].to_pylist()) == [b'{"n":1}', b'{"n":2}']
    conf.write_text(text)
    assert ran() == 0
    assert sorted(open_table(storage_at(root), "tables/t").to_pyarrow_table()["n"].to_pylist()) == [1, 2]
