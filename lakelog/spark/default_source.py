"""The module `pyspark_lakelog` of an installed wheel: by its name Spark finds `format("lakelog")` without a call.

Spark looks for sources in modules whose names begin with `pyspark_`, when a session first needs one that is written in
Python. A session without this module, such as one of a checkout, calls `lakelog.register(spark)`.
"""

from lakelog.spark.source import LakelogSource as DefaultSource

__all__ = ["DefaultSource"]
