"""Reads Delta tables without Spark."""
