"""Checks every file against the batches and against the other files. This package holds the checks that roots and plain
Kafka log directories share: findings, segments, indexes, leader epochs, producers. root/ and directory/ hold the rest.
"""
