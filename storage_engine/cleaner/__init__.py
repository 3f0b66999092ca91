"""Compaction and merging of one partition: reads segments and writes new segments that replace them."""
