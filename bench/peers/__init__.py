"""Holds the peers that the benchmarks compare: each runs in its own process, and they take turns (bench.turns)."""
