"""The log engine: writes and reads Kafka's files, commits the state of topics, and cleans topics. It needs no Spark."""
