"""Does on plain Kafka log directories what a broker's LogManager and LogCleaner do in the background."""
