"""The page docs/SECURITY.md: each program works with exactly the rights that the page lists, and does not work with
fewer rights. Also tests the modes of new files, and the secrets of a Kafka source.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from storage_engine.clock import ManualClock
from storage_engine.config import BrokerConfig
from storage_engine.errors import ConfigError
from storage_engine.storage.storage_opening import open_storage
from storage_engine.topic.append.transaction_writer import TransactionWriter
from storage_engine.topic.chain.transaction_files import TRANSACTIONS, decide
from storage_engine.topic.chain.version_files import encode_state, version_key
from storage_engine.topic.topics import Topics
from tests.docs.pages import PROJECT, blocks, text_of
from tests.docs.security.restricted import NONE, READ, WRITE, Restricted, allow, allow_everything, restricted_process
from tests.in_process import Ended
from tests.lakelog.cli.conftest import line
from tests.storage_engine.record_tables import Row, to_table

PAGE = "docs/SECURITY.md"
GOLDEN = PROJECT / "tests/golden"
OLD = 1_700_000_000_000
VALUE = b'{"id": 1}'
SETTINGS = """
root: {root}
topics: {{t: {{partitions: 1, schema: "id BIGINT"}}}}
ingest:
  topic: t
  checkpoint: checkpoints/ingest/t
  source: {{format: json, path: {source}, schema: "id BIGINT"}}
  key: CAST(id AS STRING)
  value: to_json(struct(*))
