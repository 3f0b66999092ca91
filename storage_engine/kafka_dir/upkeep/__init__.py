"""Does for plain Kafka log directories the background work of a broker's LogManager and LogCleaner."""
