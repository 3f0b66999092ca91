"""Commits the micro-batches of a streaming query to topics, exactly once."""
