"""Runs small Java programs that use Kafka's own classes: one source file each, in a JVM of its own.

No JDK is needed: Janino, which is among Spark's jars, compiles the file when the program starts. Janino supports no
type arguments and no lambdas, so these files have casts and anonymous classes instead. Kafka's jars come from the
broker that the tests start.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyspark

from tests.kafka_broker import distribution


def kafka_command(source: Path, java_options: Sequence[str] = ()) -> list[str]:
    """How a Java file starts, whose class has the file's name."""
    jars = Path(pyspark.__file__).parent / "jars"
    compiler = [str(next(jars.glob(f"{name}-3*.jar"))) for name in ("janino", "commons-compiler")]
    return [
        "java", *java_options, "-cp", ":".join([*compiler, f"{distribution()}/*"]),
        "org.codehaus.janino.SimpleCompiler", str(source), source.stem,
    ]  # fmt: skip
