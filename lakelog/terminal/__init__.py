"""Output for people on a terminal: shows progress, and escapes characters of a text that a terminal would interpret."""
