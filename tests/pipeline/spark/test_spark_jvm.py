"""The command with which Spark's JVM starts: its class path, and the archive of Java classes that set-up writes."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pyspark

PROJECT = Path(__file__).resolve().parents[3]
SCRIPT = "pipeline/spark/spark_jvm.sh"


def command(home: Path, folder: Path, *options: str, class_path: str) -> list[str]:
    """The command that the script in a checkout executes if Spark wants to run Java with these options."""
    spark = folder / "spark"
    (spark / "bin").mkdir(parents=True)
    words = " ".join(f"'{each}'" for each in ("echo", "-Xmx2g", "-cp", class_path, *options, "Main"))
    (spark / "bin/spark-class").write_text(f"exec {words}\n")
    done = subprocess.run(
        ["bash", home / SCRIPT],
        env=os.environ | {"SPARK_HOME": str(spark), "SPARK_CONF_DIR": str(folder / "conf")},
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout.split()


def checkout(folder: Path) -> Path:
    (folder / SCRIPT).parent.mkdir(parents=True)
    shutil.copy(PROJECT / SCRIPT, folder / SCRIPT)
    (folder / ".venv").mkdir()
    return folder


def test_the_configuration_comes_last_so_that_the_jars_of_the_archive_are_first(tmp_path: Path) -> None:
    home, conf = checkout(tmp_path / "home"), f"{tmp_path}/conf/"
    (home / ".venv/spark-classes.jsa").write_bytes(b"")
    archive = f"-XX:SharedArchiveFile={home}/.venv/spark-classes.jsa"

    assert command(home, tmp_path / "1", class_path=f"{tmp_path}/1/conf/:a.jar:b/*:/etc/hadoop/") == [
        archive, "-Xmx2g", "-cp", f"a.jar:b/*:/etc/hadoop/:{tmp_path}/1/conf/", "Main",
    ]  # fmt: skip
    assert command(home, tmp_path / "2", class_path=f"mine.jar:{conf}:a.jar") == [
        archive, "-Xmx2g", "-cp", f"mine.jar:{conf}:a.jar", "Main",
    ]  # fmt: skip
    written = "-XX:ArchiveClassesAtExit=x"
    assert command(home, tmp_path / "3", written, class_path=f"{tmp_path}/3/conf/:a.jar") == [
        "-Xmx2g", "-cp", "a.jar", written, "Main",
    ]  # fmt: skip


def test_without_an_archive_the_jvm_starts_without_one(tmp_path: Path) -> None:
    assert command(checkout(tmp_path / "home"), tmp_path, class_path=f"{tmp_path}/conf/:a.jar") == [
        "-Xmx2g", "-cp", f"a.jar:{tmp_path}/conf/", "Main",
    ]  # fmt: skip


def test_java_accepts_the_archive_of_set_up() -> None:
    jars = Path(pyspark.__file__).parent / "jars"
    (first,) = jars.glob("slf4j-api-*.jar")
    java = os.environ.get("JAVA_HOME")
    done = subprocess.run(
        [
            f"{java}/bin/java" if java else "java", "-Xshare:on",  # fails if an archive cannot be used
            f"-XX:SharedArchiveFile={PROJECT}/.venv/spark-classes.jsa", "-cp", f"{first}:{jars}/*:{PROJECT}/conf/",
            "-version",
        ],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
