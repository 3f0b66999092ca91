"""Checks every file of a root or of a plain Kafka log directory against the batches and against the other files.

This package contains the checks for both: findings, segments, indexes, leader epochs, producers. The other checks and
the repairs are in root/ and directory/.
"""
