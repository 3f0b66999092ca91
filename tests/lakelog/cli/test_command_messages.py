"""The messages of commands: the error for a path that is not a root, the message if nothing is due, and the text of
--help. Also tests that no message contains control characters for a terminal.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from contextlib import chdir
from pathlib import Path

import pytest

from lakelog.cli.app import command
from storage_engine.topic.readers.consumer_files import put_positions
from storage_engine.topic.topics import Topics, is_root
from tests.in_process import Ended
from tests.lakelog.cli.conftest import Lakelog, line
from tests.stores import storage_at

PROJECT = Path(__file__).resolve().parents[3]
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
EVIL = "a\x1b]0;title\x07\x1b[2J\x9b31m\u202e\r\n\x7f[bold]b[/bold]"
SHOWN = "a\\x1b]0;title\\x07\\x1b[2J\\x9b31m\\u202e"

REMEDY = "Check the path. The first `lakelog topics create`, or the first ingest, creates a root."
LOOKS = [
    ("topics", "list"), ("topics", "describe", "t"), ("topics", "alter", "t", "--partitions", "2"), ("topics", "delete", "t"),
    ("topics", "settle"), ("topics", "export", "out"), ("append", "--topic", "t"), ("read", "--topic", "t"),
    ("offsets", "--topic", "t"), ("compact",), ("compact", "--force"), ("merge",), ("plan",),
    ("retain",), ("report", "--out", "r.html"),
    ("metrics",), ("ui",),
    ("state", "history", "--topic", "t"), ("state", "prune"), ("state", "sweep"), ("consumers", "list"),
    ("consumers", "forget", "c", "--topic", "t"), ("transactions", "list"), ("transactions", "finish"),
    ("delete-records", "--topic", "t", "--partition", "0", "--offset", "0"), ("broker", "describe"),
    ("broker", "alter", "--config", "log.retention.hours=24"), ("groups", "list"), ("groups", "describe", "--all-groups"),
    ("groups", "reset-offsets", "--group", "g", "--topic", "t", "--to-latest"), ("groups", "delete", "--group", "g"),
]  # fmt: skip


@pytest.mark.parametrize("arguments", LOOKS, ids=" ".join)
def test_a_root_that_was_mistyped_is_an_error(
    lakelog: Lakelog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/text").write_text("no topic")
    before = sorted(tmp_path.rglob("*"))
    for root in (tmp_path / "rooot", tmp_path / "notes"):
        assert lakelog(*arguments, "--root", str(root)) == (
            1, "",
            f"lakelog: root {root}: this path is not a root: the folder meta/ with the topics is missing. {REMEDY}\n",
        )  # fmt: skip
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("topics", "export", "s3://bucket/out"), "DIR"),
        (("topics", "export", "file:///out"), "DIR"),
        (("topics", "import", "abfss://c@a.dfs.core.windows.net/out"), "DIR"),
        (("verify", "--kafka-dir", "kafka", "--kafka-dir", "hdfs:/out"), "--kafka-dir"),
        (("log-dirs", "--kafka-dir", "gs://bucket/out"), "--kafka-dir"),
        (("report", "--out", "s3://bucket/r.html"), "--out"),
        (("metrics", "--textfile", "s3://bucket/f.prom"), "--textfile"),
        (("check", "--rules", "s3://bucket/rules.yaml"), "--rules"),
        (("perf", "produce", "--topic", "t", "--payload-file", "s3://bucket/f"), "--payload-file"),
        (("topics", "list", "--conf", "s3://user:secret@bucket/f.yaml"), "--conf"),
    ],
)
def test_a_uri_is_refused_in_place_of_a_local_path(
    lakelog: Lakelog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], name: str
) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    assert lakelog("topics", "create", "t").status == 0
    ended = lakelog(*arguments)
    assert (ended.status, ended.out) == (3 if arguments[0] == "check" else 2, "")
    scheme = arguments[-1].partition("/")[0]
    message = " ".join(ended.err.split())
    assert f"'{name}': found a URI that begins with {scheme}/. Only a path on this host is possible here." in message
    assert "secret" not in message
    assert list(Path().iterdir()) == []


@pytest.mark.posix("names local folders")
def test_a_folder_whose_name_looks_like_a_scheme_is_possible_as_an_absolute_path(
    lakelog: Lakelog, tmp_path: Path
) -> None:
    assert lakelog("topics", "create", "t").status == 0
    assert lakelog("topics", "export", f"{tmp_path}/s3:/out").status == 0
    assert [each.name for each in (tmp_path / "s3:/out").glob("t-0")] == ["t-0"]


@pytest.mark.posix("names local folders")
def test_an_empty_directory_is_a_root_in_which_nothing_is_yet(lakelog: Lakelog, tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    assert lakelog("topics", "list") == (0, "", "")
    assert lakelog("topics", "create", "t").status == 0
    assert is_root(storage_at(tmp_path / "root"))


def test_what_cleans_says_that_nothing_is_due(lakelog: Lakelog) -> None:
    lakelog("topics", "create", "t", "--config", "cleanup.policy=compact")
    lakelog("topics", "create", "u")
    assert lakelog("compact", "--force") == (0, "compact: there is nothing to compact in 2 topics\n", "")
    assert lakelog("compact", "--topic", "t") == (0, "compact: there is nothing to compact in 1 topic\n", "")
    assert lakelog("merge") == (0, "merge: there is nothing to merge in 2 topics\n", "")


def test_help_has_what_stands_in_brackets_and_whole_sentences(lakelog: Lakelog) -> None:
    told = " ".join(lakelog("append", "--help").out.split())
    assert "headers (a list of [name, base64 or null]) and timestamp (milliseconds; default: now)" in told
    for words in all_commands(command(), ()):
        text = lakelog(*words, "--help").out
        assert not re.search(r"[a-z]\.\.\.", text), words
        paragraphs = [each for each in text.split("\n\n")[1:] if not re.match(r"(Options|Commands|Arguments):", each)]
        for paragraph in paragraphs:
            assert re.search(r"[.:`]$", paragraph.strip()), paragraph


def all_commands(group: object, words: tuple[str, ...]) -> list[tuple[str, ...]]:
    found = [words]
    for name, each in getattr(group, "commands", {}).items():
        found += all_commands(each, (*words, name))
    return found


def test_the_list_of_jobs_has_a_whole_sentence_for_each() -> None:
    told = subprocess.run([PROJECT / "spark-submit.sh", "--help"], capture_output=True, text=True, check=True).stdout
    jobs = [line for line in told.splitlines() if line.startswith("  ") and not line.startswith("  ./")]
    assert len(jobs) == 7
    for job in jobs:
        assert job.endswith("."), job


@pytest.mark.posix("names local folders")
def test_no_command_prints_what_a_terminal_acts_upon(lakelog: Lakelog, tmp_path: Path) -> None:
    """Of a record, a consumer, a writer, a change, a damaged document."""
    lakelog("topics", "create", "t")
    lakelog("append", "--topic", "t", stdin=[line(EVIL.encode(), EVIL.encode(), headers=[[EVIL, "AAE="]])])
    root = tmp_path / "root"
    topics = topics_of(root)
    put_positions(topics.storage, topics.state("t"), EVIL, EVIL, {0: 1}, 0, holds_back=True)
    state = max((root / "meta/t").glob("*.json"))
    chain = topics.chain("t")
    chain.commit(lambda now: now.model_copy(update={"writer": now.writer.model_copy(update={"host": EVIL})}), EVIL)
    damaged = lakelog("topics", "create", "damaged")
    assert damaged.status == 0
    version = max((root / "meta/damaged").glob("*.json"))
    version.write_text(json.dumps(json.loads(version.read_text()) | {"writer": {"epoch": EVIL, EVIL: 1}}))
    assert state.exists()
    (log,) = (root / "data").glob("*/0/*.log")
    printed = {
        arguments: lakelog(*arguments)
        for arguments in (
            ("topics", "list"), ("topics", "describe", "t"), ("topics", "describe", "t", "--format", "json"),
            ("topics", "describe", "damaged"), ("read", "--topic", "t"), ("read", "--topic", "t", "--format", "table"),
            ("dump", "--print-data-log", str(log)), ("dump", "--print-data-log", "--format", "jsonl", str(log)),
            ("state", "history", "--topic", "t"), ("state", "history", "--topic", "t", "--format", "jsonl"),
            ("consumers", "list"), ("consumers", "list", "--format", "jsonl"),
            ("groups", "list"), ("groups", "list", "--state"), ("groups", "describe", "--all-groups"),
            ("verify",), ("verify", "--format", "jsonl"),
            ("plan",), ("check",), ("consumers", "forget", EVIL, "--topic", "t"),
        )
    }  # fmt: skip
    for arguments, ended in printed.items():
        assert not CONTROL.search(ended.out + ended.err), arguments
    assert SHOWN in printed["topics", "describe", "t"].out
    assert SHOWN in printed["dump", "--print-data-log", str(log)].out
    assert "[bold]b[/bold]" in printed["topics", "describe", "t"].out, "what stands in brackets is no markup"
    (record,) = printed["read", "--topic", "t"].records
    assert record["headers"] == [[EVIL, "AAE="]]


def test_verify_finds_positions_beyond_the_log(lakelog: Lakelog, tmp_path: Path) -> None:
    lakelog("topics", "create", "t", "--partitions", "2")
    lakelog("append", "--topic", "t", "--partition", "1", stdin=[line(b"k", b"v")])
    topics = topics_of(tmp_path / "root")
    state = topics.state("t")
    put_positions(topics.storage, state, "export tables/t", "delta export", {0: 0, 1: 1}, 0, holds_back=True)
    assert lakelog("verify").status == 0
    put_positions(topics.storage, state, "export tables/t", "delta export", {0: 3, 1: 1, 7: 0}, 0, holds_back=True)
    ended = lakelog("verify")
    assert ended.status == 4
    (file,) = topics.storage.list("meta/t/groups/")
    found = [
        line for line in ended.out.splitlines() if line.startswith(f"{topics.storage.uri}/{file.key} at position 0: ")
    ]
    assert len(found) == 2
    assert "expected a position in partition 0 up to the log end offset 0, found 3, of export tables/t" in found[0]
    assert "expected positions in partitions 0 to 1, found a position in partition 7" in found[1]
    assert "`lakelog consumers forget` removes this file" in found[0]


def topics_of(root: Path) -> Topics:
    from storage_engine.clock import SystemClock
    from storage_engine.config import BrokerConfig

    return Topics(storage_at(root), BrokerConfig(), SystemClock())


NO_FILES = [("fifo", file) for file in ("log", "index", "state", "group", "shown log", "shown index", "checkpoint")]
NO_FILES += [("socket", "log"), ("socket", "state"), ("folder", "log"), ("folder", "state"), ("folder", "shown log")]
_VERIFY_EACH = """
import json, sys
from lakelog.cli import main
from tests.in_process import run_in_process

