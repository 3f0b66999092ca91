"""Reads and commits the versions of a topic's state. A version is the one commit point of a topic."""
