"""Starts a small HDFS for tests: one NameNode and two DataNodes, each in its own JVM, on free ports of loopback.

The jars are fetched from Maven at the first use. There are two DataNodes, because the close of a file takes half a
second longer if each block has only one replica (storage_engine.storage.hdfs). The data is in a temporary directory,
which is deleted with the cluster. A NameNode that was killed can be started again on its directory and port.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.request import urlopen

from tests.free_ports import free_ports
from tests.ivy import fetched_jars, java
from tests.java_options import JAVA_FLAGS

VERSION = "3.5.0"
DATANODES = 2
_PATIENCE_SECONDS = 120
_DEPENDENCIES = f"""
    <dependency org="org.apache.hadoop" name="hadoop-client-minicluster" rev="{VERSION}"/>
    <dependency org="org.slf4j" name="slf4j-simple" rev="1.7.36"/>
"""
_SERVERS = "org.apache.hadoop.hdfs.server"


class HdfsCluster:
    """A running cluster; as a context it is started and ended.

    uri: of its root folder. port: of the NameNode, on 127.0.0.1.
    """

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="hdfs-", ignore_cleanup_errors=True)
        self.port, self._http_port = free_ports(2)
        self.uri = f"hdfs://127.0.0.1:{self.port}/"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        try:
            command = self._command("namenode", "namenode.NameNode")
            subprocess.run([*command, "-format", "-nonInteractive"], check=True, stderr=subprocess.DEVNULL)
            self.start_namenode()
            self._wait_for(datanodes=0)  # a DataNode that finds no NameNode waits for five seconds
            self.start_datanodes()
            self.wait_until_ready()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()
        self._folder.cleanup()

    def start_namenode(self) -> None:
        self._start("namenode", "namenode.NameNode")

    def start_datanodes(self) -> None:
        for number in range(DATANODES):
            self._start(f"datanode{number}", "datanode.DataNode")

    def kill_namenode(self) -> None:
        self._kill("namenode")

    def kill_datanodes(self) -> None:
        for number in range(DATANODES):
            self._kill(f"datanode{number}")

    def _kill(self, name: str) -> None:
        self._processes[name].kill()
        self._processes[name].wait()

    def administer(self, *arguments: str) -> None:
        """Run `hdfs dfsadmin` with these arguments."""
        subprocess.run(
            [*self._java("namenode"), "org.apache.hadoop.hdfs.tools.DFSAdmin", *arguments],
            check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    @contextmanager
    def stopped_namenode(self) -> Iterator[None]:
        """In the block, the NameNode keeps its connections open, but does not answer."""
        process = self._processes["namenode"]
        os.kill(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)  # until all of its threads have stopped
        try:
            yield
        finally:
            os.kill(process.pid, signal.SIGCONT)

    def wait_until_ready(self) -> None:
        """Return when all DataNodes have registered and the NameNode has left safe mode."""
        self._wait_for(DATANODES)

    def _wait_for(self, datanodes: int) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while self._state() != [("Operational", datanodes)]:
            if time.monotonic() > deadline or any(each.poll() is not None for each in self._processes.values()):
                said = "\n".join(file.read_text()[-2000:] for file in Path(self._folder.name).glob("*.out"))
                raise RuntimeError(f"HDFS does not start: {said}")
            time.sleep(0.2)

    def _state(self) -> Sequence[tuple[str, int]]:
        address = f"http://127.0.0.1:{self._http_port}/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"
        try:
            with urlopen(address, timeout=10) as reply:
                return [(each["FSState"], each["NumLiveDataNodes"]) for each in json.load(reply)["beans"]]
        except OSError:
            return []

    def _start(self, name: str, main_class: str) -> None:
        with (Path(self._folder.name) / f"{name}.out").open("ab") as said:
            self._processes[name] = subprocess.Popen(self._command(name, main_class), stdout=said, stderr=said)

    def _command(self, name: str, main_class: str) -> list[str]:
        folder = Path(self._folder.name) / name
        folder.mkdir(exist_ok=True)
        _write_settings(folder / "core-site.xml", {"fs.defaultFS": self.uri})
        _write_settings(
            folder / "hdfs-site.xml",
            {
                "dfs.namenode.name.dir": f"{folder}/names",
                "dfs.namenode.http-address": f"127.0.0.1:{self._http_port}",
                "dfs.namenode.safemode.extension": "0",
                "dfs.datanode.data.dir": f"{folder}/blocks",
                "dfs.datanode.address": "127.0.0.1:0",
                "dfs.datanode.http.address": "127.0.0.1:0",
                "dfs.datanode.ipc.address": "127.0.0.1:0",
                "dfs.heartbeat.interval": "1",
                "dfs.replication": str(DATANODES),
                "ipc.client.connect.retry.interval": "200",
            },
        )
        return [*self._java(name), f"{_SERVERS}.{main_class}"]

    def _java(self, name: str) -> list[str]:
        classpath = f"{self._folder.name}/{name}:{fetched_jars(f'hadoop-{VERSION}', _DEPENDENCIES)}/*"
        logging = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        return [java(), *JAVA_FLAGS, "-Xmx256m", logging, "-cp", classpath]


def _write_settings(file: Path, settings: Mapping[str, str]) -> None:
    properties = (f"<property><name>{name}</name><value>{value}</value></property>" for name, value in settings.items())
    file.write_text(f"<configuration>{''.join(properties)}</configuration>")
