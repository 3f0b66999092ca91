"""What can be found out about a root without changing it: descriptions of topics, plans of cleaning, and verification.

The commands `lakelog topics describe`, `plan` and `verify` and the methods of lakelog.Root call these functions. The
functions return values; they print nothing.
"""
