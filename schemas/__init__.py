"""Contains the event models, which are pydantic models, one a file, and their mapping to columns."""
