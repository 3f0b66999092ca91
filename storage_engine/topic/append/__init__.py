"""Appends records to a topic in four steps: stage, plan, publish, commit."""
