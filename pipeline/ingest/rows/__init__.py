"""Turns rows of the source into records: evaluates expressions, counts dropped fields, refuses rows."""
