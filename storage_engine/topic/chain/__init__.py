"""A topic's state, version by version: the one commit point."""
