"""Does the background work of a broker's LogManager and LogCleaner for plain Kafka log directories."""