export: {{topic: t, table: tables/t, mode: append}}
maintenance: {{tables.small.files: 1}}
"""
PRUNED = 1005
"""So many versions that the oldest of them are pruned."""
EXPORTED, IMPORTED, KAFKA, PRODUCER, PROPERTIES = "{exported}", "{imported}", "{kafka}", "{producer}", "{properties}"
"""Words of commands: a new directory, a Kafka log directory, the producer of a transaction, and the settings of a broker."""
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "lakelog read": ("lakelog", "read", "--topic", "t"),
    "lakelog read --group": ("lakelog", "read", "--topic", "t", "--group", "g"),
    "lakelog read --group --commit": ("lakelog", "read", "--topic", "t", "--group", "g", "--commit"),
    "lakelog topics describe": ("lakelog", "topics", "describe", "t"),
    "lakelog verify": ("lakelog", "verify"),
    "lakelog check": ("lakelog", "check"),
    "lakelog metrics": ("lakelog", "metrics"),
    "lakelog metrics --tables": ("lakelog", "metrics", "--tables"),
    "lakelog report": ("lakelog", "report", "--out", "report.html"),
    "lakelog offsets": ("lakelog", "offsets", "--topic", "t", "--time", str(OLD + 2)),
    "lakelog groups reset-offsets --to-earliest": (
        "lakelog", "groups", "reset-offsets", "--group", "g", "--topic", "t", "--to-earliest", "--execute",
    ),
    "lakelog append": ("lakelog", "append", "--topic", "t"),
    "lakelog topics create": ("lakelog", "topics", "create", "new"),
    "lakelog topics alter": ("lakelog", "topics", "alter", "t", "--config", "retention.ms=5"),
    "lakelog topics delete": ("lakelog", "topics", "delete", "t"),
    "lakelog delete-records": ("lakelog", "delete-records", "--topic", "t", "--partition", "0", "--offset", "2"),
    "lakelog configs --describe": ("lakelog", "configs", "--describe", "--topic", "t"),
    "lakelog configs --alter": ("lakelog", "configs", "--alter", "--topic", "t", "--add-config", "retention.ms=5"),
    "lakelog log-dirs": ("lakelog", "log-dirs", "--describe"),
    "lakelog perf produce": (
        "lakelog", "perf", "produce", "--topic", "old", "--num-records", "5", "--record-size", "5",
    ),
    "lakelog perf produce --transactional-id": (
        "lakelog", "perf", "produce", "--topic", "old", "--num-records", "5", "--record-size", "5", "--transactional-id", "x",
    ),
    "lakelog perf produce --transaction-duration-ms": (
        "lakelog", "perf", "produce", "--topic", "old", "--num-records", "5", "--record-size", "5",
        "--transaction-duration-ms", "9",
    ),
    "lakelog perf consume": ("lakelog", "perf", "consume", "--topic", "t", "--num-records", "5"),
    "lakelog topics export": ("lakelog", "topics", "export", EXPORTED),
    "lakelog topics import": ("lakelog", "topics", "import", IMPORTED),
    "lakelog topics settle": ("lakelog", "topics", "settle", "t"),
    "lakelog append --transactional": ("lakelog", "append", "--transactional"),
    "lakelog transactions list": ("lakelog", "transactions", "list"),
    "lakelog transactions abort": ("lakelog", "transactions", "abort", PRODUCER),
    "lakelog transactions finish": ("lakelog", "transactions", "finish"),
    "lakelog transactions decide": ("lakelog", "transactions", "decide", PRODUCER, "commit"),
    "lakelog state history": ("lakelog", "state", "history", "--topic", "t"),
    "lakelog state prune": ("lakelog", "state", "prune", "--topic", "t"),
    "lakelog state sweep": ("lakelog", "state", "sweep"),
    "lakelog verify --repair": ("lakelog", "verify", "--repair"),
    "lakelog plan": ("lakelog", "plan"),
    "lakelog compact": ("lakelog", "compact", "--topic", "t"),
    "lakelog schema show": ("lakelog", "schema", "show", "t"),
    "lakelog schema check": ("lakelog", "schema", "check", "t", "--schema", "id BIGINT, more STRING"),
    "lakelog schema accept": ("lakelog", "schema", "accept", "t", "--schema", "id BIGINT, more STRING"),
    "lakelog prove": ("lakelog", "prove", "--topic", "t", "--schema", "id BIGINT"),
    "lakelog merge": ("lakelog", "merge", "--topic", "t"),
    "lakelog retain": ("lakelog", "retain", "--topic", "old"),
    "lakelog recover": ("lakelog", "recover", "--kafka-dir", KAFKA),
    "lakelog log-manager": ("lakelog", "log-manager", "--once", "--config", PROPERTIES),
    "lakelog groups describe": ("lakelog", "groups", "describe", "--all-groups"),
    "lakelog groups delete": ("lakelog", "groups", "delete", "--group", "g"),
    "lakelog consumers list": ("lakelog", "consumers", "list"),
    "lakelog ui": ("lakelog", "ui"),
    "lakelog ui --allow-changes": ("lakelog", "ui", "--allow-changes"),
    "lakelog broker alter": ("lakelog", "broker", "alter", "--config", "log.retention.hours=3"),
    "retention": ("retention", "--topic", "old"),
    "compaction": ("compaction", "--topic", "t"),
    "maintenance": ("maintenance",),
    "export": ("export",),
    "prove": ("prove",),
    "ingest": ("ingest",),
}  # fmt: skip
"""The commands of the table on the page."""


def rights_on_the_page() -> dict[str, dict[str, str]]:
    """By command, the rights on folders of a root with the topic t."""
    found: dict[str, dict[str, str]] = {}
    table = text_of(PAGE).partition("| what runs ")[2].partition("\n\n")[0]
    for row in table.splitlines()[2:]:
        names, writes, reads = (cell.strip() for cell in row.strip("|").split("|"))
        rights = dict.fromkeys(re.findall(r"`([^`]+)`", reads), READ)
        rights |= dict.fromkeys(re.findall(r"`([^`]+)`", writes), WRITE)
        for name in names.replace("`", "").split(", "):
            topic = "old" if "old" in COMMANDS.get(name, ()) else "t"
            found[name] = {folder.replace("<topic>", topic): right for folder, right in rights.items()}
    return found


RIGHTS = rights_on_the_page()


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of Spark's event log."""
    return tmp_path_factory.mktemp("events")


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory, events: Path) -> Iterator[Restricted]:
    options = {"eventLog.enabled": "true", "eventLog.dir": events.as_uri(), "eventLog.compress": "false"}
    submitted = [f"--conf spark.{name}={value}" for name, value in options.items()]
    environ = {"PYSPARK_SUBMIT_ARGS": " ".join([*submitted, "pyspark-shell"])}
    with restricted_process(tmp_path_factory.mktemp("process"), environ, 0o027) as started:
        yield started


