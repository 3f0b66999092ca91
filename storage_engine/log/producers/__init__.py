"""Idempotent and transactional producers of a partition: what is known of each, and its file."""
