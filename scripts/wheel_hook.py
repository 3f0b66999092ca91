"""Adds the module pyspark_lakelog to a wheel, and not to the editable installation of a checkout.

If the name of a module begins with `pyspark_`, Spark discovers the data source in this module by itself. In a checkout,
Lakelog's code registers the data source instead. If a data source is discovered and also registered, Spark prints a
warning.
"""

from __future__ import annotations

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class WheelHook(BuildHookInterface[Any]):
    """hatchling calls `initialize` before a build. `version` is "standard" if the build makes a wheel to publish."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "standard":
            build_data["force_include"]["lakelog/spark/default_source.py"] = "pyspark_lakelog.py"
