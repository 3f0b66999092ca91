"""Cleans topics with Spark jobs: retention, compaction and merging. One queue orders all compactions and merges."""
