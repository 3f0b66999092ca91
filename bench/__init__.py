"""Benchmarks: peers side by side in one run, medians and ratios. `make bench` runs them."""
