"""Reads topics, and stores the positions of registered consumers."""
