"""Encodes Arrow columns to record batches, and decodes record batches to Arrow columns."""
