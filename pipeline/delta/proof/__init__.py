"""Proves that an exported table equals its topic: compares each row with the record in the log from which it was made."""
