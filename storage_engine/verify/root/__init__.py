"""Checks and repairs a root.

The checks cover the state chains (chain.py), each partition (partition.py), the view (view.py) and the whole root
(checking.py). The repairs derive files again (repair.py) and restore documents (repair_state.py).
"""
