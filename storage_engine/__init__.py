"""The log engine: writes and reads Kafka's files, commits the state of topics, and cleans topics. The engine needs no
Spark.
"""
