"""Compacts and merges one partition, from segments to new segments."""
