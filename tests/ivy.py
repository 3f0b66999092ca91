"""Fetches jars from Maven with the Ivy among Spark's jars, for the servers that tests start."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark


def fetched_jars(name: str, dependencies: str) -> Path:
    """Return the folder with the jars in this environment. The first call fetches the jars (half a minute).

    Args:
        name: of the folder, with the version.
        dependencies: the elements `dependency` of an Ivy file.
    """
    jars = Path(sys.prefix) / name
    if jars.is_dir():
        return jars
    ivy = next((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))
    partial = Path(tempfile.mkdtemp(prefix=f"{jars.name}.", dir=jars.parent))
    try:
        file = partial / "ivy.xml"
        file.write_text(_IVY_FILE.format(module=name, dependencies=dependencies))
        subprocess.run(
            [java(), "-jar", ivy, "-warn", "-ivy", file, "-retrieve", f"{partial}/[artifact]-[revision].[ext]"],
            check=True, stdout=sys.stderr,
        )  # fmt: skip
        try:
            partial.rename(jars)  # whole or not at all, however many fetch at the same time
        except OSError:
            assert jars.is_dir(), "another process was first"
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return jars


_IVY_FILE = """
<ivy-module version="2.0">
  <info organisation="lakelog" module="{module}"/>
  <dependencies defaultconfmapping="*->default">{dependencies}</dependencies>
</ivy-module>
"""


def java() -> str:
    home = os.environ.get("JAVA_HOME")
    return f"{home}/bin/java" if home else "java"
