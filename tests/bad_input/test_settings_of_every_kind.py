"""Invalid settings in every place where settings can be given. The allowed values of each key are tested
elsewhere. These tests show what a command or a job does with a hostile or mistyped file.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bad_input.conftest import Lakelog, RunJob, contents, said

BOMB = "\n".join(["a0: &a0 [x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12))])
FILES = {
    "aliases of aliases": (f"root: r\n{BOMB}\n", "more than 100000 values after its aliases (*name) are expanded"),
    "depth": (f"root: r\nx: {'[' * 2_000}", "nested too deeply"),
    "a NUL": ('root: "a\\0b"\n', "line 1, root: found U+0000 at position 1; settings may not contain this character"),
    "half a character": ('root: "\\ud800"\n', "line 1, root: found U+D800 at position 0"),
    "a NUL in a key": ('root: r\n"a\\0b": 1\n', "line 2: found U+0000 at position 1"),
    "a home of nobody": ("root: ~nobody.at.all/x\n", "no home directory"),
    "a list as root": ("root: [a]\n", "line 1, root: expected a path"),
    "a key twice": ("root: a\nroot: b\n", "line 2, root: line 1 has the key root already"),
    "nothing": ("", "has no settings"),
    "a text": ("root\n", "expected keys with values"),
    "a tab": ("root: r\nbroker:\n\tnum.partitions: 1\n", "line 3: is not YAML"),
    "not a number": ("root: r\nbroker: {num.partitions: .nan}\n", "line 2, broker.num.partitions: expected a whole number"),
    "out of bounds": ("root: r\nbroker: {num.partitions: 0}\n", "line 2, broker.num.partitions: expected a whole number"),
    "an unknown key": ("root: r\nbroker: {num.partition: 1}\n", "The nearest valid key is num.partitions"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), FILES.values(), ids=FILES)
def test_a_file_is_refused_with_its_place_by_commands_and_jobs(
    lakelog: Lakelog, job: RunJob, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, expected: str
) -> None:
    lakelog("topics", "create", "t")
    before = contents(root)
    conf = tmp_path / "conf.yaml"
    conf.write_text(text)
    monkeypatch.delenv("LAKELOG_ROOT")
    for ended in (
        lakelog("topics", "create", "u", "--conf", str(conf)),
        job("maintenance", "--conf", str(conf), with_root=False),
    ):
        assert expected in said(ended, status=2)
    assert contents(root) == before


def test_a_file_that_is_none_is_refused(lakelog: Lakelog, job: RunJob, tmp_path: Path) -> None:
    conf = tmp_path / "conf.yaml"
    conf.write_bytes(b"root: \xff\n")
    for file, expected in ((tmp_path, "Is a directory"), (tmp_path / "none", "No such file"), (conf, "byte 6 is 0xff")):
        for ended in (lakelog("topics", "list", "--conf", str(file)), job("maintenance", "--conf", str(file))):
            assert expected in said(ended, str(file), status=2)


ROOTS = {
    "http://host/x": "found the scheme 'http'",
    "file://host/x": "expected file:/// and a path of this host",
    "file:///x?y": "what follows can be a token",
    "file://[x": "neither a path nor a URI",
    "file:x": "expected file:/// and a path of this host",
    "~nobody.at.all/x": "this user has no home directory",
    "a\0b": "found a NUL character",
}


@pytest.mark.parametrize("given", ROOTS, ids=ascii)
def test_a_root_that_names_no_directory_is_refused(lakelog: Lakelog, tmp_path: Path, given: str) -> None:
    before = sorted(tmp_path.rglob("*"))
    assert ROOTS[given] in said(lakelog("topics", "create", "t", "--root", given), status=2)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_root_may_be_bytes_that_are_no_text_and_a_uri(lakelog: Lakelog, tmp_path: Path) -> None:
    assert lakelog("topics", "create", "t", "--root", f"{tmp_path}/\udcff").status == 0
    assert (tmp_path / "\udcff/meta/t").is_dir()
    assert lakelog("topics", "create", "t", "--root", f"file://{tmp_path}/%FF%20").status == 0
    assert lakelog("topics", "list", "--root", f"file://{tmp_path}/%FF%20").out == "t\n"


CONFIGS = {
    "retention.ms=nan": "expected a whole number of ms",
    "retention.ms=": "expected a whole number of ms",
    f"retention.ms={10**30}": "expected a whole number of ms",
    "max.message.bytes=-1": "expected a whole number of bytes, at least 0",
    "min.cleanable.dirty.ratio=inf": "expected a number, 0 to 1",
    "min.cleanable.dirty.ratio=nan": "expected a number, 0 to 1",
    "cleanup.policy=compress": "expected any of compact, delete",
    "retention.msec=1": "The nearest valid key is retention.ms",
    "retention.ms": "expected KEY=VALUE",
    "=1": "expected KEY=VALUE",
}


@pytest.mark.parametrize("given", CONFIGS)
def test_a_topics_setting_is_refused_and_the_topic_stays(lakelog: Lakelog, root: Path, given: str) -> None:
    lakelog("topics", "create", "t")
    before = contents(root)
    for command in (("create", "u"), ("alter", "t")):
        ended = lakelog("topics", *command, "--config", given)
        assert (ended.status, ended.out) == (2, "")
        assert ended.err.startswith("lakelog: --config")
        assert CONFIGS[given] in ended.err
    assert contents(root) == before


@pytest.mark.parametrize("partitions", ["0", "-1", "10001", str(10**30)])
def test_a_number_of_partitions_that_cannot_be_is_refused(lakelog: Lakelog, root: Path, partitions: str) -> None:
    lakelog("topics", "create", "t", "--partitions", "2")
    before = contents(root)
    for command in (("create", "u"), ("alter", "t")):
        message = said(lakelog("topics", *command, "--partitions", partitions))
        assert f"found {partitions} partitions. Choose 1 to 10000." in message
    assert contents(root) == before


@pytest.mark.parametrize(
    "option",
    [("--max", str(10**30)), ("--max", "-1"), ("--max", "nan"), ("--partition", "-1"), ("--from", "nan"),
     ("--from", str(10**30)), ("--from-timestamp", "1e3"), ("--from-timestamp", str(10**30)), ("--format", "xml")],
)  # fmt: skip
def test_a_number_that_reading_cannot_use_is_a_usage_error(lakelog: Lakelog, option: tuple[str, str]) -> None:
    lakelog("topics", "create", "t")
    ended = lakelog("read", "--topic", "t", *option)
    assert (ended.status, ended.out) == (2, "")
    assert option[0] in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize(
    ("setting", "expected"),
    [("ingest.checkpoint=../x", "which contains '..'"), ("ingest.checkpoint=/x", "the absolute"),
     ("ingest.checkpoint=checkpoints/../../x", "which contains '..'"),
     ("ingest.checkpoint=meta/t", "is reserved for other files"),
     ("export.table=../x", "which contains '..'"), ("export.table=/x", "the absolute"),
     ("export.table=file:///x", "the absolute"), ("export.table=data/t", "is reserved for other files")],
)  # fmt: skip
@pytest.mark.parametrize("given", ["argument", "environment", "file"])
def test_a_path_outside_its_place_is_refused_wherever_it_is_given(
    job: RunJob, tmp_path: Path, setting: str, expected: str, given: str
) -> None:
    key, value = setting.split("=")
    section, name = key.split(".")
    whole = "topic: t, source: {format: rate}, value: v" if section == "ingest" else "topic: t"
    conf = tmp_path / "conf.yaml"
    conf.write_text(f"{section}: {{{whole}{f', {name}: {value!r}' if given == 'file' else ''}}}\n")
    before = sorted(tmp_path.rglob("*"))
    ended = job(
        section, "--conf", str(conf), *(("--set", setting) if given == "argument" else ()),
        environ={f"LAKELOG_{key.upper().replace('.', '_')}": value} if given == "environment" else {},
    )  # fmt: skip
    assert ended.status == 2
    assert expected in ended.err
    assert value in ended.err
    assert sorted(tmp_path.rglob("*")) == before
