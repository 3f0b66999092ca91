"""Contains the peers, the programs that the benchmarks compare. Each peer runs in its own process, and the peers take
turns (bench.turns)."""
