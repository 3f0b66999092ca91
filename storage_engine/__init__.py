"""The log engine: Kafka's bytes, the topic's state, cleaning. Knows numpy, pyarrow and numba, and nothing of Spark."""
