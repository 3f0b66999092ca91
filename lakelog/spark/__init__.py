"""Topics as a source for Spark: format("lakelog")."""
