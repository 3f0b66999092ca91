"""Starts and stops Spark, and turns its failures into Lakelog's errors."""
