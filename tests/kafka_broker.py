"""Starts a real Kafka broker for tests and benchmarks that need one. The tests and benchmarks connect to the broker
over loopback, and stop the broker at the end.

The distribution is downloaded from Maven at the first use, with Ivy, which is one of Spark's jars, and is stored in
.venv. The broker is one KRaft node in its own JVM, because Spark's logging conflicts with Kafka's. The JVM has a small
heap and the options in java_options.py, so that it starts fast. A benchmark that measures more than the start of the
broker must pass other `java_options`. The broker's data is in a temporary directory, which is deleted with the broker.
The broker can be stopped and started again on this directory. While the broker is stopped, a test can replace the files
of its partitions.

A secure broker has a second listener, with TLS and passwords (SASL_SSL, PLAIN). `keytool` makes its certificate.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from kafka import KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic
from kafka.errors import KafkaError

from storage_engine.log.checkpoint import CLEAN_SHUTDOWN, META_PROPERTIES, PARTITION_METADATA
from tests.free_ports import free_ports
from tests.ivy import fetched_jars, java
from tests.java_options import JAVA_FLAGS

VERSION = "4.3.1"
PATIENCE_SECONDS = 120

_DEPENDENCIES = f"""
    <dependency org="org.apache.kafka" name="kafka_2.13" rev="{VERSION}"/>
    <dependency org="org.apache.kafka" name="kafka-tools" rev="{VERSION}">
      <exclude module="connect-runtime"/><exclude module="connect-api"/><exclude module="connect-json"/>
    </dependency>
    <dependency org="org.apache.logging.log4j" name="log4j-slf4j-impl" rev="2.25.4"/>
"""

_PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
log.dirs={data}
auto.create.topics.enable=false
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
metadata.max.idle.interval.ms=0
"""

USER, PASSWORD = "lakelog", "correct horse-battery$staple"
STORE_PASSWORD = "store-pass-word"
_SECURE_PROPERTIES = """
listeners=PLAINTEXT://127.0.0.1:{port},SASL_SSL://127.0.0.1:{secure_port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},SASL_SSL://127.0.0.1:{secure_port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT
sasl.enabled.mechanisms=PLAIN
ssl.keystore.location={keystore}
ssl.keystore.password={store_password}
ssl.keystore.type=PKCS12
listener.name.sasl_ssl.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \\
    user_{user}="{password}";
"""

_LOGGING = """
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %p %c: %m%n
rootLogger = WARN, out
logger.logs.name = kafka.log.LogManager
logger.logs.level = INFO
"""


