"""Checks (checking.py, partition.py) and repairs (repair.py) a plain Kafka log directory."""
