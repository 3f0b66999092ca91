"""Cleans a topic: makes plans, and does retention, compaction, merging and the deletion of unused files."""
