"""Reads of the log for an export that other work on the log may disturb."""
