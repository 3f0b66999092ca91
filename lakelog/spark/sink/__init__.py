"""Writes topics from Spark: df.write and df.writeStream with format("lakelog")."""
