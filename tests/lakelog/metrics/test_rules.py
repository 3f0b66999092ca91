"""Files with rules: their effect, and the errors for mistakes in a file. Also tests that docs/MONITORING.md lists all
keys with their defaults.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from lakelog.metrics.rules import Limit, Rules, read_rules
from storage_engine.errors import UsageError

HOME = Path(__file__).resolve().parents[3]


def read(folder: Path, text: str) -> Rules:
    file = folder / "rules.yaml"
    file.write_text(text)
    return read_rules(file)


def test_without_a_file_every_rule_has_its_default() -> None:
    assert read_rules(None) == Rules()
    assert Rules().lag_seconds == Limit(warning=900, critical=3600)


@pytest.mark.parametrize("text", ["", "# versions: {warning: 1}\n", "---\n"])
def test_in_a_file_without_keys_every_rule_has_its_default(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, text) == Rules()


def test_a_file_replaces_both_limits_of_a_key_and_no_other_key(tmp_path: Path) -> None:
    rules = read(tmp_path, "lag.seconds: {warning: 60}\nconsumer.status: false\nignore.consumers: [a, b]\n")
    assert rules == Rules().model_copy(
        update={"lag_seconds": Limit(warning=60), "consumer_status": False, "ignore_consumers": ("a", "b")}
    )


@pytest.mark.parametrize("text", ["topics:\n", "topics: {a: , b: {}}\n", "ignore.consumers:\nlag.records:\ntopics:\n"])
def test_sections_without_keys_change_nothing(tmp_path: Path, text: str) -> None:
    rules = read(tmp_path, text)
    assert (rules.of_topic("a"), rules.of_topic("b"), rules.ignore_consumers) == (rules, rules, ())
    assert rules.model_copy(update={"topics": {}}) == Rules()


def test_a_topic_has_its_own_rules_and_the_others_of_all(tmp_path: Path) -> None:
    rules = read(tmp_path, "lag.seconds: {critical: 5}\ntopics:\n  a.b: {lag.seconds: , versions: {warning: 7}}\n")
    own = rules.of_topic("a.b")
    assert (own.lag_seconds, own.versions, own.partition_segments) == (
        Limit(), Limit(warning=7), Limit(warning=1000)
    )  # fmt: skip
    assert rules.of_topic("other") == rules


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "lag.second: {warning: 1}",
            "line 1, lag.second: unknown key lag.second. The nearest valid key is lag.seconds.",
        ),
        (
            "versions: {lag.seconds: 1}",
            "line 1, versions.lag.seconds: unknown key lag.seconds. The nearest valid key is",
        ),
        ("versions: {warn: 1}", "line 1, versions.warn: unknown key warn. The nearest valid key is warning."),
        (
            "versions: 7",
            "line 1, versions: expected keys with values, such as {warning: 60, critical: 600}; found '7'.",
        ),
        ("versions: {warning: -1}", "line 1, versions.warning: expected a number that is not negative; found '-1'."),
        ("versions: {warning: nan}", "line 1, versions.warning: expected a number that is not negative; found 'nan'."),
        (
            "versions: {warning: many}",
            "line 1, versions.warning: expected a number that is not negative; found 'many'.",
        ),
        ("consumer.status: maybe", "line 1, consumer.status: expected true or false; found 'maybe'."),
        ("ignore.consumers: a", "line 1, ignore.consumers: expected a list of names; found 'a'."),
        (
            "topics:\n  a: {disk.free.percent: {warning: 1}}",
            "line 2, topics.a.disk.free.percent: disk.free.percent is no rule of a single topic. Move it out of the section",
        ),
        (
            "writer.takeovers.window.seconds: 0",
            "line 1, writer.takeovers.window.seconds: expected a number, at least 1; found '0'.",
        ),
        (
            "lag.seconds: {warning: 60, critical: 6}",
            "line 1, lag.seconds: the warning 60 comes after the critical limit 6. Give a warning of at most 6.",
        ),
        (
            "disk.free.percent: {warning: 5, critical: 10}",
            "line 1, disk.free.percent: the warning 5 comes after the critical limit 10. Give a warning of at least 10.",
        ),
        (
            "disk.free.percent: {warning: 150}",
            "line 1, disk.free.percent: expected a percentage, at most 100; found 150.",
        ),
        (
            "topics:\n  a: {versions: {warning: 2, critical: 1}}",
            "line 2, topics.a.versions: the warning 2 comes after the critical limit 1.",
        ),
        ("topics: [a]", "line 1, topics: expected keys with values"),
        ("versions", "line 1: expected keys with values, as in `key: value`; found text."),
        ("a: b: c", "line 1: is not YAML"),
    ],
)
def test_a_mistake_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        read(tmp_path, text)
    assert str(raised.value).startswith(f"{tmp_path}/rules.yaml, {message}")


def test_a_missing_file_is_named() -> None:
    with pytest.raises(UsageError) as raised:
        read_rules(Path("/no/such/rules.yaml"))
    assert str(raised.value) == (
        "/no/such/rules.yaml: cannot be read: No such file or directory. Give --rules the path of a YAML file."
    )


def test_the_page_lists_every_key_with_its_defaults() -> None:
    page = (HOME / "docs/MONITORING.md").read_text(encoding="utf-8")
    for key, field in Rules.fields_by_key().items():
        default = field.default
        shown = {True: ("`true`", ""), (): ("none", ""), 3600: ("`3600`", "")}
        if isinstance(default, Limit):
            cells = tuple("none" if each is None else f"`{each:.15g}`" for each in (default.warning, default.critical))
        else:
            cells = shown[default] if default != {} else ("none", "")
        assert f"| `{key}` | {cells[0]} | {cells[1]} | {field.description} |" in page, key
