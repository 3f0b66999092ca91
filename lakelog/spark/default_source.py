"""The module `pyspark_lakelog` of an installed wheel. Spark finds this module by its name, so `format("lakelog")` needs
no call of `lakelog.register`.

The first time that a session needs a source written in Python, Spark searches the modules whose names begin with
`pyspark_`. A session without this module, for example in a checkout, must call `lakelog.register(spark)`.
"""

from lakelog.spark.data_source import LakelogSource as DefaultSource

__all__ = ["DefaultSource"]
