"""New Parquet files of a Delta table, which Python writes in Spark's tasks."""
