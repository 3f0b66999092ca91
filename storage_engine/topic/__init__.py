"""Manages the topics of a root: their states, appends, cleaning, readers, and the connection with Kafka's
directories."""
