"""The meaning of the options, without Spark, in tables of cases."""

from __future__ import annotations

import re

import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    MapType,
    NullType,
    StringType,
    StructType,
    TimestampNTZType,
    VarcharType,
    VariantType,
    YearMonthIntervalType,
)

from lakelog.spark.options.bounds import Edge, Offsets, Time, Times
from lakelog.spark.options.partition_json import numbers_in, partitions_in
from lakelog.spark.options.source_options import (
    StreamGroup,
    common_options,
    ignored_warning,
    stream_group,
    stream_limits,
    worker_environment,
)
from lakelog.spark.options.topic_choice import topic_choice
from lakelog.spark.options.user_options import UserOptions
from lakelog.spark.sink.sink_options import check_types
from lakelog.spark.stream_position import checked
from storage_engine.errors import ConfigError
from storage_engine.log.isolation import Isolation

ONE = {"subscribe": "one", "root": "/given"}


@pytest.mark.parametrize(
    ("pattern", "topics"),
    [
        ("er", ["orders", "users"]),
        ("^orders$", ["orders"]),
        (r"\p{Alpha}+\d$", ["v2"]),
        (r"[\p{Lower}]{5,}\.", ["orders.eu"]),
        (r"\Qorders.\E", ["orders.eu"]),
        (r"(?<start>us)ers", ["users"]),
        (r"(?<r>r)s\.(?<e>e).*|(?<s>s)er\k<s>", ["orders.eu", "users"]),
        (r"^\P{Digit}+$", ["orders", "orders.eu", "users"]),
        (r"\PL", ["orders.eu", "v2"]),
        (r"[^\p{IsLatin}.]", ["v2"]),
        (r"[\Qa-\E]", []),
        (r"[]\p{Digit}]", ["v2"]),
        (r"\x{76}[|~2]", ["v2"]),
        (r"\(?<a", []),
        (r"^\\?Qa|^v\\?E?2\z", ["v2"]),
        (".*", ["orders", "orders.eu", "users", "v2"]),
    ],
)
def test_a_pattern_of_javas_finds_what_java_finds(pattern: str, topics: list[str]) -> None:
    choice = topic_choice(UserOptions({"subscribePattern": pattern}))
    names = ["orders", "orders.eu", "users", "v2", "__consumer_offsets"]
    found = [name for name in names if choice.may_read(name)]
    assert found == (topics if pattern != "er" else ["orders", "orders.eu", "users"])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("(", "unterminated subpattern"),
        ("[a-z&&[^o]]", "an intersection of character classes"),
        ("[a[b]]", "a character class within a character class"),
        (r"[\P{L}]", r"`\P` within a character class is not supported; use `[^\p{...}]`"),
        ("[+--]", r"write a hyphen as `\-`"),
        (r"\p{IsGreek}", "the character class `IsGreek`"),
        ("orders(?i)", "global flags not at the start"),
        (r"\h", r"bad escape \h"),
        ("x{,3}", "`{` begins no repetition"),
        ("x{", "`{` begins no repetition"),
        ("(?P<a>o)", "`(?P` begins no group"),
    ],
)
def test_a_pattern_that_java_refuses_or_that_is_not_translated_is_refused(pattern: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=f"subscribePattern: found .*{re.escape(problem)}"):
        topic_choice(UserOptions({"subscribePattern": pattern}))


@pytest.mark.parametrize(
    "given", [{"B": {"0": 2}}, {"B": 5}, {"logOffset": 0}, {"B": {"offsets": {"0": 2}}}, [1], 7, None]
)
def test_the_position_of_another_source_is_refused(given: object) -> None:
    with pytest.raises(
        ConfigError, match=r"option checkpointLocation: the checkpoint contains positions of another sou"
    ):
        checked(given)
    assert checked({}) == {}


