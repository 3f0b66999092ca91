"""Runs Kafka's own command-line tools. All runs share one JVM, because the start of a JVM takes seconds."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.in_process import Ended
from tests.java_options import JAVA_FLAGS
from tests.kafka_jvm import kafka_command

CLASSES = {
    "kafka-dump-log": "org.apache.kafka.tools.DumpLogSegments",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
}
"""The class of each tool, by the name of its script."""


class KafkaTools:
    """The JVM. The context starts and ends it."""

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="kafka-tools-")
        logging = Path(self._folder.name, "log4j2.properties")
        logging.write_text("rootLogger = OFF\n")
        options = [*JAVA_FLAGS, "-Xmx128m", f"-Dlog4j2.configurationFile={logging}"]
        command = kafka_command(Path(__file__).with_name("KafkaTools.java"), options)
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._folder.cleanup()

    def run(self, tool: str, *arguments: str) -> Ended:
        """Run a tool. Give the name of its script, and arguments that contain no tab and no line end."""
        return self.run_class(CLASSES[tool], *arguments)

    def run_class(self, name: str, *arguments: str) -> Ended:
        """Run the main method of a class."""
        requests, answers = self._process.stdin, self._process.stdout
        assert requests is not None
        assert answers is not None
        requests.write("\t".join([name, *arguments]).encode() + b"\n")
        requests.flush()
        status, out, err = map(int, answers.readline().split())
        return Ended(status, answers.read(out).decode(), answers.read(err).decode())
