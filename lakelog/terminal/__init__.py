"""Output for people on a terminal: shows progress, and escapes the characters that a terminal would interpret."""
