"""Joins a root to Kafka's directories: the view, import, export."""