@pytest.mark.parametrize(
    ("options", "starting"),
    [
        ({}, None),
        ({"startingOffsets": " Latest"}, Edge.LATEST),
        ({"startingOffsets": '{"one": {"0": -2, "10": 7}}'}, Offsets({("one", 0): -2, ("one", 10): 7})),
        ({"startingOffsets": '{"one": {"0": -3}}'}, Offsets({("one", 0): -3})),
        ({"startingOffsets": "latest", "startingOffsetsByTimestamp": '{"one": {"0": 5}}'}, Times({("one", 0): 5})),
        ({"startingOffsetsByTimestamp": "{}", "startingTimestamp": "-2"}, Time(-2)),
    ],
)
def test_the_first_option_that_says_where_to_begin_counts(options: dict[str, str], starting: object) -> None:
    assert common_options(ONE | options).starting == starting


@pytest.mark.parametrize(
    ("text", "partitions"),
    [
        ('{"t": [0, 1.9, -1]} more', {0, 1, -1}),
        ('{"t": [0], "t": [1]}', {1}),
        ('{"t": [null, 4294967297, 1e30, -1e400]}', {0, 1, (1 << 31) - 1, -(1 << 31)}),
        ('{"t": null}', set()),
        ("null", set()),
    ],
)
def test_partitions_in_json_are_read_as_java_reads_them(text: str, partitions: set[int]) -> None:
    assert partitions_in(text) == {("t", number) for number in partitions}


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ('{"t": {"0": -1, "+1": -2.9, "-02": null}}}', {0: -1, 1: -2, -2: 0}),
        ('{"t": {"0": 18446744073709551617, "1": 9223372036854775808}}', {0: 1, 1: -(1 << 63)}),
        ('{"t": {"0": 1e400, "1": -1e30}}', {0: (1 << 63) - 1, 1: -(1 << 63)}),
        ('{"t": null}', {}),
    ],
)
def test_numbers_in_json_are_read_as_java_reads_them(text: str, numbers: dict[int, int]) -> None:
    assert numbers_in(text) == {("t", number): value for number, value in numbers.items()}


@pytest.mark.parametrize("text", ['{"t": {}}', '{"t": ""}', '{"t": [NaN]}', '{"t": ["0"]}', '{"t": [true]}', "[]", ""])
def test_json_of_another_form_names_no_partitions(text: str) -> None:
    with pytest.raises((TypeError, ValueError)):
        partitions_in(text)


@pytest.mark.parametrize("name", ["", " 0", "0_0", "0.0", "2147483648", "x"])
def test_a_name_that_is_no_number_of_a_partition_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="^" + name):
        numbers_in(f'{{"t": {{"{name}": 1}}}}')


@pytest.mark.parametrize(
    ("delay", "ms"),
    [
        ("15m", 900_000),
        ("500", 500),
        ("500ms", 500),
        (" 2min ", 120_000),
        ("1H", 3_600_000),
        ("1d", 86_400_000),
        ("250us", 0),
    ],
)
def test_a_delay_is_written_as_spark_writes_durations(delay: str, ms: int) -> None:
    assert stream_limits({"maxTriggerDelay": delay}).max_delay_ms == ms


def test_a_limit_of_several_tasks_is_read_in_any_case() -> None:
    options = common_options(ONE | {"MINPARTITIONS": "+3", "maxRecordsPerPartition": "5"})
    assert (options.min_partitions, options.max_records) == (3, 5)


def test_the_root_comes_from_the_option_the_environment_or_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    def root(options: dict[str, str]) -> str:
        return common_options({"subscribe": "one", **options}).root

    monkeypatch.delenv("LAKELOG_ROOT", raising=False)
    with pytest.raises(ConfigError, match=r"option root: is missing.*LAKELOG_ROOT.*spark\.lakelog\.root"):
        root({})
    for name, value in worker_environment("/session").items():
        monkeypatch.setenv(name, value)
    assert root({}) == "/session"
    monkeypatch.setenv("LAKELOG_ROOT", "/environment")
    assert worker_environment("/session")["LAKELOG_ROOT"] == "/environment"
    assert root({}) == "/environment"
    assert root({"ROOT": "/option"}) == "/option"


