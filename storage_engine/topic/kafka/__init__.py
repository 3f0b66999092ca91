"""Connects a root with Kafka log directories: the view, imports and exports."""
