"""The options that a user gives the source, checked as in Spark's Kafka source."""
