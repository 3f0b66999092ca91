"""Reads the options that a user gives to the source, and checks them as Spark's Kafka source does."""
