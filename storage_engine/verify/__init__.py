"""Checks every file of a root or of a plain Kafka log directory against the batches and against the other files.

The checks of a root and of a log directory share the modules of this package: findings, segments, indexes, leader
epochs and producers. The other checks and the repairs are in root/ and directory/.
"""
