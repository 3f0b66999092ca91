"""Checks and repairs a root.

The checks cover the state chains (chain_check.py), each partition (partition_check.py), the view (view_check.py) and
the whole root (root_check.py). The repairs rebuild files (root_repair.py) and restore documents (state_repair.py).
"""
