"""Exports a small increment without Spark: the engine reads the records, and the deltalake library commits the rows."""
