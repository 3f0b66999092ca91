"""Put Delta's jars beside Spark's own, once, in the Spark of this environment.

`spark.jars.packages` would do it at every start instead: a second of resolving with eighty lines on the terminal, a
network where the cache is cold, and no Delta as soon as somebody asks for another package by --packages. The jars come
from the same place by the same means (Spark's own Ivy, so the user's proxies, mirrors and cache hold), for the version
of delta-spark that requirements.lock pinned. Ivy's output goes to standard error.
"""

import os
import shutil
import sys
from importlib.metadata import version
from pathlib import Path

import pyspark
from py4j.java_gateway import JavaGateway
from pyspark.java_gateway import launch_gateway

# Delta's dependencies on what Spark has itself (Hadoop, Parquet, Jackson...: 85 MB) are left out.
IN_SPARK = "org.*:*,com.*:*,commons-*:*,javax.*:*,io.airlift:*"


def main() -> None:
    jars = Path(pyspark.__file__).parent / "jars"
    spark = ".".join(version("pyspark").split(".")[:2])
    package = f"io.delta:delta-spark_{spark}_2.13:{version('delta-spark')}"
    if (jars / f"{package.replace(':', '_', 1).replace(':', '-')}.jar").exists():
        return
    for stale in [*jars.glob("io.delta_*.jar"), *jars.glob("io.unitycatalog_*.jar")]:
        stale.unlink()  # of another version

    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--packages {package} --exclude-packages {IN_SPARK} pyspark-shell"
    os.environ["SPARK_CONF_DIR"] = os.devnull  # a user's own defaults must not add to what is resolved
    gateway: JavaGateway = launch_gateway()  # the JVM resolves before it answers; no Spark context is needed
    try:
        resolved = gateway.jvm.java.lang.System.getProperty("spark.jars").split(",")
    finally:
        gateway.shutdown()
    # delta-spark last: it is what the check above looks for, so an interrupted copy is done again.
    found = [Path(uri.removeprefix("file://")) for uri in resolved]
    for jar in sorted(found, key=lambda jar: "delta-spark" in jar.name):
        partial = jars / f"{jar.name}.partial"
        shutil.copyfile(jar, partial)
        partial.rename(jars / jar.name)
        print(jar.name, file=sys.stderr)


if __name__ == "__main__":
    main()
