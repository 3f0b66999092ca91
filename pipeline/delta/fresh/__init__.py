"""Reads an exported table together with the newer records, which are in the log but not yet in the table."""
