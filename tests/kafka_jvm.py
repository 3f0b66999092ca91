"""Runs small Java programs that use Kafka's own classes: one source file each, in a JVM of its own.

No JDK is needed: Janino, which is among Spark's jars, compiles the file when the program starts. Janino supports no
type arguments and no lambdas, so these files have casts and anonymous classes instead. Kafka's jars come from the
broker that the tests start.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pyspark

from bench.turns import Peer
from tests.kafka_broker import distribution


def kafka_command(source: Path, java_options: Sequence[str] = ()) -> list[str]:
    """How a Java file starts, whose class has the file's name."""
    jars = Path(pyspark.__file__).parent / "jars"
    compiler = [str(next(jars.glob(f"{name}-3*.jar"))) for name in ("janino", "commons-compiler")]
    return [
        "java", *java_options, "-cp", ":".join([*compiler, f"{distribution()}/*"]),
        "org.codehaus.janino.SimpleCompiler", str(source), source.stem,
    ]  # fmt: skip


class KafkaJvm:
    """A running Java program, and a folder for its files, in memory if possible. `close` ends both.

    folder: the folder. program: the Java program.
    """

    def __init__(self, source: Path, java_options: Sequence[str]) -> None:
        self._command = kafka_command(source, java_options)
        with ExitStack() as stack:
            memory = Path("/dev/shm")
            room = memory if os.access(memory, os.W_OK) else None
            self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lakelog-judge-", dir=room)))
            self.program = stack.enter_context(Peer(self._command))
            self._stack = stack.pop_all()

    def restart(self) -> None:
        """Start the Java program again."""
        self.program.__exit__(None, None, None)
        self.program = self._stack.enter_context(Peer(self._command))

    def close(self) -> None:
        self._stack.close()
