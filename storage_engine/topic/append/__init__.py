"""Appends: staged, planned, published, committed."""
