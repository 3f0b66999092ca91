"""Pydantic models of the events, one per file."""
