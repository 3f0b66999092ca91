"""`lakelog metrics`: the metrics on standard output, in a file, and over HTTP as Prometheus reads them."""

from __future__ import annotations

import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_engine.clock import SystemClock
from storage_engine.config import BrokerConfig
from storage_engine.topic.chain.version_files import version_key
from storage_engine.topic.readers.consumer_files import GROUP_KIND, put_positions
from storage_engine.topic.topics import Topics
from tests.lakelog.cli.conftest import Lakelog, line
from tests.lakelog.terminal import Terminal
from tests.stores import root_at, storage_at


@pytest.fixture
def seeded(lakelog: Lakelog) -> Lakelog:
    """Topics a and b, with a record each."""
    for name in ("a", "b"):
        lakelog("topics", "create", name)
        lakelog("append", "--topic", name, stdin=[line(b"k", b"v")])
    return lakelog


def damage(root: Path, topic: str) -> None:
    storage_at(root).replace(version_key(topic, 1), b'{"id":"x"}')


def test_metrics_are_printed_with_the_name_of_the_roots_folder(seeded: Lakelog) -> None:
    ended = seeded("metrics")
    assert (ended.status, ended.err) == (0, "")
    assert 'kafka_partition_latest_offset{cluster_name="root",partition="0",topic="a"} 1.0\n' in ended.out
    assert 'cluster_name="prod"' in seeded("metrics", "--cluster", "prod").out


def test_a_terminal_gets_no_control_characters_and_a_program_gets_the_names_unchanged(
    seeded: Lakelog, tmp_path: Path
) -> None:
    topics = Topics(storage_at(tmp_path / "root"), BrokerConfig(), SystemClock())
    put_positions(topics.storage, topics.state("a"), "g\x1b[31m", GROUP_KIND, {0: 0}, 0)
    assert 'group="g\x1b[31m"' in seeded("metrics").out
    terminal = Terminal()
    arguments = [sys.executable, "-m", "lakelog.cli", "metrics", "--root", root_at(tmp_path / "root")]
    with subprocess.Popen(arguments, stdout=terminal.stream) as process:
        terminal.see('status="REWIND",topic="a"} 0.0')
        assert process.wait(60) == 0
    shown = terminal.close()
    assert ("\x1b" in shown, 'group="g\\x1b[31m"' in shown) == (False, True)


def test_a_damaged_topic_is_named_and_the_others_are_there(seeded: Lakelog, tmp_path: Path) -> None:
    damage(tmp_path / "root", "a")
    ended = seeded("metrics")
    assert ended.status == 4
    assert ended.err.startswith(f"lakelog: {version_key('a', 1)} at position ")
    assert 'lakelog_topic_readable{topic="a"} 0.0\nlakelog_topic_readable{topic="b"} 1.0\n' in ended.out
    assert 'kafka_topic_partitions{topic="b"} 1.0\n' in ended.out


def test_a_file_gets_the_same_text_as_a_whole(seeded: Lakelog, tmp_path: Path) -> None:
    file = tmp_path / "lakelog.prom"
    file.write_text("old")
    ended = seeded("metrics", "--textfile", str(file))
    assert (ended.status, ended.out, ended.err) == (0, "", "")
    assert file.read_text().startswith("# HELP kafka_topic_partitions ")
    assert {path.name for path in tmp_path.iterdir()} - {"root"} == {"lakelog.prom"}


@pytest.mark.parametrize(
    ("options", "status", "problem"),
    [
        (("--listen", "9308"), 2, "--listen: expected HOST:PORT; found '9308'. For example 127.0.0.1:9308."),
        (("--listen", "::1:9308"), 2, "--listen: expected HOST:PORT; found '::1:9308'."),
        (("--listen", "localhost:99999"), 2, "--listen: expected HOST:PORT; found 'localhost:99999'."),
        (("--listen", ":1", "--textfile", "x"), 2, "--textfile: --listen is given, too. Give only one of the two."),
        (("--every", "5"), 2, "--every: --textfile is not given. Name the file to write."),
        (("--textfile", "/no/such/x.prom"), 1, "--textfile /no/such/x.prom: found no directory /no/such."),
        (("--textfile", "/dev/null"), 1, "--textfile /dev/null: exists and is not a regular file. Name a file."),
    ],
)
def test_wrong_options_are_refused(seeded: Lakelog, options: tuple[str, ...], status: int, problem: str) -> None:
    ended = seeded("metrics", *options)
    assert (ended.status, ended.out) == (status, "")
    assert ended.err.startswith(f"lakelog: {problem}")


