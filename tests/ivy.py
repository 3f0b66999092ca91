"""Fetches jars from Maven with Ivy, which is one of Spark's jars, for the servers that tests start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark

from scripts.built_once import built_once


def fetched_jars(name: str, dependencies: str) -> Path:
    """Return the folder with the jars in this environment. The first call fetches the jars (half a minute).

    Args:
        name: of the folder, with the version.
        dependencies: the elements `dependency` of an Ivy file.
    """

    def fetch(folder: Path) -> Path:
        jars = folder / "jars"
        jars.mkdir()
        file = folder / "ivy.xml"
        file.write_text(_IVY_FILE.format(module=name, dependencies=dependencies))
        ivy = next((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))
        subprocess.run(
            [java(), "-jar", ivy, "-warn", "-ivy", file, "-retrieve", f"{jars}/[artifact]-[revision].[ext]"],
            check=True, stdout=sys.stderr,
        )  # fmt: skip
        return jars

    # Two processes of Ivy that resolve the same module at the same time read each other's half-written reports.
    return built_once(name, fetch)


_IVY_FILE = """
<ivy-module version="2.0">
  <info organisation="lakelog" module="{module}"/>
  <dependencies defaultconfmapping="*->default">{dependencies}</dependencies>
</ivy-module>
"""


def java() -> str:
    home = os.environ.get("JAVA_HOME")
    return f"{home}/bin/java" if home else "java"
