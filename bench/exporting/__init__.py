"""Benchmarks of exports of whole topics."""