@pytest.fixture(scope="module")
def template(process: Restricted, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a root and settings. Each command of the table has something to do in this root."""
    folder = tmp_path_factory.mktemp("template")
    root = folder / "root"

    def done(*words: str, stdin: str = "") -> None:
        ended = process.run(*words, "--root", str(root), stdin=stdin)
        assert ended.status == 0, ended

    compacted = ("cleanup.policy=compact", "min.cleanable.dirty.ratio=0.01", "segment.bytes=1024")
    for topic, keys in (("t", compacted), ("old", ("retention.ms=1",))):
        config = [word for key in (*keys, "file.delete.delay.ms=0") for word in ("--config", key)]
        done("lakelog", "topics", "create", topic, *config)
        for number in range(4):
            records = [line(b"k", VALUE + b" " * 300, timestamp=OLD + number)] * 4
            done("lakelog", "append", "--topic", topic, stdin="\n".join(records))
    done("lakelog", "read", "--topic", "t", "--group", "g", "--commit", "--max", "1")
    done("lakelog", "broker", "alter", "--config", "log.retention.hours=24", "--config", "lakelog.sweep.delay.ms=1")
    written(folder, root)
    for _ in range(3):
        done("lakelog", "append", "--topic", "t", stdin=line(b"k", VALUE))
        done("export", "--conf", str(folder / "settings.yaml"))
    done("lakelog", "append", "--topic", "t", stdin=line(b"k", VALUE))
    for staged in (root / "staging").glob("*/0"):
        (staged / "left-by-a-crash.batches").write_bytes(b"x")
    (root / "checkpoints").mkdir()
    return folder


def written(folder: Path, root: Path) -> None:
    """The settings of all jobs, and a source with one good and one malformed row."""
    source = folder / "source"
    source.mkdir()
    (source / "1.json").write_text('{"id": 1}\n{"id": "malformed"}\n')
    (folder / "settings.yaml").write_text(SETTINGS.format(root=root, source=source))


def ran(process: Restricted, template: Path, folder: Path, name: str, rights: Mapping[str, str]) -> Ended:
    """How a command ends in a copy of the template, with these rights."""
    root = folder / "root"
    if root.exists():
        shutil.rmtree(root)
        shutil.rmtree(folder / "source")
    subprocess.run(["cp", "-a", template / "root", root], check=True)  # keeps the times, and the links in log/
    written(folder, root)
    words = [str(folder / word) if word == "report.html" else word for word in prepared(name, root, folder)]
    settings = () if words[0] == "lakelog" else ("--conf", str(folder / "settings.yaml"))
    allow(root, rights)
    try:
        of_root = () if name in {"lakelog log-manager", "lakelog recover"} else ("--root", str(root))
        return process.run(*words, *settings, *of_root, stdin=line(b"k", VALUE, topic="t"))
    finally:
        allow_everything(root)


def prepared(name: str, root: Path, folder: Path) -> list[str]:
    """The words of a command, after something was added that the command needs."""
    words = list(COMMANDS.get(name, name.split()))
    if EXPORTED in words:
        shutil.rmtree(folder / "exported", ignore_errors=True)
        words[words.index(EXPORTED)] = str(folder / "exported")
    if IMPORTED in words:
        shutil.rmtree(folder / "imported", ignore_errors=True)
        shutil.copytree(GOLDEN / "codec_none/data", folder / "imported")
        words[words.index(IMPORTED)] = str(folder / "imported")
    if KAFKA in words:
        shutil.rmtree(folder / "kafka", ignore_errors=True)
        shutil.copytree(GOLDEN / "codec_none/data", folder / "kafka")
        words[words.index(KAFKA)] = str(folder / "kafka")
    if PROPERTIES in words:
        shutil.rmtree(folder / "kafka", ignore_errors=True)
        shutil.copytree(GOLDEN / "codec_none/data", folder / "kafka")
        (folder / "server.properties").write_text(f"log.dirs={folder / 'kafka'}\n")
        words[words.index(PROPERTIES)] = str(folder / "server.properties")
    topics = Topics(open_storage(str(root)), BrokerConfig(), ManualClock(OLD))
    if name == "lakelog merge":
        # Now the segments are small, and are merged although they were not compacted.
        topics.alter("t", None, {"segment.bytes": str(1 << 20), "cleanup.policy": "delete", "retention.ms": "-1"})
    if (
        name in {"lakelog transactions list", "lakelog transactions finish", "lakelog topics settle"}
        or PRODUCER in words
    ):
        begun = TransactionWriter(topics)
        begun.append("t", to_table([Row(b"k", VALUE, timestamp=OLD)]))
        producer_id = begun.producer_id
        assert producer_id is not None
        words = [str(producer_id) if word == PRODUCER else word for word in words]
        if name == "lakelog transactions decide":
            decide(topics.storage, topics.clock, producer_id, committed=True)
            ((root / TRANSACTIONS) / f"{producer_id:020d}.ended.json").write_bytes(b"{}")
    if name == "lakelog state sweep":
        log = max((root / "data").rglob("*.log"))
        shutil.copyfile(log, log.with_name(f"{log.name[:-12]}deadbeef.log"))
    if name == "lakelog state prune":
        state = topics.state("t")
        for _ in range(PRUNED):  # written without fsync, which would take most of the time
            following = {"version": state.version + 1, "parent": state.id, "id": uuid.uuid4().hex}
            state = state.model_copy(update=following)
            (root / version_key("t", state.version)).write_bytes(encode_state(state))
    if name == "lakelog verify --repair":
        for index in (root / "data").rglob("*.index"):
            index.write_bytes(bytes(7) + b"\1")  # says that the first batch begins at position 1
        for folder_of_files, pattern in (("log", "*.timeindex"), ("meta/t", "*5.json")):
            path = max((root / folder_of_files).rglob(pattern))
            path.write_bytes(path.read_bytes()[:-1] + b"x")
    return words


def test_the_page_lists_the_commands_that_are_tested() -> None:
    assert RIGHTS.keys() == COMMANDS.keys()


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_needs_exactly_the_rights_on_the_page(
    process: Restricted, template: Path, tmp_path: Path, name: str
) -> None:
    every = dict.fromkeys(("meta/", "data/", "staging/", "log/", "checkpoints/", "tables/"), WRITE)
    expected = ran(process, template, tmp_path, name, every)
    assert "Permission denied" not in expected.out + expected.err

    ended = ran(process, template, tmp_path, name, RIGHTS[name])

    assert ended.status == expected.status, ended
    assert "Permission denied" not in ended.out + ended.err
    for folder, right in RIGHTS[name].items():
        fewer = {**RIGHTS[name], folder: READ if right == WRITE else NONE}
        refused = ran(process, template, tmp_path, name, fewer)
        assert "Permission denied" in refused.out + refused.err, (folder, refused)


def test_doctor_writes_only_into_the_root_itself_and_names_the_folders_that_the_user_cannot_write(
    process: Restricted, template: Path, tmp_path: Path
) -> None:
    ended = ran(process, template, tmp_path, "lakelog doctor", {"./": WRITE, "meta/": READ})
    assert ended.status == 1
    found = [line for line in ended.out.splitlines() if not line.startswith("ok")]
    (problem,) = [line for line in found if "mount (" not in line]  # these tests may write to memory
    assert "cannot write in meta/, data/, staging/, checkpoints/, tables/, log/" in problem
    for fewer in ({"./": WRITE}, {"meta/": READ}):
        refused = ran(process, template, tmp_path, "lakelog doctor", fewer)
        assert "Permission denied" in refused.out + refused.err, refused


# --- Secrets ----------------------------------------------------------------------------------------------------------

PASSWORD = "s3cret"
LOGIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
FROM_KAFKA = """
root: {root}
topics: {{orders: {{partitions: 1}}}}
ingest:
  topic: orders
  source:
    format: kafka
    options:
      kafka.bootstrap.servers: "127.0.0.1:9"
      subscribe: orders
      kafka.security.protocol: SASL_PLAINTEXT
      kafka.sasl.mechanism: PLAIN
      kafka.default.api.timeout.ms: 500
      kafka.request.timeout.ms: 500
      kafka.sasl.jaas.config: '{login}'
  value: value
"""


def test_the_password_of_a_kafka_login_is_in_no_message_of_spark_and_in_no_file(
    process: Restricted, events: Path, tmp_path: Path
) -> None:
    ended = []
    logins = (f"{LOGIN_MODULE} {PASSWORD} required;", f'{LOGIN_MODULE} required username="u" password="{PASSWORD}";')
    for login in logins:
        conf = tmp_path / "settings.yaml"
        conf.write_text(FROM_KAFKA.format(root=tmp_path / "root", login=login))
        noise = process.noise.stat().st_size
        ended.append((process.run("ingest", "--conf", str(conf)), process.noise.read_text()[noise:]))
    conf.unlink()

    (malformed, silence), (unreachable, errors) = ended
    assert malformed.status == 1
    assert "Kafka does not understand the login: Invalid login module control flag ..." in malformed.err
    assert "MicroBatchExecution" not in silence, "the stream was not started"
    assert unreachable.status == 1
    assert "ingest of orders from kafka, subscribe orders, at 127.0.0.1:9: Spark ended the stream: " in unreachable.err
    assert "ERROR MicroBatchExecution" in errors, (
        "Spark has printed its own error, with the options of the source at hand"
    )
    printed = "".join(each.out + each.err for each, _ in ended) + process.noise.read_text()
    assert PASSWORD not in printed
    logged = {path: path.read_bytes() for path in events.rglob("*") if path.is_file()}
    assert any(b"QueryTerminatedEvent" in content for content in logged.values())
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert tmp_path / "root/meta/orders/00000000000000000000.json" in files
    assert [path for path, content in (logged | files).items() if PASSWORD.encode() in content] == []


# --- Modes ------------------------------------------------------------------------------------------------------------

_FILL = """
import os, sys
import lakelog

for root, umask in zip(sys.argv[1::2], sys.argv[2::2]):
    os.umask(int(umask, 8))
    topic = lakelog.open(root, create=True).create_topic("t")
    topic.append([{"key": b"k", "value": b"v"}])
    list(topic.follow(group="g", start="earliest", stop_at_end=True))
"""


def modes_on_the_page() -> dict[str, tuple[int, int]]:
    """By umask, the modes of files and of folders."""
    rows = re.findall(r"^\| `(\d{3})` \| `(\d{3})` \| `(\d{3})`", text_of(PAGE), re.MULTILINE)
    return {umask: (int(files, 8), int(folders, 8)) for umask, files, folders in rows}


def test_new_files_have_the_modes_of_the_umask_and_the_group_of_the_root(tmp_path: Path) -> None:
    group = 65534 if os.geteuid() == 0 else os.getgroups()[-1]
    modes = modes_on_the_page()
    assert set(modes) == {"022", "002", "007", "077"}
    roots = {umask: tmp_path / umask for umask in modes}
    for root in roots.values():
        root.mkdir()
        os.chown(root, -1, group)
        root.chmod(0o2770)
    words = [word for umask, root in roots.items() for word in (root, umask)]
    subprocess.run([sys.executable, "-c", _FILL, *words], cwd=PROJECT, check=True)

    for umask, root in roots.items():
        found = [path for path in root.rglob("*") if ".tmp-" not in path.name]
        assert {path.name for path in root.iterdir()} == {"meta", "data", "staging", "log"}, umask
        assert {path.stat().st_gid for path in found} == {group}, umask
        files, folders = modes[umask]
        assert {stat.S_IMODE(path.stat().st_mode) for path in found if path.is_file()} == {files}, umask
        assert {stat.S_IMODE(path.stat().st_mode) & 0o777 for path in found if path.is_dir()} == {folders}, umask


def test_files_of_spark_have_the_modes_of_the_umask(process: Restricted, tmp_path: Path) -> None:
    root = tmp_path / "root"
    written(tmp_path, root)
    ended = process.run("ingest", "--conf", str(tmp_path / "settings.yaml"))
    assert ended.status == 0, ended
    assert next((root / "checkpoints").rglob("offsets/0")).is_file()
    assert next((root / "tables/dead_letters").rglob("*.parquet")).is_file()
    found = [(path, stat.S_IMODE(path.stat().st_mode)) for path in root.rglob("*")]
    assert [(path, oct(mode)) for path, mode in found if mode != (0o750 if path.is_dir() else 0o640)] == []


_AS_ANOTHER = """
import importlib, os, pkgutil, sys
import lakelog
import storage_engine

for package in (storage_engine, lakelog):  # another user may not read the modules and the compiled kernels
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if "spark" not in module.name and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
lakelog.open(sys.argv[4], create=True).create_topic("t").append([{"value": b"loads every module"}])
sys.modules["storage_engine.record.kernels.compiled"].load_kernels()
os.umask(0o007)
if os.geteuid() == 0:
    os.setgroups([int(sys.argv[3])])
    os.setgid(int(sys.argv[2]))
    os.setuid(int(sys.argv[2]))
root = lakelog.open(sys.argv[1], create=True)
topic = root.topic("t") if "t" in root.topics() else root.create_topic("t", config={"segment.bytes": "1024"})
for _ in range(3):
    topic.append([{"key": b"k", "value": b"v" * 400}] * 2)
print(topic.read(start="earliest").to_arrow().num_rows, root.verify().found)
"""


def test_the_page_s_commands_make_a_root_that_a_group_shares() -> None:
    """Two users append in turn, as the superuser can start them; otherwise the same user twice."""
    (block,) = blocks(PAGE, "sh")
    group = "65533" if os.geteuid() == 0 else str(os.getgid())
    with tempfile.TemporaryDirectory() as name:  # pytest's own folder may not be entered by other users
        folder = Path(name)
        folder.chmod(0o755)
        script = block.text.replace("/mnt/shared", str(folder)).replace("chgrp lakelog", f"chgrp {group}")
        subprocess.run(["bash", "-e", "-c", script], check=True)
        for number, user in enumerate(("65531", "65532"), 1):
            words = [str(folder / "lakelog"), user, group, str(folder / f"loads{number}")]
            ended = subprocess.run(
                [sys.executable, "-c", _AS_ANOTHER, *words], cwd=PROJECT, capture_output=True, text=True, check=False
            )
            assert (ended.returncode, ended.stderr) == (0, "")
            assert ended.stdout == f"{6 * number} ()\n"
        log = folder / "lakelog/log/t-0"
        assert {path.stat().st_gid for path in log.iterdir()} == {int(group)}
        assert len(list(log.glob("*.log"))) >= 3


@pytest.mark.parametrize("scheme", ["s3", "s3a", "gs", "az", "abfss", "http"])
def test_a_root_with_a_password_is_refused_without_the_password(scheme: str) -> None:
    with pytest.raises(ConfigError) as refused:
        open_storage(f"{scheme}://key:{PASSWORD}@bucket/prefix")
    assert str(refused.value) == (
        "root: the URI contains a user and a password. Remove both from the URI (docs/STORAGE.md, Credentials)."
    )
