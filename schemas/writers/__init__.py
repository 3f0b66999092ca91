"""Finds the schemas with which values were written: in a folder, or in a schema registry."""
