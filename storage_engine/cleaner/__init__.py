"""Compacts and merges the segments of one partition: reads segments, and writes new segments that replace them."""