class KafkaBroker:
    """A running broker. The context starts and ends it.

    port: where clients find it, on 127.0.0.1. data: its log directory. properties: its server.properties.
    secure_port, truststore: only of a secure broker: the port with TLS and passwords, and the store with its certificate.
    """

    def __init__(
        self,
        java_options: Sequence[str] = (*JAVA_FLAGS, "-Xmx256m"),
        more_properties: str = "",
        *,
        secure: bool = False,
    ) -> None:
        """
        Args:
            more_properties: further lines of its server.properties.
        """
        self._java_options = java_options
        self._more_properties = more_properties
        self._secure = secure

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        classpath = f"{distribution()}/*"
        self._folder = tempfile.TemporaryDirectory(prefix="kafka-", ignore_cleanup_errors=True)
        folder = Path(self._folder.name)
        self.data = folder / "data"
        self.port, self.secure_port, controller_port = free_ports(3)
        properties, logging = folder / "server.properties", folder / "log4j2.properties"
        lines = _PROPERTIES.format(port=self.port, controller_port=controller_port, data=self.data)
        properties.write_text(lines + self._more_properties + self._secure_lines(folder, controller_port))
        self.properties = properties
        logging.write_text(_LOGGING)
        command = [java(), *self._java_options, f"-Dlog4j2.configurationFile={logging}", "-cp", classpath]
        cluster_id = "AAAAAAAAAAAAAAAAAAAAAQ"
        subprocess.run(
            [*command, "kafka.tools.StorageTool", "format", "--cluster-id", cluster_id, "--config", properties],
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        self._command = [*command, "kafka.Kafka", str(properties)]
        self._said = folder / "server.out"
        try:
            self.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _secure_lines(self, folder: Path, controller_port: int) -> str:
        """Make the certificate of a secure broker. Returns the lines of its server.properties."""
        if not self._secure:
            return ""
        keystore, certificate, self.truststore = (folder / name for name in ("key.p12", "broker.cer", "trust.p12"))
        keytool = str(Path(java()).with_name("keytool"))
        for verb, store in (
            ("-genkeypair -alias broker -keyalg EC -dname CN=127.0.0.1 -ext SAN=ip:127.0.0.1", keystore),
            (f"-exportcert -alias broker -file {certificate}", keystore),
            (f"-importcert -noprompt -alias broker -file {certificate}", self.truststore),
        ):
            command = [
                keytool,
                *verb.split(),
                "-keystore",
                str(store),
                "-storepass",
                STORE_PASSWORD,
                "-storetype",
                "PKCS12",
            ]
            subprocess.run(command, check=True, capture_output=True)
        return _SECURE_PROPERTIES.format(
            port=self.port, secure_port=self.secure_port, controller_port=controller_port, keystore=keystore,
            store_password=STORE_PASSWORD, user=USER, password=PASSWORD,
        )  # fmt: skip

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()

    def start(self) -> None:
        """Start; returns when clients can use it."""
        with self._said.open("w") as said:
            self._process = subprocess.Popen(self._command, stdout=said, stderr=said)
        self._wait_until_ready()

    def stop(self) -> None:
        """Stop the broker in an orderly way. Its files are then in the state in which Kafka leaves them."""
        self._process.terminate()
        self._process.wait(PATIENCE_SECONDS)

    def kill(self) -> None:
        """Kill the broker. Its files are then in the state in which a crash leaves them."""
        self._process.kill()
        self._process.wait()

    @property
    def complaints(self) -> list[str]:
        """What it has logged as warnings and errors since it was started last."""
        return [line for line in self.said if line.startswith(("WARN", "ERROR", "FATAL"))]

    @property
    def said(self) -> list[str]:
        """What it has logged since it was started last: warnings and errors, and how it loads its logs."""
        return self._said.read_text().splitlines()

    def put(self, directory: Path, *, cleanly_closed: bool) -> None:
        """Replace the broker's partitions and checkpoints by those of another log directory. The broker finds them at
        its next start.

        The broker must be stopped, and must have topics with these names. The folders keep the broker's own
        partition.metadata, because it contains the broker's ids of the topics.
        """
        for theirs in directory.iterdir():
            mine = self.data / theirs.name
            if theirs.is_dir():
                metadata = (mine / PARTITION_METADATA).read_bytes()
                shutil.rmtree(mine)
                shutil.copytree(theirs, mine)
                (mine / PARTITION_METADATA).write_bytes(metadata)
            elif theirs.name not in (META_PROPERTIES, CLEAN_SHUTDOWN):
                shutil.copyfile(theirs, mine)
        (self.data / CLEAN_SHUTDOWN).unlink(missing_ok=True)
        if cleanly_closed:
            (self.data / CLEAN_SHUTDOWN).touch()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                self._admin().close()
                return
            except KafkaError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"the broker does not start: {self._said.read_text()}") from None

    def _admin(self) -> KafkaAdminClient:
        # Its own patience grows to half a minute between two attempts, while the broker starts in seconds.
        return KafkaAdminClient(bootstrap_servers=self.bootstrap_servers, reconnect_backoff_max_ms=200)

    def create_topic(self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        """Returns when clients can find it."""
        admin = self._admin()
        try:
            admin.create_topics([NewTopic(name, partitions, 1, topic_configs=configs)], wait_for_metadata=True)
        finally:
            admin.close()

    def send(self, topic: str, value: bytes | None, key: bytes | None = None) -> None:
        """Append one record; returns when the broker has it."""
        producer = KafkaProducer(bootstrap_servers=self.bootstrap_servers)
        producer.send(topic, value, key=key)
        producer.close()


def distribution() -> Path:
    """The folder with the jars of Kafka's broker and tools, fetched where it is not there (half a minute)."""
    return fetched_jars(f"kafka-{VERSION}", _DEPENDENCIES)
