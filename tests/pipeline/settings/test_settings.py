"""The settings from file, environment and command line, and the error of each kind of mistake."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from pydantic import ValidationError

from lakelog.ui.access.options import TOKEN_VARIABLE
from pipeline.settings import IngestSettings, Settings, SourceSettings, load_settings
from pipeline.settings.values import interval_ms
from storage_engine.config import topic_config
from storage_engine.errors import ConfigError, ExitStatus, UsageError
from storage_engine.storage.storage_options import VARIABLE

CONF = Path(__file__).parents[3] / "conf"

FLIGHTS = """\
root: ./lakelog-demo
broker: {num.partitions: 1}
topics:
  flights: {partitions: 2, cleanup.policy: compact, schema: flight}
  my.topic:
    segment.bytes: 4096
ingest:
  topic: flights
  source: {format: json, path: ./source, options: {maxFilesPerTrigger: 1}}
  key: tailnum
  value: to_json(struct(*))
  timestamp: time_hour
  trigger: available-now
  batch.size: 500000
export: {topic: flights, table: tables/flights}
"""


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    file = tmp_path / "flights.yaml"
    file.write_text(FLIGHTS)
    return file


def load(text: str, tmp_path: Path, *overrides: str, environ: Mapping[str, str] | None = None) -> Settings:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    return load_settings(file, overrides, None, environ)


def mistake(text: str, tmp_path: Path, *overrides: str, environ: Mapping[str, str] | None = None) -> str:
    """The message for a mistake, with the file as `settings.yaml`."""
    with pytest.raises(ConfigError) as failure:
        load(text, tmp_path, *overrides, environ=environ)
    return str(failure.value).replace(f"{tmp_path}/", "")


INGEST = "root: r\ningest:\n  topic: t\n  source: {format: rate}\n  value: value\n"
SEVERAL = (
    "root: r\ningest:\n  topics: [a, b]\n  topic.column: kind\n  checkpoint: checkpoints/ingest/router\n"
    "  source: {format: rate}\n  value: value\n"
)


# What a file says


def test_the_example_reads_as_written(conf: Path) -> None:
    settings = load_settings(conf, (), None, {})
    ingest = settings.required_ingest()
    assert settings.root == os.path.abspath("lakelog-demo")
    assert settings.broker.num_partitions == 1
    flights = settings.topic_definition("flights")
    assert (flights.partitions, flights.schema) == (2, "flight")
    assert flights.overrides == {"cleanup.policy": "compact"}
    assert (ingest.topic, ingest.key, ingest.value) == ("flights", "tailnum", "to_json(struct(*))")
    assert ingest.source.path == os.path.abspath("source")
    assert ingest.source.options == {"maxFilesPerTrigger": "1"}
    assert ingest.processing_time is None
    assert (ingest.batch_size_bytes, ingest.compression_type) == (500000, "uncompressed")
    assert settings.required_export().table == "tables/flights"


def test_what_is_left_out_has_its_default(tmp_path: Path) -> None:
    settings = load(f"{INGEST}export: {{topic: t}}\ntopics:\n  t:\n", tmp_path)
    ingest = settings.required_ingest()
    assert (ingest.key, ingest.headers, ingest.timestamp, ingest.partition) == (None, None, None, None)
    assert ingest.checkpoint == "checkpoints/ingest/t"
    assert (ingest.trigger, ingest.batch_size_bytes, ingest.compression_type) == (
        "available-now",
        1_000_000,
        "uncompressed",
    )
    assert (settings.required_export().table, settings.required_export().mode) == ("tables/t", None)
    assert settings.retention.topics is settings.compaction.topics is settings.maintenance.topics is None
    assert settings.topic_definition("t").overrides == {}


def test_partitions_default_to_the_brokers_and_are_known_as_not_given(tmp_path: Path) -> None:
    settings = load("root: r\nbroker: {num.partitions: 5}\ntopics: {a: {}, b: {partitions: 5}}\n", tmp_path)
    assert (settings.topics["a"].partitions, settings.topics["a"].partitions_given) == (5, False)
    assert (settings.topics["b"].partitions, settings.topics["b"].partitions_given) == (5, True)


def test_a_topic_inherits_from_the_broker_section(tmp_path: Path) -> None:
    text = "root: r\nbroker: {log.retention.hours: 1}\ntopics: {a: {segment.bytes: 2048}}\n"
    settings = load(text, tmp_path)
    config = topic_config(settings.broker, settings.topics["a"].overrides)
    assert (config.retention_ms, config.segment_bytes) == (3600000, 2048)


def test_the_sources_schema_defaults_to_the_topics(tmp_path: Path) -> None:
    assert load(f"{INGEST}topics: {{t: {{schema: flight}}}}\n", tmp_path).source_schema() == "flight"
    ddl = INGEST.replace("{format: rate}", "{format: json, path: p, schema: 'a INT, b STRING'}")
    assert load(f"{ddl}topics: {{t: {{schema: flight}}}}\n", tmp_path).source_schema() == "a INT, b STRING"
    assert load(INGEST, tmp_path).source_schema() is None


def test_values_are_the_text_as_written_and_not_what_yaml_makes_of_them(tmp_path: Path) -> None:
    text = (
        "root: r\ntopics: {2013: {}, no: {}}\ningest:\n  topic: 2013\n  value: 1.50\n  partition: 0\n"
        "  source: {format: rate, options: {version: 1.10, header: true, start: 12:30, code: 010}}\n"
    )
    settings = load(text, tmp_path)
    ingest = settings.required_ingest()
    assert (ingest.topic, ingest.value, ingest.partition) == ("2013", "1.50", "0")
    assert ingest.source.options == {"version": "1.10", "header": "true", "start": "12:30", "code": "010"}
    assert list(settings.topics) == ["2013", "no"]


def test_a_key_with_nothing_behind_it_counts_as_left_out(tmp_path: Path) -> None:
    text = (
        "root: r\nbroker:\ntopics:\nexport:\nmaintenance:\ningest:\n  topic: t\n  value: v\n  key:\n  trigger: ~\n"
        "  batch.size: null\n  source:\n    format: rate\n    options:\n"
    )
    settings = load(text, tmp_path)
    ingest = settings.required_ingest()
    assert (ingest.key, ingest.trigger, ingest.batch_size_bytes, ingest.source.options) == (
        None,
        "available-now",
        10**6,
        {},
    )
    assert (settings.export, settings.maintenance.topics, settings.topics) == (None, None, {})


def test_anchors_may_be_used_to_say_a_thing_once(tmp_path: Path) -> None:
    settings = load("root: r\ntopics: {a: &small {segment.bytes: 2048}, b: *small}\n", tmp_path)
    assert settings.topics["b"].overrides == {"segment.bytes": "2048"}


@pytest.mark.parametrize("text", ["[a, b]", "a, b", "\n    - a\n    - b", "'[a,b]'", "'[\"a\", b ]'"])
def test_topics_of_a_job_are_a_list_or_separated_by_commas(text: str, tmp_path: Path) -> None:
    settings = load(f"root: r\nmaintenance:\n  topics: {text}\n", tmp_path)
    assert settings.maintenance.topics == ("a", "b")


@pytest.mark.parametrize("text", ["[b.2, a]", "b.2, a", "\n    - b.2\n    - a"])
def test_an_ingest_of_several_topics_is_called_after_its_checkpoint(text: str, tmp_path: Path) -> None:
    ingest = load(SEVERAL.replace("[a, b]", text), tmp_path).required_ingest()
    assert (ingest.ingest_topics, ingest.topic_column, ingest.name) == (("a", "b.2"), "kind", "router")
    single = load(INGEST, tmp_path).required_ingest()
    assert (single.ingest_topics, single.topic_column, single.name) == (("t",), None, "t")


@pytest.mark.parametrize("name", ["root", "ingest", "topics"])
def test_settings_cannot_be_changed(name: str, conf: Path) -> None:
    settings = load_settings(conf)
    with pytest.raises(ValidationError, match="frozen"):
        setattr(settings, name, None)


def test_options_of_the_source_are_not_printed(conf: Path) -> None:
    settings = load_settings(conf, ["ingest.source.options.kafka.sasl.jaas.config=secret"])
    assert settings.required_ingest().source.options["kafka.sasl.jaas.config"] == "secret"
    assert "secret" not in repr(settings)


_HEAD = "root: r\ntopics: {t: {partitions: 1}}\n"
_OPTIONS = f"{_HEAD}ingest:\n  topic: t\n  value: v\n  source:\n    format: kafka\n    options:\n      kafka.sasl.jaas.config: "


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        (f"{_OPTIONS}*hidden\n", []),
        (f"{_OPTIONS}!hidden\n", []),
        (f"{_OPTIONS}!hidden!x\n", []),
        (f"{_OPTIONS}&hidden x\n      b: &hidden y\n      c: *hidden2\n", []),
        (f"{_OPTIONS}@hidden\n", []),
        (f"{_OPTIONS}%hidden\n", []),
        (f'{_OPTIONS}"hidden" password="hidden";\n', []),
        (f'{_OPTIONS}"hid\\qden"\n', []),
        (f"{_OPTIONS}[hidden]\n", []),
        (f"{_OPTIONS}{{a: hidden}}\n", []),
        (f"{_HEAD}ingest: {{topic: t, value: v, source: {{format: kafka, options: hidden}}}}\n", []),
        (f"{_HEAD}ingest: {{topic: t, value: v, source: {{format: kafka, kafka.sasl.jaas.config: hidden}}}}\n", []),
        (f"{_HEAD}storage: {{options: hidden}}\n", []),
        (f"{_HEAD}storage: hidden\n", []),
        (f"{_HEAD}storage: {{options: {{aws_secret_access_key: [hidden]}}}}\n", []),
        (f"{_HEAD}schemas: {{registry.password: [hidden]}}\n", []),
        (f"{_HEAD}schemas: {{registry.pasword: hidden}}\n", []),
        (f"{_HEAD}topics: {{t: {{schema: flight, schema.registry: [hidden]}}}}\n", []),
        (_HEAD, ["storage.options.aws_secret_access_key:hidden"]),
        (_HEAD, ["storage.options.aws_secret_access_key hidden"]),
        (_HEAD, ["storage.option.aws_secret_access_key=hidden"]),
        (_HEAD, ["ingest.source.option.kafka.sasl.jaas.config=hidden"]),
    ],
)
def test_a_secret_that_is_written_wrongly_is_not_printed(text: str, arguments: list[str], tmp_path: Path) -> None:
    conf = tmp_path / "settings.yaml"
    conf.write_text(text)
    with pytest.raises(UsageError) as refused:
        load_settings(conf, arguments)
    assert "hid" not in str(refused.value)
    assert str(refused.value).startswith(("--set", f"{conf}, line "))


@pytest.mark.parametrize("name", ["flights", "rate"])
def test_the_files_in_conf_are_valid(name: str) -> None:
    settings = load_settings(CONF / f"{name}.yaml")
    assert settings.required_ingest().topic in settings.topics


# Where things lie


@pytest.mark.parametrize("root", ["s3://bucket/logs", "file:///var/lakelog", "/var/lakelog"])
def test_a_uri_or_an_absolute_root_stays_as_it_is(root: str, tmp_path: Path) -> None:
    assert load(f"root: {root}\n", tmp_path).root == root


def test_root_comes_from_the_argument_before_the_environment_before_the_file(conf: Path) -> None:
    environ = {"LAKELOG_ROOT": "/environment"}
    assert load_settings(conf, (), "/argument", environ).root == "/argument"
    assert load_settings(conf, (), None, environ).root == "/environment"
    assert load_settings(conf, ["root=/set"], None, environ).root == "/set"
    assert load_settings(None, (), "/argument").root == "/argument"


def test_no_root_anywhere_says_where_it_could_come_from(tmp_path: Path) -> None:
    message = mistake("topics: {a: {}}\n", tmp_path)
    assert message.startswith("settings.yaml: the setting root is missing")
    assert "LAKELOG_ROOT" in message
    assert "--root" in message


@pytest.mark.parametrize("table", ["/tables/t", "s3://b/t", "~/t", "../t", "tables/../../t", ".", "''"])
def test_a_table_outside_the_root_is_refused(table: str, tmp_path: Path) -> None:
    message = mistake(f"root: r\nexport:\n  topic: t\n  table: {table}\n", tmp_path)
    assert message.startswith("settings.yaml, line 4, export.table: ")
    assert "below the root" in message


@pytest.mark.parametrize(
    "table", ["tables", "tables/dead_letters", "./tables//dead_letters/", "tables/dead_letters/export/t"]
)
def test_a_table_may_not_mix_with_the_dead_letters(table: str, tmp_path: Path) -> None:
    message = mistake(f"root: r\nexport: {{topic: t, table: {table}}}\n", tmp_path)
    assert "tables/dead_letters is reserved for dead letters" in message


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ("tables/a/_delta_log", "_delta_log is the folder of a table's log; found 'tables/a/_delta_log'"),
        ('"tables/a\\nb"', "expected a path of printable characters; found 'tables/a\\nb'"),
    ],
)
def test_a_table_has_a_path_that_delta_can_use(table: str, problem: str, tmp_path: Path) -> None:
    assert problem in mistake(f"root: r\nexport: {{topic: t, table: {table}}}\n", tmp_path)


def test_the_default_table_of_a_topic_called_dead_letters_is_refused(tmp_path: Path) -> None:
    assert "tables/dead_letters" in mistake("root: r\nexport: {topic: dead_letters}\n", tmp_path)
    assert (
        load("root: r\nexport: {topic: dead_letters, table: tables/dl}\n", tmp_path).required_export().table
        == "tables/dl"
    )


@pytest.mark.parametrize("directory", ["meta", "data/x", "staging", "log/t-0"])
def test_tables_and_checkpoints_keep_out_of_the_logs_own_directories(directory: str, tmp_path: Path) -> None:
    assert "is reserved for other files" in mistake(f"root: r\nexport: {{topic: t, table: {directory}}}\n", tmp_path)
    assert "is reserved for other files" in mistake(f"{INGEST}  checkpoint: {directory}\n", tmp_path)


# Triggers


@pytest.mark.parametrize(
    "trigger", ["10 seconds", "1 minute", "interval 500 milliseconds", "1 HOUR 30 Minutes", "0.5 seconds", "0 seconds"]
)
def test_an_interval_that_spark_takes_is_a_trigger(trigger: str, tmp_path: Path) -> None:
    assert load(f"{INGEST}  trigger: {trigger}\n", tmp_path).required_ingest().processing_time == trigger


@pytest.mark.parametrize(
    "trigger", ["10", "10s", "soon", "-5 seconds", "1 month", "1.5 minutes", "once", "available_now"]
)
def test_another_trigger_is_refused_with_an_example(trigger: str, tmp_path: Path) -> None:
    message = mistake(f"{INGEST}  trigger: {trigger}\n", tmp_path)
    assert message.startswith(f"settings.yaml, line 6, ingest.trigger: expected a trigger; found '{trigger}'.")
    assert '"10 seconds"' in message


@pytest.mark.parametrize(
    ("interval", "milliseconds"),
    [
        ("10 seconds", 10_000),
        ("1 week 2 days", 777_600_000),
        ("interval 1 day -1 hour", 82_800_000),
        ("10 seconds 5 seconds", 15_000),
        (".5 seconds", 500),
        ("5. seconds", 5_000),
        ("+5 seconds", 5_000),
        ("10seconds", None),
        ("10 sec", None),
        ("1 second 500 ms", None),
        ("1 nanosecond", None),
        ("1.1234567890123 seconds", None),
        ("9999999999999999 weeks", None),
        ("1 minutes,2 seconds", None),
        ("interval", None),
    ],
)
def test_intervals_are_read_as_spark_4_2_reads_them(interval: str, milliseconds: int | None) -> None:
    assert interval_ms(interval) == milliseconds


# --set


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("topics.flights.cleanup.policy=delete", {"cleanup.policy": "delete"}),
        ("topics.flights.internal.segment.bytes=1024", {"cleanup.policy": "compact", "segment.bytes": "1024"}),
    ],
)
def test_set_finds_keys_that_hold_dots(conf: Path, argument: str, expected: dict[str, str]) -> None:
    assert load_settings(conf, [argument]).topics["flights"].overrides == expected


def test_set_finds_topics_that_hold_dots(conf: Path) -> None:
    assert load_settings(conf, ["topics.my.topic.partitions=3"]).topics["my.topic"].partitions == 3


def test_set_prefers_the_longer_of_two_topics(tmp_path: Path) -> None:
    text = "root: r\ntopics: {a: {}, a.internal: {}}\n"
    settings = load(text, tmp_path, "topics.a.internal.segment.bytes=2048")
    assert settings.topics["a.internal"].overrides == {"segment.bytes": "2048"}
    assert settings.topics["a"].overrides == {}


def test_set_takes_sections_of_any_depth(conf: Path) -> None:
    arguments = [
        "broker.num.partitions=3",
        "ingest.batch.size=7",
        "ingest.compression.type=zstd",
        "ingest.source.options.maxFilesPerTrigger=2",
        "ingest.source.options.multiLine=true",
        "retention.topics=a,b",
    ]
    settings = load_settings(conf, arguments)
    ingest = settings.required_ingest()
    assert settings.broker.num_partitions == 3
    assert (ingest.batch_size_bytes, ingest.compression_type) == (7, "zstd")
    assert ingest.source.options == {"maxFilesPerTrigger": "2", "multiLine": "true"}
    assert settings.retention.topics == ("a", "b")


def test_set_takes_an_sql_expression_word_for_word(conf: Path) -> None:
    expression = "concat('a: b=', tailnum) -- #1"
    assert load_settings(conf, [f"ingest.value={expression}"]).required_ingest().value == expression


def test_set_knows_an_option_whatever_its_capitals(conf: Path) -> None:
    settings = load_settings(conf, ["ingest.source.options.maxfilespertrigger=9"])
    assert settings.required_ingest().source.options == {"maxFilesPerTrigger": "9"}


def test_the_last_set_wins(conf: Path) -> None:
    assert load_settings(conf, ["ingest.batch.size=1", "ingest.batch.size=2"]).required_ingest().batch_size_bytes == 2


def test_set_may_describe_a_new_topic_that_a_section_names(conf: Path) -> None:
    arguments = ["topics.new.clicks.partitions=4", "topics.new.clicks.retention.ms=5", "ingest.topic=new.clicks"]
    topic = load_settings(conf, arguments).topics["new.clicks"]
    assert (topic.partitions, topic.overrides) == (4, {"retention.ms": "5"})


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        (
            "ingest.bach.size=1",
            "--set ingest.bach.size: there is no such setting. The nearest valid key is ingest.batch.size.",
        ),
        (
            "ingest.batch.size",
            "--set: expected KEY=VALUE; found 'ingest.batch.size'. For example ingest.batch.size=500000.",
        ),
        (
            "ingest.source=json",
            "--set ingest.source: is a section, not a single setting. Set one of its keys, for example ",
        ),
        (
            "ingest.batch.size=big",
            "--set ingest.batch.size: expected a whole number of bytes, at least 1; found 'big'.",
        ),
        (
            "topics.flihgts.partitions=1",
            "the topic flihgts is named neither in the section `topics` nor in the section of a job. Did you mean",
        ),
        (
            "topics.flights.cleanup.polcy=x",
            "unknown topic key cleanup.polcy with value 'x'. The nearest valid key is cleanup.p",
        ),
        ("topics.flights.min.insync.replicas=2", "would have no effect in Lakelog"),
        ("broker.retention.ms=1", "The broker's key that sets the default of all topics is log.retention.ms."),
        ("ingest.value=", "--set ingest.value: expected some text; found none."),
        ("root=", "--set root: expected some text; found none."),
    ],
)
def test_a_wrong_set_is_a_usage_error(conf: Path, argument: str, message: str) -> None:
    with pytest.raises(UsageError) as failure:
        load_settings(conf, [argument])
    assert message in str(failure.value)
    assert failure.value.exit_status is ExitStatus.USAGE


# The environment


def test_variables_are_paths_in_capitals(conf: Path) -> None:
    environ = {
        "LAKELOG_INGEST_BATCH_SIZE": "77",
        "LAKELOG_TOPICS_FLIGHTS_CLEANUP_POLICY": "delete",
        "LAKELOG_TOPICS_MY_TOPIC_PARTITIONS": "9",
        "LAKELOG_BROKER_NUM_PARTITIONS": "3",
        "LAKELOG_INGEST_SOURCE_OPTIONS_MAXFILESPERTRIGGER": "12",
        "LAKELOG_MAINTENANCE_TOPICS": "a,b",
        "LAKELOG_INGEST_KEY": "",
        "PATH": "/bin",
    }
    settings = load_settings(conf, (), None, environ)
    ingest = settings.required_ingest()
    assert (ingest.batch_size_bytes, ingest.key) == (77, "tailnum")
    assert settings.topics["flights"].overrides == {"cleanup.policy": "delete"}
    assert settings.topics["my.topic"].partitions == 9
    assert settings.broker.num_partitions == 3
    assert ingest.source.options == {"maxFilesPerTrigger": "12"}
    assert settings.maintenance.topics == ("a", "b")


def test_set_beats_the_environment_beats_the_file(conf: Path) -> None:
    environ = {"LAKELOG_INGEST_BATCH_SIZE": "2"}
    assert load_settings(conf).required_ingest().batch_size_bytes == 500000
    assert load_settings(conf, (), None, environ).required_ingest().batch_size_bytes == 2
    assert load_settings(conf, ["ingest.batch.size=3"], None, environ).required_ingest().batch_size_bytes == 3


def test_an_unknown_variable_names_the_nearest(conf: Path) -> None:
    with pytest.raises(ConfigError) as failure:
        load_settings(conf, (), None, {"LAKELOG_INGEST_BACH_SIZE": "1"})
    assert str(failure.value) == (
        "environment variable LAKELOG_INGEST_BACH_SIZE: matches no setting."
        " The nearest valid name is LAKELOG_INGEST_BATCH_SIZE."
    )


def test_variables_of_the_storage_and_of_the_ui_are_no_settings(conf: Path) -> None:
    environ = {VARIABLE: "{}", TOKEN_VARIABLE: "0123456789abcdef"}
    assert load_settings(conf, (), None, environ) == load_settings(conf, (), None, {})


def test_a_variable_that_could_mean_two_topics_is_refused(tmp_path: Path) -> None:
    environ = {"LAKELOG_TOPICS_A_B_PARTITIONS": "2"}
    message = mistake("root: r\ntopics: {a.b: {}, a-b: {}}\n", tmp_path, environ=environ)
    assert "matches both topics.a.b.partitions and topics.a-b.partitions" in message


def test_a_wrong_value_names_the_variable(conf: Path) -> None:
    with pytest.raises(UsageError, match="environment variable LAKELOG_INGEST_BATCH_SIZE: expected a whole number"):
        load_settings(conf, (), None, {"LAKELOG_INGEST_BATCH_SIZE": "big"})


# Mistakes in a file


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("root: r\nigest: {}\n", "settings.yaml, line 2, igest: unknown key igest. The nearest valid key is ingest."),
        (
            f"{INGEST}  bach.size: 5\n",
            "settings.yaml, line 6, ingest.bach.size: unknown key bach.size. The nearest valid key is ingest.batch.size.",
        ),
        (
            INGEST.replace("  value:", "  valeu:"),
            "settings.yaml, line 5, ingest.valeu: unknown key valeu. The nearest valid key is ingest.value.",
        ),
        (
            INGEST.replace("format: rate", "format: rate, optons: {}"),
            "settings.yaml, line 4, ingest.source.optons: unknown key optons. The nearest valid key is ingest.source.options.",
        ),
        (
            "root: r\ntopics:\n  flights:\n    cleanup.polcy: compact\n",
            (
                "settings.yaml, line 4, topics.flights.cleanup.polcy: unknown topic key cleanup.polcy with value 'compact'."
                " The nearest valid key is cleanup.policy."
            ),
        ),
        (
            "root: r\ntopics: {flights: {partition: 2}}\n",
            (
                "settings.yaml, line 2, topics.flights.partition: unknown topic key partition with value '2'."
                " The nearest valid key is partitions."
            ),
        ),
        (
            "root: r\ntopics:\n  flights:\n    cleanup: {policy: compact}\n",
            (
                "settings.yaml, line 4, topics.flights.cleanup: unknown topic key cleanup with value a section of keys."
                " The nearest valid key is cleanup.policy."
            ),
        ),
        (
            "root: r\ntopics: {flights: {partitions: two}}\n",
            (
                "settings.yaml, line 2, topics.flights.partitions: expected a whole number, at least 1; found 'two'."
                " The default is 1."
            ),
        ),
        (
            "root: r\ntopics: {flights: {segment.bytes: 1MB}}\n",
            (
                "settings.yaml, line 2, topics.flights.segment.bytes: expected a whole number of bytes, at least 1024;"
                " found '1MB'. The default is 1073741824."
            ),
        ),
        (
            "root: r\nbroker:\n  log.roll.hours: 0\n",
            (
                "settings.yaml, line 3, broker.log.roll.hours: expected a whole number of hours, at least 1; found '0'."
                " The default is 168."
            ),
        ),
        (
            "root: r\nbroker:\n  flush.ms: 5\n",
            (
                "settings.yaml, line 3, broker.flush.ms: Kafka's key flush.ms (found with value '5') would have no effect in"
                " Lakelog: every commit is synced to storage before it takes effect. Remove the key."
            ),
        ),
        (
            "root: r\ntopics: {us/flights: {}}\n",
            (
                "settings.yaml, line 2, topics.us/flights: '/' at position 2 is not allowed in a topic's name."
                " Use letters, digits, '.', '_' and '-'."
            ),
        ),
        (
            INGEST.replace("topic: t", "topic: us flights"),
            (
                "settings.yaml, line 3, ingest.topic: ' ' at position 2 is not allowed in a topic's name; found 'us flights'."
                " Use letters, digits, '.', '_' and '-'."
            ),
        ),
        ("root: r\ntopics: [a]\n", "settings.yaml, line 2, topics: expected a section of keys; found a list."),
        ("root: r\nexport: t\n", "settings.yaml, line 2, export: expected a section of keys; found text."),
        ("root: [a]\n", "settings.yaml, line 1, root: expected a path or URI; found a list."),
        (
            "root: r\nexport: {topic: t, mode: merge}\n",
            "settings.yaml, line 2, export.mode: expected upsert, append or changelog;",
        ),
        (
            f"{INGEST}  compression.type: producer\n",
            (
                "settings.yaml, line 6, ingest.compression.type: expected one of uncompressed, gzip, snappy, lz4, zstd;"
                " found 'producer'. The default is uncompressed."
            ),
        ),
        (
            INGEST.replace("  value: value\n", ""),
            "settings.yaml, line 2, ingest: the key ingest.value is missing. The record's value. NULL makes the",
        ),
        (
            INGEST.replace("  topic: t\n", ""),
            "settings.yaml, line 2, ingest: the key ingest.topic is missing. Give the topic to append to, or ingest.topics",
        ),
        (
            INGEST.replace("topic: t", "topic: t\n  topic.column: kind"),
            "settings.yaml, line 2, ingest: ingest.topic is given together with ingest.topics or ingest.topic.column.",
        ),
        (
            SEVERAL.replace("[a, b]", "[a, b, a]"),
            "settings.yaml, line 2, ingest: ingest.topics contains a topic twice. List each topic once.",
        ),
        (
            SEVERAL.replace("[a, b]", "[]"),
            "settings.yaml, line 2, ingest: ingest.topics contains no topic.",
        ),
        (
            SEVERAL.replace("[a, b]", "[a, b/c]"),
            "settings.yaml, line 3, ingest.topics: '/' at position 1 is not allowed in a topic's name; found 'b/c'.",
        ),
        (
            SEVERAL.replace("  topic.column: kind\n", ""),
            "settings.yaml, line 2, ingest: the key ingest.topic.column is missing. Set the key to an expression",
        ),
        (
            SEVERAL.replace("  checkpoint: checkpoints/ingest/router\n", ""),
            "settings.yaml, line 2, ingest: the key ingest.checkpoint is missing, and it has no default if there are several",
        ),
        (
            INGEST.replace("value: value", "value:"),
            "settings.yaml, line 5, ingest.value: expected a Spark SQL expression; found nothing.",
        ),
        (
            INGEST.replace("format: rate", "format: rate, options: {path: a, Path: b}"),
            "settings.yaml, line 4, ingest.source.options: path and Path are the same option, because Spark ignores case.",
        ),
        (
            INGEST.replace("format: rate", "format: rate, options: {path: [a]}"),
            "settings.yaml, line 4, ingest.source.options.path: expected text; found a list.",
        ),
        (
            "root: r\ntopics: {t: {min.compaction.lag.ms: 9, max.compaction.lag.ms: 8}}\n",
            "settings.yaml, line 2, topics.t, min.compaction.lag.ms: expected a value of at most max.compaction.lag.ms",
        ),
    ],
)
def test_a_mistake_names_file_line_and_key(text: str, message: str, tmp_path: Path) -> None:
    assert mistake(text, tmp_path).startswith(message)


def test_a_key_that_stands_twice_names_both_lines(tmp_path: Path) -> None:
    text = "root: r\ntopics:\n  a: {}\n  b: {}\n  a: {partitions: 2}\n"
    assert mistake(text, tmp_path) == (
        "settings.yaml, line 5, topics.a: line 3 has the key a already. Remove one of the two lines."
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "settings.yaml: has no settings."),
        ("# only a comment\n", "settings.yaml: has no settings."),
        ("- a\n", "settings.yaml, line 1: expected keys with values, as in `key: value`; found a list."),
        ("hello\n", "settings.yaml, line 1: expected keys with values, as in `key: value`; found text."),
        ("root: r\ntopics: {a: \n", "settings.yaml, line 3: is not YAML: "),
        ("root: r\n\ttopics: {}\n", "settings.yaml, line 2: is not YAML: "),
        ("root: r\n---\nroot: s\n", "settings.yaml, line 2: is not YAML: expected a single document"),
        ("root: \x07\n", "settings.yaml: is not YAML: "),
        (
            "root: r\ntopics: &t {a: *t}\n",
            "settings.yaml, line 2, topics.a: the alias (*name) is inside the section that it",
        ),
        (
            "root: !env HOME\n",
            "settings.yaml, line 1, root: a YAML tag (!name) has no meaning here. Write the value without a tag, or in quotes.",
        ),
        ("root: r\n[a, b]: c\n", "settings.yaml, line 2: expected a key; found a list or a section."),
    ],
)
def test_a_file_that_is_no_settings_file_says_why(text: str, message: str, tmp_path: Path) -> None:
    assert mistake(text, tmp_path).startswith(message)


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.yaml: cannot be read: No such file or directory"):
        load_settings(tmp_path / "missing.yaml")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_settings(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"root: fl\xfcge\n")
    with pytest.raises(ConfigError, match="is not UTF-8 text: byte 8 is 0xfc"):
        load_settings(tmp_path / "latin.yaml")


# What jobs ask


def test_a_topic_that_is_not_described_names_the_nearest(conf: Path) -> None:
    with pytest.raises(ConfigError, match=r"do not describe the topic flihgts\. Did you mean flights\?"):
        load_settings(conf).topic_definition("flihgts")


def test_a_job_without_its_section_says_what_to_give(tmp_path: Path) -> None:
    settings = load("root: r\n", tmp_path)
    with pytest.raises(
        ConfigError,
        match=r"settings\.yaml: the section ingest, which this job needs, is missing\. Add the section with the keys topic",
    ):
        settings.required_ingest()
    with pytest.raises(ConfigError, match="the section export, which this job needs, is missing"):
        settings.required_export()


def test_a_setting_knows_where_it_was_given(conf: Path) -> None:
    settings = load_settings(conf, ["ingest.timestamp=now()"], None, {"LAKELOG_INGEST_KEY": "origin"})
    assert settings.place_of("ingest.value") == f"{conf}, line 11, ingest.value"
    assert settings.place_of("ingest.key") == "environment variable LAKELOG_INGEST_KEY"
    assert settings.place_of("ingest.timestamp") == "--set ingest.timestamp"
    assert settings.place_of("ingest.headers") == f"{conf}, ingest.headers"


def test_every_setting_is_documented() -> None:
    for section in (IngestSettings, SourceSettings):
        for key, field in section.fields_by_key().items():
            assert key == "source" or (field.description or "").endswith("."), key


# Databases

_JDBC = "root: r\nexport:\n  topic: t\n  jdbc: {{url: '{url}', table: t, user: u{more}}}\n"


def test_the_registry_of_a_topic_and_its_password_come_from_the_environment(tmp_path: Path) -> None:
    conf = tmp_path / "settings.yaml"
    conf.write_text("root: r\ntopics: {orders: {schema: o.avsc, schema.registry: folder}}\n")
    found = {
        "LAKELOG_SCHEMAS_REGISTRY_PASSWORD": "hidden",
        "LAKELOG_TOPICS_ORDERS_SCHEMA_REGISTRY": " http://registry ",
    }
    settings = load_settings(conf, (), None, found)
    assert (settings.topics["orders"].schema, settings.topics["orders"].registry) == ("o.avsc", "http://registry")
    assert dict(settings.topics["orders"].overrides) == {}, "the state of a topic does not contain them"
    assert settings.schemas.registry_password == "hidden"
    assert "hidden" not in repr(settings)


def test_the_password_of_a_database_comes_from_the_environment(tmp_path: Path) -> None:
    conf = tmp_path / "settings.yaml"
    conf.write_text(_JDBC.format(url="jdbc:postgresql://[::1]/shop", more=""))
    settings = load_settings(conf, (), None, {"LAKELOG_EXPORT_JDBC_PASSWORD": "hidden"})
    jdbc = settings.required_export().jdbc
    assert jdbc is not None
    target = jdbc.target()
    assert (target.host, target.port, target.database, target.schema) == ("::1", 5432, "shop", "public")
    assert target.password == "hidden"
    assert "hidden" not in f"{settings!r}{target!r}{target}"
    assert settings.required_export().shown_table == "jdbc:postgresql://::1:5432/shop public.t"


@pytest.mark.parametrize(
    ("url", "more", "words"),
    [
        ("jdbc:oracle://h/d", "", "found the database oracle"),
        ("postgresql://h/d", "", "expected the JDBC URL of a database"),
        ("jdbc:mysql://h:0/d", "", "found the port 0"),
        ("jdbc:mysql://u:hidden@h/d", "", "the URL has a user, a password or parameters"),
        ("jdbc:mysql://h/d?password=hidden", "", "the URL has a user, a password or parameters"),
        ("jdbc:mysql://h/d", ", schema: s", "found jdbc.schema, which only PostgreSQL has"),
        ("jdbc:mysql://h/d", ", password: [hidden]", "the value is not shown"),
        ("jdbc:mysql://h/d", "}\n  jdbc.url: x #", "unknown key jdbc.url"),
        ("jdbc:mysql://h/d", "}\n  mode: append #", "found the mode append"),
        ("jdbc:mysql://h/d", "}\n  table: tables/t #", "found both keys, table and jdbc"),
        ("jdbc:mysql://h/d", "}\n  headers: true #", "has no headers"),
        ("jdbc:mysql://h/d", "}\n  readers: spark #", "found readers"),
        ("jdbc:mysql://h/d", "}\n  partition.by: a #", "found partition.by"),
        ("jdbc:mysql://h/d", "}\n  cluster.by: [] #", "found cluster.by"),
    ],
)
def test_a_wrong_section_of_a_database_is_refused_without_its_secrets(
    url: str, more: str, words: str, tmp_path: Path
) -> None:
    message = mistake(_JDBC.format(url=url, more=more), tmp_path)
    assert words in message
    assert "hidden" not in message
    assert message.startswith("settings.yaml, line ")


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ("partition.by: a, cluster.by: b", "found both keys, partition.by and cluster.by"),
        ("partition.by: [a, b, a]", "found a column twice in partition.by"),
        ("cluster.by: [a, b, c, d, e]", "found 5 columns in cluster.by"),
    ],
)
def test_a_wrong_layout_of_a_table_is_refused(keys: str, words: str, tmp_path: Path) -> None:
    message = mistake(f"root: r\nexport: {{topic: t, {keys}}}\n", tmp_path)
    assert words in message
    assert message.startswith("settings.yaml, line 2")


def test_each_table_of_a_database_has_one_export(tmp_path: Path) -> None:
    """Exports of one topic into a database and into Delta are two tables, and so are tables of two databases."""
    exports = (
        "root: r\nexports:\n  a: {{topic: t}}\n"
        "  b: {{topic: t, jdbc: {{url: 'jdbc:postgresql://h/d', table: t, user: u}}}}\n"
        "  c: {{topic: t, jdbc: {{url: 'jdbc:postgresql://h:5432/{database}', table: t, user: v}}}}\n"
    )
    tables = [each.shown_table for each in load(exports.format(database="e"), tmp_path).exports.values()]
    assert tables == ["tables/t", "jdbc:postgresql://h:5432/d public.t", "jdbc:postgresql://h:5432/e public.t"]
    message = mistake(exports.format(database="d"), tmp_path)
    assert "the exports b and c have the same table, jdbc:postgresql://h:5432/d public.t" in message