@pytest.mark.parametrize("level", [" read_committed", "read_committed\t\n"])
def test_spaces_around_the_isolation_are_passed_over(level: str) -> None:
    assert common_options(ONE | {"kafka.isolation.level": level}).isolation is Isolation.READ_COMMITTED


@pytest.mark.parametrize("level", ["", " ", "READ_COMMITTED", "\u00a0read_committed", "read committed"])
def test_another_word_for_the_isolation_is_refused(level: str) -> None:
    with pytest.raises(
        ConfigError, match=r"option kafka\.isolation\.level: found .* Choose read_committed or read_uncom"
    ):
        common_options(ONE | {"kafka.isolation.level": level})


def test_no_other_spaces_than_java_s_are_passed_over() -> None:
    for options in ({"startingOffsets": "\u00a0earliest"}, {"startingTimestamp": "\u20095"}):
        with pytest.raises(ConfigError, match="option starting"):
            common_options(ONE | options)
    assert common_options(ONE | {"startingTimestamp": "\x0b5\x00"}).starting == Time(5)


DAY, YEAR = DayTimeIntervalType(0, 0), YearMonthIntervalType(0, 0)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (ArrayType(MapType(DateType(), StructType().add("d", DecimalType(9, 2)).add("t", TimestampNTZType()))), None),
        (VarcharType(3), None),
        (NullType(), None),
        (DAY, "interval day"),
        (YEAR, "interval year"),
        (VariantType(), "variant"),
        (ArrayType(DAY), "array<interval day>"),
        (MapType(StringType(), VariantType()), "map<string,variant>"),
        (StructType().add("x", DAY), "struct<x:interval day>"),
    ],
)
def test_a_batch_has_only_types_that_spark_takes_for_kafka(kind: DataType, name: str | None) -> None:
    schema = StructType().add("value", StringType()).add("i", kind)
    if name is None:
        check_types(schema)
        return
    with pytest.raises(
        ConfigError, match=rf"^column `i`: found {re.escape(name)}, which a batch write does not support"
    ):
        check_types(schema)


def test_options_for_a_connection_are_told_of_once() -> None:
    for_kafka = {"kafka.bootstrap.servers": "b:9092", "kafka.isolation.level": "read_committed", "kafka.group.id": "g"}
    assert ignored_warning(common_options(ONE | for_kafka)) is None
    warning = ignored_warning(common_options(ONE | for_kafka | {"kafka.sasl.mechanism": "x", "Kafka.client.id": "c"}))
    assert (
        warning
        == "source lakelog: options for a connection to Kafka have no effect here: kafka.sasl.mechanism, kafka.client.id"
    )


def test_the_name_of_a_stream_s_group_is_given_or_begins_with_a_prefix() -> None:
    assert stream_group(ONE, "7") is None
    assert stream_group(ONE | {"Kafka.Group.Id": "g", "groupIdPrefix": "p"}, "7") == StreamGroup("g", None)
    assert stream_group(ONE | {"groupIdPrefix": "p", "holdsBack": "TRUE"}, "7") == StreamGroup("p-7", True)
    assert stream_group(ONE | {"kafka.group.id": "g", "holdsBack": "false"}, "7") == StreamGroup("g", False)
    for wrong, told in (
        ({"kafka.group.id": " "}, "option kafka.group.id: found an empty name"),
        ({"groupIdPrefix": ""}, "option groupIdPrefix: found an empty name"),
        ({"holdsBack": "true"}, "option holdsBack: is given without a group. Give the option kafka.group.id"),
        ({"kafka.group.id": "g", "holdsBack": "yes"}, "option holdsBack: found 'yes'. Give true or false"),
    ):
        with pytest.raises(ConfigError, match=told):
            stream_group(ONE | wrong, "7")
