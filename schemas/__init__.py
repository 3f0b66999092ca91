"""Contains the event models and their mapping to columns. An event model is a pydantic model, in its own file."""
