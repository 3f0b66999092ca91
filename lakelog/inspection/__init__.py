"""Examines a root: describes topics, plans cleaning, and verifies files. Only a repair changes the root.

The commands `lakelog topics describe`, `plan` and `verify` and the methods of lakelog.Root call these functions. The
cleaning jobs use the same planning function as `lakelog plan`. The functions return values; they print nothing.
"""
