"""Decodes the records of a cluster's topic __cluster_metadata, in which KRaft's controllers store topics and settings."""
