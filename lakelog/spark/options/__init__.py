"""What a user asks of the source: options, checked as Spark's Kafka source checks them."""
