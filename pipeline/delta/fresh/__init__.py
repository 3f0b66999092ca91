"""Reads an exported table together with the records that the log has beyond it."""
