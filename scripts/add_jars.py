"""Adds the jars of Delta and of Spark's Kafka source to the Spark of this environment, once.

The alternative would be the setting `spark.jars.packages`. It has three disadvantages. Each start resolves the jars
again, which takes a second and prints eighty lines. A start needs a network if the cache is empty. If a user gives
other packages with --packages, Spark starts without Delta. The jars come from the same repositories as with this
setting: Spark's own Ivy downloads them, with the user's proxies, mirrors and cache. The versions are those of PySpark
and delta-spark in requirements.lock. Ivy's output is printed on standard error.

After the last jar is copied, this program writes a list of the requested packages into the folder of the jars. If the
list in the folder already names the requested packages, the program does nothing. An interrupted set-up leaves no list,
so the next set-up does the work again.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import pyspark
from py4j.java_gateway import JavaGateway
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
]
ADDED = "io.*_*.jar", "org.*_*.jar", "software.*_*.jar"
"""Patterns for the names that Ivy gives to jars: a name begins with the group. The names of Spark's own jars do not."""


def main() -> None:
    jars = Path(pyspark.__file__).parent / "jars"
    asked = jars / "added-by-set-up.txt"
    wanted = "".join(f"{package.coordinate}\n" for package in PACKAGES)
    if asked.exists() and asked.read_text() == wanted:
        return
    asked.unlink(missing_ok=True)
    resolved = _resolved()
    names = {jar.name for jar in resolved}
    for stale in [jar for pattern in ADDED for jar in jars.glob(pattern) if jar.name not in names]:
        stale.unlink()  # a jar of another version
    for jar in resolved:
        if not (jars / jar.name).exists():
            partial = jars / f"{jar.name}.partial"
            shutil.copyfile(jar, partial)
            partial.rename(jars / jar.name)
            print(jar.name, file=sys.stderr)
    asked.write_text(wanted)


def _resolved() -> list[Path]:
    """The jars of the packages in Ivy's cache. Ivy downloads missing jars. One JVM resolves all packages."""
    os.environ["PYSPARK_SUBMIT_ARGS"] = "pyspark-shell"
    os.environ["SPARK_CONF_DIR"] = os.devnull  # the user's own spark-defaults.conf must not add packages
    gateway: JavaGateway = launch_gateway()  # no Spark context is needed
    try:
        ivy = gateway.jvm.org.apache.spark.util.DependencyUtils
        no_settings = gateway.jvm.scala.Option.empty()
        found = [
            ivy.resolveMavenDependencies(
                package.excluded is not None, package.excluded or "", package.coordinate, None, None, no_settings
            ).mkString(",")
            for package in PACKAGES
        ]
    finally:
        gateway.shutdown()
    return [Path(jar) for jars in found for jar in jars.split(",")]


if __name__ == "__main__":
    main()
