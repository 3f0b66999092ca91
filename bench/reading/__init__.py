"""The benchmarks that read topics."""