for root in sys.argv[1:]:
    print(json.dumps(run_in_process(main, ["lakelog", "verify", "--root", root])), flush=True)
"""


@pytest.mark.posix("names local folders")
def test_no_command_waits_for_what_is_no_file(tmp_path: Path) -> None:
    """In one process, which is ended if a command waits."""
    paths = [with_no_file(tmp_path / f"{kind} {file}", kind, file) for kind, file in NO_FILES]
    roots = [tmp_path / f"{kind} {file}" for kind, file in NO_FILES]
    done = subprocess.run(
        [sys.executable, "-c", _VERIFY_EACH, *roots], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
        timeout=120, check=True, cwd=PROJECT,
    )  # fmt: skip
    for path, line_of_json in zip(paths, done.stdout.splitlines(), strict=True):
        ended = Ended(*json.loads(line_of_json))
        assert ended.status in (1, 4), (path, ended)
        assert path.name in ended.out + ended.err
        assert "Traceback" not in ended.err


def with_no_file(root: Path, kind: str, file: str) -> Path:
    """Make a root in which one of the files is replaced by something that is no file. Returns the path of this file."""
    topics = topics_of(root)
    state = topics.create("t", 1, {})
    with_record(topics)
    put_positions(topics.storage, state, "c", "c", {0: 1}, 0, holds_back=True)
    path = {
        "log": next((root / "data").rglob("*.log")),
        "index": next((root / "data").rglob("*.index")),
        "state": max((root / "meta/t").glob("*.json")),
        "group": next((root / "meta/t/groups").iterdir()),
        "shown log": next((root / "log/t-0").glob("*.log")),
        "shown index": next((root / "log/t-0").glob("*.index")),
        "checkpoint": root / "log/recovery-point-offset-checkpoint",
    }[file]
    path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        with (
            socket.socket(socket.AF_UNIX) as bound,
            chdir(path.parent),
        ):  # a socket's path may have a hundred characters
            bound.bind(path.name)
    return path


def with_record(topics: Topics) -> None:
    import pyarrow as pa

    from storage_engine.record.record_columns import TO_APPEND, no_headers
    from storage_engine.topic.append.appending import Append
    from storage_engine.topic.kafka.view import settle

    columns = [pa.array([b"k"]), pa.array([b"v"]), no_headers(1), pa.array([1_700_000_000_000], pa.int64())]
    state = topics.state("t")
    with Append(topics.storage, topics.chain("t"), topics.config(state), topics.clock, 0, state=state) as batch:
        batch.stage(pa.RecordBatch.from_arrays(columns, schema=TO_APPEND), str)
        batch.commit()
    settle(topics, ["t"])
