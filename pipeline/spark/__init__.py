"""Starts and stops Spark, and turns Spark's failures into Lakelog's errors."""
