"""Cleans topics with Spark jobs: retention, compaction and merging, from one queue of the work that is due."""
