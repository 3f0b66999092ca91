"""Adds the module pyspark_lakelog to a wheel, and not to the editable installation of a checkout.

Spark finds a source by itself in a module whose name begins with `pyspark_`. A checkout registers its source, and Spark
warns if a source is both found and registered.
"""

from __future__ import annotations

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class WheelHook(BuildHookInterface[Any]):
    """hatchling calls `initialize` before it builds: `version` is "standard" for a wheel that is to be published."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "standard":
            build_data["force_include"]["lakelog/spark/default_source.py"] = "pyspark_lakelog.py"
