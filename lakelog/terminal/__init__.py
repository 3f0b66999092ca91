"""Output for people on a terminal: progress, and text from files without characters that a terminal would interpret."""
