"""Compares Lakelog with its peers side by side in one run, by medians and ratios. `make bench` runs the benchmarks."""
