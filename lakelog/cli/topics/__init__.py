"""The commands about topics and their root: topics, broker, consumers, groups, state, reassign."""
