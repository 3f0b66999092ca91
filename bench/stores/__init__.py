"""The benchmarks of roots in object stores."""
