"""Derives the state of a partition's idempotent and transactional producers, and reads and writes the .snapshot file."""
