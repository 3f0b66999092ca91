"""Reads and writes the deletion vectors of Delta tables, and the actions of Delta's log that name them."""