@pytest.mark.parametrize("seconds", ["inf", "nan", "1e10", "0"])
def test_an_interval_that_no_clock_can_wait_is_refused(seeded: Lakelog, tmp_path: Path, seconds: str) -> None:
    ended = seeded("metrics", "--textfile", str(tmp_path / "x.prom"), "--every", seconds)
    assert (ended.status, ended.out) == (2, "")
    assert "Invalid value for '--every'" in ended.err
    assert not (tmp_path / "x.prom").exists()


def test_without_the_extra_metrics_say_how_to_install_it_and_the_check_works(seeded: Lakelog, tmp_path: Path) -> None:
    without = "import sys; sys.modules['prometheus_client'] = None; from lakelog.cli import main; main()"
    ended = {
        name: subprocess.run(
            [sys.executable, "-c", without, name, "--root", root_at(tmp_path / "root")],
            capture_output=True, text=True, check=False,
        )
        for name in ("metrics", "check")
    }  # fmt: skip
    assert (ended["metrics"].returncode, ended["metrics"].stdout) == (1, "")
    assert ended["metrics"].stderr == (
        "lakelog: prometheus_client: The command `lakelog metrics` requires the package prometheus_client, which is not"
        " installed. Run: pip install 'lakelog[metrics]'.\n"
    )
    assert ended["check"].stdout.startswith("LAKELOG ")


class Endpoint:
    """A running `lakelog metrics --listen`."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process = process
        self.url = url

    def scrape(self) -> str:
        with urllib.request.urlopen(self.url, timeout=60) as answer:
            assert answer.status == 200
            return str(answer.read().decode())


@pytest.fixture
def endpoint(seeded: Lakelog, tmp_path: Path) -> Iterator[Endpoint]:
    arguments = ["metrics", "--listen", "127.0.0.1:0", "--root", root_at(tmp_path / "root")]
    process = subprocess.Popen([sys.executable, "-m", "lakelog.cli", *arguments], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    first = process.stderr.readline()
    assert first.startswith("lakelog: metrics at http://127.0.0.1:")
    yield Endpoint(process, first.split()[-1])
    process.kill()
    process.wait()
    process.stderr.close()


def test_the_endpoint_answers_every_scrape_with_what_is_there(
    endpoint: Endpoint, seeded: Lakelog, tmp_path: Path
) -> None:
    assert 'kafka_topic_partition_current_offset{partition="0",topic="a"} 1.0\n' in endpoint.scrape()
    seeded("append", "--topic", "a", stdin=[line(b"k", b"v")])
    assert 'kafka_topic_partition_current_offset{partition="0",topic="a"} 2.0\n' in endpoint.scrape()
    storage_at(tmp_path / "root").put_new(version_key("a", 3), b'{"id":"x"}')
    for _ in range(2):
        text = endpoint.scrape()
        assert 'lakelog_topic_readable{topic="a"} 0.0\nlakelog_topic_readable{topic="b"} 1.0\n' in text
        assert 'topic="a"} 2.0' not in text
    endpoint.process.send_signal(signal.SIGTERM)
    assert endpoint.process.wait(60) == 0
    assert endpoint.process.stderr is not None
    (error,) = endpoint.process.stderr.read().splitlines()
    assert error.startswith(f"lakelog: {version_key('a', 3)} at position ")


def test_a_port_that_is_taken_is_named(endpoint: Endpoint, seeded: Lakelog) -> None:
    port = endpoint.url.split(":")[2].split("/")[0]
    ended = seeded("metrics", "--listen", f"127.0.0.1:{port}")
    assert (ended.status, ended.out) == (1, "")
    assert ended.err == (
        f"lakelog: --listen 127.0.0.1:{port}: cannot be opened: Address already in use. Choose another address.\n"
    )


def test_a_file_is_written_again_until_the_process_is_stopped(seeded: Lakelog, tmp_path: Path) -> None:
    file = tmp_path / "lakelog.prom"
    arguments = ["metrics", "--textfile", str(file), "--every", "1", "--root", root_at(tmp_path / "root")]
    process = subprocess.Popen([sys.executable, "-m", "lakelog.cli", *arguments])
    try:
        seeded("append", "--topic", "a", stdin=[line(b"k", b"v")])
        while not (file.exists() and 'current_offset{partition="0",topic="a"} 2.0' in file.read_text()):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
