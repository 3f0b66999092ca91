"""The topics of a root, and what processes that share only the storage agree on."""
