"""The chain of proof of an exported table: digests of its rows, and their sums in the stamps."""
