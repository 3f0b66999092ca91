"""Adds jars to the Spark of this environment, once: of Delta, Spark's Kafka source, S3, Azure, and Lakelog's own Java
classes.

Spark's setting `spark.jars.packages` could add the same jars, but this setting has three disadvantages. With the
setting, each start of Spark resolves the jars again, which takes a second and prints eighty lines. If the cache is
empty, each start of Spark needs a network. If a user gives other packages with --packages, Spark starts without Delta.
The jars come from the same repositories as with `spark.jars.packages`: Spark's own Ivy downloads the jars, with the
user's proxies, mirrors and cache. The versions are those of PySpark and delta-spark in requirements.lock. Ivy's output
is printed on standard error.

The Java classes in pipeline/spark/jvm/ are compiled here with Janino, the compiler that Spark contains. So this machine
needs only a JRE, and no JDK.

After the last jar is added, this program writes a list of the requested packages into the folder of the jars. If the
list in the folder already names the requested packages and classes, the program does nothing. An interrupted set-up
leaves no list, so the next set-up does the work again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import pyspark
from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JJavaError
from pyspark.java_gateway import launch_gateway


@dataclass(frozen=True)
class Package:
    """A package to resolve. excluded: patterns of dependencies that are not added. None: no dependency is added."""

    coordinate: str
    excluded: str | None = None


SCALA = "2.13"
SPARK = version("pyspark")
AWS_SDK = "2.35.4"
IN_SPARK = "io.netty:*,org.apache.httpcomponents:*,org.slf4j:*,commons-*:*"
PACKAGES = [
    # Delta's dependencies that Spark already contains (Hadoop, Parquet, Jackson...: 85 MB) are excluded.
    Package(
        f"io.delta:delta-spark_{'.'.join(SPARK.split('.')[:2])}_{SCALA}:{version('delta-spark')}",
        "org.*:*,com.*:*,commons-*:*,javax.*:*,io.airlift:*",
    ),
    # The Kafka source needs two libraries that Spark does not contain. It also needs a module for delegation tokens.
    # Some repositories do not have this module in the version of this Spark. Version 4.0.0 can be resolved, and has the
    # same classes.
    Package(f"org.apache.spark:spark-sql-kafka-0-10_{SCALA}:{SPARK}"),
    Package("org.apache.kafka:kafka-clients:3.9.2"),
    Package("org.apache.commons:commons-pool2:2.13.1"),
    Package(f"org.apache.spark:spark-token-provider-kafka-0-10_{SCALA}:4.0.0"),
    # Object stores with S3's API. The version of hadoop-aws is that of Spark's own Hadoop. hadoop-aws asks for all of
    # the AWS SDK (600 MB), but needs only these modules. Spark has the HTTP client, netty and slf4j.
    Package("org.apache.hadoop:hadoop-aws:3.5.0"),
    Package("software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:1.3.1"),
    Package(f"software.amazon.awssdk:s3-transfer-manager:{AWS_SDK}", IN_SPARK),
    Package(f"software.amazon.awssdk:sts:{AWS_SDK}", IN_SPARK),
    # Azure Blob Storage. Spark contains the libraries that hadoop-azure needs.
    Package("org.apache.hadoop:hadoop-azure:3.5.0"),
]
CLASSES = Path(__file__).resolve().parent.parent / "pipeline" / "spark" / "jvm"
SERVICE = "META-INF/services/org.apache.spark.sql.sources.DataSourceRegister", "lakelog.ColumnarSource\n"
"""A file in Lakelog's jar, and its content: it tells Spark which class is format("lakelog")."""
ADDED = "io.*_*.jar", "org.*_*.jar", "software.*_*.jar", "lakelog_*.jar"
"""Patterns for the names of the added jars. Ivy's names begin with the group of the jar. The names of Spark's own jars do
not."""


def main() -> None:
    jars = Path(pyspark.__file__).parent / "jars"
    asked = jars / "added-by-set-up.txt"
    sources = sorted(CLASSES.glob("*.java"))
    own = jars / f"lakelog_{_digest(sources)}.jar"
    wanted = "".join(f"{package.coordinate}\n" for package in PACKAGES) + f"{own.name}\n"
    if asked.exists() and asked.read_text() == wanted:
        return
    asked.unlink(missing_ok=True)
    with _jvm() as gateway:
        resolved = _resolved(gateway)
        names = {jar.name for jar in resolved}
        for stale in [jar for pattern in ADDED for jar in jars.glob(pattern) if jar.name not in names]:
            stale.unlink()  # a jar of another version
        for jar in resolved:
            if not (jars / jar.name).exists():
                partial = jars / f"{jar.name}.partial"
                shutil.copyfile(jar, partial)
                partial.rename(jars / jar.name)
                print(jar.name, file=sys.stderr)
        _compile(gateway, sources, jars, own)
    asked.write_text(wanted)


@contextmanager
def _jvm() -> Iterator[JavaGateway]:
    """A JVM with Spark's jars. No Spark context is needed."""
    os.environ["PYSPARK_SUBMIT_ARGS"] = "pyspark-shell"
    os.environ["SPARK_CONF_DIR"] = os.devnull  # the user's own spark-defaults.conf must not add packages
    gateway: JavaGateway = launch_gateway()
    try:
        yield gateway
    finally:
        gateway.shutdown()


def _resolved(gateway: JavaGateway) -> list[Path]:
    """The jars of the packages in Ivy's cache. Ivy downloads missing jars."""
    ivy = gateway.jvm.org.apache.spark.util.DependencyUtils
    no_settings = gateway.jvm.scala.Option.empty()
    found = [
        ivy.resolveMavenDependencies(
            package.excluded is not None, package.excluded or "", package.coordinate, None, None, no_settings
        ).mkString(",")
        for package in PACKAGES
    ]
    return list(dict.fromkeys(Path(jar) for jars in found for jar in jars.split(",")))


def _digest(files: Sequence[Path]) -> str:
    content = b"".join(file.name.encode() + b"\0" + file.read_bytes() for file in files) + repr(SERVICE).encode()
    return hashlib.sha256(content).hexdigest()[:16]


def _compile(gateway: JavaGateway, sources: Sequence[Path], jars: Path, own: Path) -> None:
    """Compile Java sources against the jars in a folder, and write the classes and SERVICE into a new jar."""

    def java_files(paths: Iterable[Path]) -> object:
        given = list(paths)
        array = gateway.new_array(gateway.jvm.java.io.File, len(given))
        for number, path in enumerate(given):
            array[number] = gateway.jvm.java.io.File(str(path))
        return array

    with tempfile.TemporaryDirectory() as folder:
        compiler = gateway.jvm.org.codehaus.janino.Compiler()
        compiler.setClassPath(java_files(jars.glob("*.jar")))
        compiler.setDestinationDirectory(gateway.jvm.java.io.File(folder), False)
        try:
            compiler.compile(java_files(sources))
        except Py4JJavaError as failure:  # its text comes from the JVM, so it is asked for while the JVM runs
            reason = failure.java_exception
            while reason.getCause() is not None:
                reason = reason.getCause()
            raise SystemExit(f"{failure.java_exception.getMessage()}: {reason.toString()}") from None
        partial = own.with_suffix(".partial")
        with zipfile.ZipFile(partial, "w") as archive:
            for compiled in sorted(Path(folder).rglob("*.class")):
                archive.write(compiled, compiled.relative_to(folder))
            archive.writestr(*SERVICE)
        partial.rename(own)
    print(own.name, file=sys.stderr)


if __name__ == "__main__":
    main()
