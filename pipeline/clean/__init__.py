"""Cleans topics with Spark jobs: collects the work that is due in one queue, one task per partition."""
