"""Cleans a topic: plans, retention, compaction, merging, and the deletion of unused files."""
