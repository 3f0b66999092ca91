"""Turns rows of the source into records: evaluates expressions, refuses rows, and counts dropped fields."""
