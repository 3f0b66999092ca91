"""Compares Lakelog with its peers in one run. The results are medians and ratios. `make bench` runs the benchmarks."""
