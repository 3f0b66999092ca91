"""Compares Lakelog with its peers in one run, by medians and ratios. `make bench` runs the benchmarks."""
