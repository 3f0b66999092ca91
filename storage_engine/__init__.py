"""Kafka's log, its formats and its files, without Spark."""
