"""Tests that a broker's server.properties is read as Kafka reads it, and that errors name the file and the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage_engine.config.properties_file import read_properties
from storage_engine.config.server_properties import ServerProperties, read_server_properties
from storage_engine.errors import ConfigError


def written(tmp_path: Path, text: str) -> Path:
    (tmp_path / "server.properties").write_bytes(text.encode("latin-1"))
    return tmp_path / "server.properties"


def test_the_format_is_that_of_javas_properties(tmp_path: Path) -> None:
    text = (
        "# comment\n! another\n\n a = b \nkey value of three\ncolon:c\nempty\n"
        "long = one,\\\n    # two,\\\n    three\r\n"
        "esc\\=aped\\ key = t\\tu\\u00e9\\q\\\\\r"
        "latin = \xe9\nlast = \\\\\na = c"
    )
    file = written(tmp_path, text)
    expected = {
        "key": ("value of three", 5),
        "colon": ("c", 6),
        "empty": ("", 7),
        "long": ("one,# two,three", 8),
        "esc=aped key": ("t\tu\xe9q\\", 11),
        "latin": ("\xe9", 12),
        "last": ("\\", 13),
        "a": ("c", 14),
    }
    found = read_properties(file)
    assert {key: (value, place) for key, (value, place) in found.items()} == {
        key: (value, f"{file}, line {line}, {key}") for key, (value, line) in expected.items()
    }


def test_a_malformed_escape_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"server\.properties, line 2: expected four hexadecimal digits"):
        read_properties(written(tmp_path, "a=b\nc=\\u12g4"))
    with pytest.raises(ConfigError, match=r"none: cannot be read: No such file"):
        read_properties(tmp_path / "none")


def test_known_keys_act_and_all_others_are_listed(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        "process.roles=broker\nnode.id=3\nlisteners=PLAINTEXT://:9092\nlog.dirs= /data/1 ,/data/2,\n"
        "log.dir=/unused\nmetadata.log.dir=/meta\nlog.retention.hours= 5 \nlog.cleaner.threads=2\n"
        "num.partitions=x\nreplica.high.watermark.checkpoint.interval.ms=x\nremote.log.storage.system.enable=TRUE\n",
    )
    found = read_server_properties(file)
    assert found == ServerProperties(
        file=str(file), log_dirs=(Path("/data/1"), Path("/data/2")), metadata_log_dir=Path("/meta"), node_id=3, tiered=True,
        settings={"log.retention.hours": "5", "log.cleaner.threads": "2"},
        ignored=("listeners", "num.partitions", "process.roles", "replica.high.watermark.checkpoint.interval.ms"),
    )  # fmt: skip
    config = found.log_manager_config()
    assert (config.cleaner_threads, config.topic({}).retention_ms) == (2, 5 * 3_600_000)
    changed = {"log.retention.ms": "7", "min.insync.replicas": "2", "log.retention.hours": "1", "log.roll.hours": "x"}
    dynamic = found.with_dynamic(changed, "the cluster")
    assert dynamic.settings == {**found.settings, "log.retention.ms": "7"}
    with pytest.raises(ConfigError, match=r"^the cluster, log\.retention\.ms: expected a whole number of ms.*'bogus'"):
        found.with_dynamic({"log.retention.ms": "bogus"}, "the cluster")


@pytest.mark.parametrize("word", ["true", "True", "TRUE"])
@pytest.mark.parametrize("ratio", ["0.25", "0.25f", "25e-2D", ".25d"])
def test_booleans_and_doubles_are_parsed_as_in_kafka(tmp_path: Path, word: str, ratio: str) -> None:
    file = written(tmp_path, f"log.dirs=/data\nlog.preallocate={word}\nlog.cleaner.min.cleanable.ratio={ratio}\n")
    config = read_server_properties(file).log_manager_config()
    assert (config.topic({}).preallocate, config.topic({}).min_cleanable_dirty_ratio) == (True, 0.25)
    own = config.topic({"preallocate": word.replace("rue", "RUE"), "min.cleanable.dirty.ratio": ratio})
    assert (own.preallocate, own.min_cleanable_dirty_ratio) == (True, 0.25)
    assert not config.topic({"preallocate": "False"}).preallocate


def test_log_dir_counts_without_log_dirs_and_zookeeper_may_have_given_the_id(tmp_path: Path) -> None:
    found = read_server_properties(written(tmp_path, "log.dir = /data/1, /data/2\nbroker.id=-1\n"))
    assert (found.log_dirs, found.metadata_log_dir, found.node_id) == ((Path("/data/1"), Path("/data/2")), None, None)


def test_a_directory_may_not_be_named_twice_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "data")
    file = written(tmp_path, f"log.dirs={tmp_path}/data,{tmp_path}/link\n")
    with pytest.raises(ConfigError, match=rf"line 1, log\.dirs: names {tmp_path}/data twice"):
        read_server_properties(file)


def test_two_escapes_can_be_the_halves_of_one_character(tmp_path: Path) -> None:
    text = "log.dirs=/\\ud83d\\ude00\npassword=\\u0000\\ud800\n"  # only directories may not have the other characters
    found = read_server_properties(written(tmp_path, text))
    assert (found.log_dirs, found.ignored) == ((Path("/\U0001f600"),), ("password",))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a=b\n", "has neither log.dirs nor log.dir"),
        ("a=b\nlog.dirs= , \n", "line 2, log.dirs: expected the paths of directories"),
        ("log.dirs=/a,/b,/a\n", "line 1, log.dirs: names /a twice"),
        ("log.dirs=/a\n\nlog.cleaner.threads=two\n", "line 3, log.cleaner.threads: expected a whole number"),
        ("log.dirs=/a\nlog.retention.ms=0\n", "line 2, log.retention.ms: expected a whole number of ms, at least 1"),
        ("log.dirs=/a\nlog.cleaner.enable=yes\n", "line 2, log.cleaner.enable: expected true or false"),
        (
            "log.dirs=/a\nremote.log.storage.system.enable=ture\n",
            "line 2, remote.log.storage.system.enable: expected true or false; found 'ture'",
        ),
        ("log.dirs=/a\nnode.id=-1\n", "line 2, node.id: expected a whole number, at least 0; found '-1'"),
        (
            "config.providers=env\nlog.dirs=/a,${env:DIRS}\n",
            "line 2, log.dirs: only a broker can look up a value of config.providers; found '/a,${env:DIRS}'",
        ),
        (
            "log.dirs=/a\nconfig.providers=env\nlog.retention.hours=${env:HOURS}\n",
            "line 3, log.retention.hours: only a broker can look up a value of config.providers; found '${env:HOURS}'",
        ),
        (
            "log.dirs=/a\\u0000b\n",
            "line 1, log.dirs: found U+0000 at position 2; settings may not contain this character. Remove the character.",
        ),
        ("log.dir=/a\\ud800\n", "line 1, log.dir: found U+D800 at position 2"),
        ("log.dirs=/a\nmetadata.log.dir=\\u0000\n", "line 2, metadata.log.dir: found U+0000 at position 0"),
    ],
)
def test_wrong_values_are_refused_with_their_line(tmp_path: Path, text: str, problem: str) -> None:
    file = written(tmp_path, text)
    with pytest.raises(ConfigError) as failure:
        read_server_properties(file)
    assert str(file) in str(failure.value)
    assert problem in str(failure.value)
