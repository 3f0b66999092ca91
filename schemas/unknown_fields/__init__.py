"""Keeps the fields of values that a schema does not have, as JSON in one column."""
