"""The module `pyspark_lakelog` of an installed wheel. Spark finds this module by its name, so `format("lakelog")` needs
no call of `lakelog.register`.

Spark looks for sources in modules whose names begin with `pyspark_`, when a session first needs a source that is written
in Python. A session without this module, for example in a checkout, must call `lakelog.register(spark)`.
"""

from lakelog.spark.data_source import LakelogSource as DefaultSource

__all__ = ["DefaultSource"]
