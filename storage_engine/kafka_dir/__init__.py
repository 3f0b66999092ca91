"""Reads, opens for writing, and repairs a plain Kafka log directory."""
