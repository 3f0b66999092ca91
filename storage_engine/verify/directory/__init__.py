"""Checks (directory_check.py, folder_check.py) and repairs (directory_repair.py) a plain Kafka log directory."""
