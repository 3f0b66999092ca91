"""Reads and commits the versions of a topic's state. A change of a topic becomes visible only with a new version."""
