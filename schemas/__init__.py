"""Contains the event models, which are pydantic models, one per file, and their mapping to columns."""
