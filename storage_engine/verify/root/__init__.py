"""Checks and repairs a root. The checks: the chains (chain.py), each partition (partition.py), the view (view.py), the
whole root (checking.py). The repairs: files that can be derived (repair.py), and documents (repair_state.py).
"""
