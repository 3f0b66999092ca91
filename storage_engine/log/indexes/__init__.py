"""Reads and writes Kafka's three indexes of a segment: by offset, by time, and of aborted transactions."""
