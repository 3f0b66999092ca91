"""Lakelog from Python: topics without a broker, and without Spark.

    import lakelog

    log = lakelog.open("/mnt/shared/lakelog")
    orders = log.create_topic("orders", partitions=8, config={"cleanup.policy": "compact"})
    orders.append([{"key": "a", "value": "1"}])       # one commit; dicts, Arrow, pandas, Polars
    orders.read().to_pandas()                         # the rows of Spark's Kafka source
    for record in orders.follow("billing"): ...       # continues where the group stopped; commits each record
    with log.transaction() as t:                      # appends become visible together; an exception aborts them
        t.append("orders", table)
    log.describe(), log.plan(), log.verify()          # what there is, what cleaning would do, what is damaged
    lakelog.register(spark)                           # format("lakelog") in any Spark session
    orders.table(schema="order")                      # an exported table, and what the log has beyond it
    lakelog.table(spark, "orders", root="...")        # the same as a DataFrame

Every error is a class of lakelog.errors. A public class or function is loaded when a program first uses it, so `import
lakelog` is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lakelog import errors
    from lakelog.following import Record
    from lakelog.inspection.describing import TopicDescription
    from lakelog.inspection.verifying import Verification
    from lakelog.root import Root
    from lakelog.root import open_root as open  # noqa: A004 - lakelog.open
    from lakelog.spark.registering import register
    from lakelog.tables import FreshTable, table
    from lakelog.topic import Rows, Topic
    from lakelog.transaction import Transaction
    from storage_engine.topic.clean.cleaning_plan import Plan
    from storage_engine.topic.readers.group_positions import GroupPosition
    from storage_engine.verify.findings import Finding

__all__ = [
    "Finding",
    "FreshTable",
    "GroupPosition",
    "Plan",
    "Record",
    "Root",
    "Rows",
    "Topic",
    "TopicDescription",
    "Transaction",
    "Verification",
    "errors",
    "open",
    "register",
    "table",
]

_PLACES = {
    "Finding": ("storage_engine.verify.findings", "Finding"),
    "FreshTable": ("lakelog.tables", "FreshTable"),
    "GroupPosition": ("storage_engine.topic.readers.group_positions", "GroupPosition"),
    "Plan": ("storage_engine.topic.clean.cleaning_plan", "Plan"),
    "Record": ("lakelog.following", "Record"),
    "Root": ("lakelog.root", "Root"),
    "Rows": ("lakelog.topic", "Rows"),
    "Topic": ("lakelog.topic", "Topic"),
    "TopicDescription": ("lakelog.inspection.describing", "TopicDescription"),
    "Transaction": ("lakelog.transaction", "Transaction"),
    "Verification": ("lakelog.inspection.verifying", "Verification"),
    "open": ("lakelog.root", "open_root"),
    "register": ("lakelog.spark.registering", "register"),
    "table": ("lakelog.tables", "table"),
}


def __getattr__(name: str) -> object:
    if name == "errors":
        return importlib.import_module("lakelog.errors")
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _PLACES[name]
    return getattr(importlib.import_module(module), attribute)


def __dir__() -> list[str]:
    return __all__
