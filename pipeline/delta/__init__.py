"""Writes Delta tables: exports with their positions and columns, and dead letters."""
