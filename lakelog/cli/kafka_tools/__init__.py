"""The names and options of Kafka's command-line tools: which of them the commands of lakelog accept, and what differs."""
