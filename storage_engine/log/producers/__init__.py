"""Derives the state of a partition's idempotent and transactional producers, and reads and writes its file."""
